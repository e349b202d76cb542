"""torch's process groups over several sites: how they are made, what a process has of them, what they agree on."""
