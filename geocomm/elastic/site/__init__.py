"""A site's agent: how it follows the leader, and what it does for the ranks of its site."""
