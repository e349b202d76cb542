"""What of a run outlives its processes: the folders of its checkpoints."""
