"""Which rank this process is, as its launcher says: the one reader of RANK, WORLD_SIZE, NODE_RANK and their kin.

Works under `python -m torch.distributed.run`, the `deepspeed` launcher, `geocomm wan` (one process per site: NNODES and
NODE_RANK without RANK) and without any launcher.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from geocomm.core.addresses import free_port
from geocomm.core.bad_input import BadInput
from geocomm.core.site import UNNAMED_SITE, SiteNameError, check_site_name, site_name

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NNODES", "NODE_RANK")
"""The variables that launchers set and this module reads."""


@dataclass(frozen=True)
class Place:
    """This process among all ranks. `site` is GEOCOMM_SITE, or `UNNAMED_SITE`."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    site: str

    def describe(self) -> str:
        """`rank 1 (site b)`, for messages."""
        return f"rank {self.rank} (site {self.site})"


def find_place(environ: MutableMapping[str, str]) -> Place:
    """The place that the launcher's variables in `environ` give; fills in what `env://` needs where a launcher left it.

    Raises BadInput if the variables contradict each other.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ and not _is_node(environ):
        environ.update(rank_variables(0, 1, 0, 1), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    require_rank(environ)
    rank, world_size, local_rank = (_number(environ, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if not 0 <= rank < world_size:
        raise BadInput(f"RANK {rank} is outside of WORLD_SIZE {world_size}")
    if world_size > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in environ:
                raise BadInput(f"{name} is not set; it says where rank 0 listens")
    try:
        site = check_site_name(site_name(environ) or UNNAMED_SITE)
    except SiteNameError as error:
        raise BadInput(f"GEOCOMM_SITE: {error}") from None
    return Place(rank, world_size, local_rank, local_world_size(environ), site)


def require_rank(environ: MutableMapping[str, str]) -> None:
    """BadInput unless a launcher says which rank this is. A node of `geocomm wan` becomes the one rank of its site."""
    if "RANK" not in environ and _is_node(environ):
        environ.update(rank_variables(_number(environ, "NODE_RANK"), _number(environ, "NNODES"), 0, 1))
    for name in ("RANK", "WORLD_SIZE"):
        if not environ.get(name):
            raise BadInput(f"{name} is not set: start all ranks with torch.distributed.run or geocomm wan")


def rank_variables(rank: int, world_size: int, local_rank: int, local_world_size: int) -> dict[str, str]:
    """What a launcher sets for a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }


def without_place(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what would make a rank or a node of a process."""
    return {name: value for name, value in environ.items() if name not in VARIABLES}


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher has made this process a rank."""
    return "RANK" in environ


def own_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """The number of this rank; None: a launcher has made this process none."""
    text = environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def rank_and_world_size(rank: str | None = None, world_size: str | None = None) -> tuple[int, int]:
    """The numbers given as text, else RANK and WORLD_SIZE. KeyError or ValueError where one is missing."""
    return int(rank or os.environ["RANK"]), int(world_size or os.environ["WORLD_SIZE"])


def node_and_nodes(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """NODE_RANK and NNODES of a process that starts the ranks of its node. KeyError or ValueError, as above."""
    return int(environ["NODE_RANK"]), int(environ["NNODES"])


def world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Ranks of the job, as far as a launcher says; 1 without one."""
    return _count(environ.get("WORLD_SIZE") or environ.get("NNODES"))


def local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Number of this rank on its machine; 0 without a launcher. ValueError for what is no number."""
    return int(environ.get("LOCAL_RANK") or 0)


def speaks_here(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this one of a machine's ranks says what one has to say: the first, or one without a launcher."""
    return environ.get("LOCAL_RANK", "0") in ("0", "")


def local_world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Ranks on this machine; 1 without a launcher. LOCAL_SIZE is what deepspeed's launcher sets."""
    return _count(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE"))


def _is_node(environ: Mapping[str, str]) -> bool:
    return "NNODES" in environ and "NODE_RANK" in environ


def _count(text: str | None) -> int:
    return int(text) if text and text.isdigit() and int(text) > 0 else 1


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except KeyError:
        raise BadInput(f"the launcher set RANK or WORLD_SIZE but not {name}; use torch.distributed.run") from None
    except ValueError:
        raise BadInput(f"{name} is {environ[name]!r}, not a number") from None
