"""geocomm under frameworks that bring process groups of their own: DeepSpeed and torchft.

Users import these two by name; the driver uses DeepSpeed's. Begin with `deepspeed.py`.
"""
