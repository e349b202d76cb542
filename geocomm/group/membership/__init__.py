"""Who is in a group, what its ranks tell each other, and the one verdict that they come to."""
