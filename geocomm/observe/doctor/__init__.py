"""What is looked at before a run: machines, keys, links and ranks."""
