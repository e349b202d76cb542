"""What a run does, what holds it up, and who hears of it: reports of all sites in one store, and what is read from it.

Its users are the commands `top`, `why`, `dashboard`, `doctor` and their like; nothing that trains imports it. Begin
with `telemetry/run_store.py`, which keeps what ranks report, and `telemetry/overview.py`, the picture that all of these
commands show.
"""
