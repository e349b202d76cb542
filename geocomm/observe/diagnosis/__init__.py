"""Why steps take as long as they do, and what a run that stands still waits for."""
