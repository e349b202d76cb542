"""What setup.py writes: for type checkers, also where nothing has been built."""

TORCH_VERSION: str
CUDA: bool
WHY_NO_CUDA: str
"""Empty where CUDA."""
