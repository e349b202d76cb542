"""The processes of this machine that belong to a site of a job, whoever their parent is now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def processes_with(variables: Mapping[str, str]) -> list[int]:
    """This user's processes that were started with these environment variables, the oldest first."""
    marks = {f"{name}={value}".encode() for name, value in variables.items()}
    found: list[tuple[int, int]] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            started = int((process / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:  # it has ended, or is another user's
            continue
        if marks <= set(environment):
            found.append((started, int(process.name)))
    return [process for _, process in sorted(found)]
