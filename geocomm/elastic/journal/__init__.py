"""What the sites of an elastic run agree on, and how: the journal and the protocol around it.

Pure logic, without torch, sockets or clocks; `elastic` and `sync.local_steps.elastic` carry it out. Begin with
`entries.py`, then `sequencer.py` (the leader) and `member.py` (a rank).
"""
