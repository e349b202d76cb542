"""Counters on their way out of a process: what is counted, and who shows it (Prometheus, a file)."""
