"""What a run writes about itself: its log and its metrics."""
