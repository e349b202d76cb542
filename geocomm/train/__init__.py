"""The training driver: causal language models with DeepSpeed over several sites, and what becomes of them.

A user runs it as `geocomm train`; nothing below it imports it. Begin with `loop/driver.py`: from a configuration to
the end of a run. `export/` and `serve/` take what a run saved.
"""
