"""Rounds of an elastic run: what a rank says to its site's agent, and the frames between sites."""
