"""Rules that tell when something is wrong with a run, and where their alerts go."""
