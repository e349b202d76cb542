"""What looks at machines, links and ranks, and changes nothing."""
