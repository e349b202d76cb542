"""Tensors to bytes and back, and what the backend makes of a codec's name.

Users call `compress` and `decompress`; the backend and the hooks read codec strings here. Begin with `tensor_codec.py`.
"""
