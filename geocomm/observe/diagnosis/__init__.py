"""Why steps take as long as they do, and what a run that stands still waits for.

Thresholds of verdicts that name no other source were made on seeds 1 to 4 of benchmarks/results/why.md. Later seeds
were judged with the same ones.
"""
