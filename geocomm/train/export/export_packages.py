"""The packages that a format needs beside those of training."""

from __future__ import annotations

from importlib.util import find_spec

from geocomm.core.bad_input import BadInput
from geocomm.core.extras import install_command


def need_packages(format_: str, *packages: str) -> None:
    """Raises BadInput that names those of `packages` which cannot be imported, and how to install them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise BadInput(f"--format {format_} needs {', '.join(missing)}: {install_command('export')}")
