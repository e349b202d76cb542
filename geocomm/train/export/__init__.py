"""From what a training saved to folders that other programs load."""
