"""What all sites of a run tell about themselves, in one place: reports of ranks, their way there, and the run store."""
