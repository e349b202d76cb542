"""Hooks for DistributedDataParallel and FSDP that compress gradients between sites with error feedback."""
