"""Files that lead to each other in a circle."""

from __future__ import annotations

from pathlib import Path


def in_circles(arrows: dict[Path, set[Path]]) -> list[Path]:
    """Those that lie on a circle, or from which one leads to it; arrows: from each file to others."""
    left = dict(arrows)
    while free := [file for file, others in left.items() if not others & left.keys()]:
        for file in free:
            del left[file]
    return list(left)
