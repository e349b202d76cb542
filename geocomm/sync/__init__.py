"""How sites agree on weights: gradients that are compressed at every step, or local steps with a round now and then.

Users call `ddp_hook`, `fsdp_hook` and `local_steps` from here, and the driver of the wing `train` does as they do.
Begin with `gradients/ddp_hook.py`, or with `local_steps/local_steps.py`.
"""
