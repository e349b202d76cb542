"""Tensors to bytes and back, and what the backend makes of a codec's name."""
