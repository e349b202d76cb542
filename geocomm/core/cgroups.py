"""The control groups that this process is in, which limit what it may use of its machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def own_cgroups(controller: str, own: Path, mounted: Path) -> Iterator[Path]:
    """Folders of this process' cgroup and those over it: of version 2, and where the controller is one of version 1, of
    that. A folder may be missing: a container sees less of them than /proc says.

    own: /proc/self/cgroup. mounted: where cgroups are mounted."""
    for line in lines(own):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            root = mounted
        elif controller in controllers.split(","):
            root = mounted / controllers
        else:
            continue
        group = root / path.lstrip("/")
        yield group
        yield from (over for over in group.parents if over.is_relative_to(root))


def lines(path: Path) -> list[str]:
    """Of a file of the kernel; none: it is not there."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
