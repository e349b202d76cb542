"""The versions of DeepSpeed whose private parts `deepspeed_seams` and `zero_seams` know."""

from __future__ import annotations

import importlib.metadata

from geocomm.core.extras import install_command

CHECKED_DEEPSPEED = ("0.19",)
"""The minor versions of DeepSpeed whose private parts were looked at and run (0.19.8)."""


def deepspeed_problem(version: str | None = None) -> str | None:
    """Say why DeepSpeed cannot be used, and what to install; None: it can.

    Args:
        version: Of DeepSpeed; default: the installed one's.
    """
    try:
        found = version or importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return f"DeepSpeed is not installed; {install_command('train')}"
    if ".".join(found.split(".")[:2]) in CHECKED_DEEPSPEED:
        return None
    return (
        f"geocomm uses private parts of DeepSpeed, which were checked with DeepSpeed {', '.join(CHECKED_DEEPSPEED)}; "
        f"this is DeepSpeed {found}. Install one that was checked: pip install 'deepspeed~={CHECKED_DEEPSPEED[-1]}.0'. "
        "Whoever checks this one (make ecosystem) adds it to CHECKED_DEEPSPEED in "
        "geocomm/integrations/deepspeed_version.py"
    )
