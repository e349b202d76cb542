"""The method: deltas, their average, the outer step and the merge into what the site has trained meanwhile."""
