"""geocomm: torch.distributed across distant sites. See `docs/architecture.md`."""

__version__ = "0.1.0"
