"""What a process counts, and how it leaves the process: `stats()`, the log of operations, Prometheus, reports.

The wings that carry data count here, and `observe` reads it at all sites. Begin with `counters.py`.
"""
