"""How sites become a process group of torch: who meets where, what they agree on, and by which links.

Its user is torch, by the name "geocomm"; the wings above take groups, links and the hub's connections from here. Begin
with `backend/group_creation.py` if it is the group that you look for, or `rendezvous/hub.py` for how ranks meet.
"""
