"""Rounds of sites that are there from the first step to the last."""
