"""Communication hooks of DistributedDataParallel that compress gradients with error feedback."""
