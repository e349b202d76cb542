"""What setup.py writes: for type checkers, also where nothing has been built."""

WHY_NO_CUDA: str
"""Empty where the kernels are built."""
