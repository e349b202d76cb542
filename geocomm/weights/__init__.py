"""Streams of weights: numbered versions of a model's tensors, published where it trains and read where it is used.

Read `stream_version.py` for what a version is, `publisher.py` and `reader.py` for who writes and reads them.
"""
