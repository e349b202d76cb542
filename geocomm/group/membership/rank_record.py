"""What one rank tells the others of its group, and what follows from the records of all: sites, paths, identity."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from geocomm.core.addresses import Address
from geocomm.core.once import Once

PROTOCOL_VERSION = 2
"""The version of the rendezvous and the wire. Ranks of different versions do not understand each other."""


@dataclass(frozen=True)
class Presence:
    """Where a rank is, and what it was told of that (one_site.py)."""

    rank: int
    site: str | None
    machine: str = ""
    """Equal for ranks whose traffic never leaves one kernel and its network namespace."""
    machine_name: str = ""
    """For messages."""
    given: list[str] = field(default_factory=list[str])
    """What is set there that counts between sites only."""
    one_site: bool = False


@dataclass(frozen=True)
class RankInfo:
    """What one rank tells the others of its group; `error` alone if it cannot take part."""

    rank: int
    global_rank: int
    site: str | None = None
    hosts: list[str] = field(default_factory=list[str])
    """Names and addresses of it, in the order to be dialled."""
    port: int = 0
    process_id: str = ""
    """Of its endpoint."""
    process: str = ""
    """Equal for ranks that are threads of one process."""
    outbound_only: bool = False
    versions: dict[str, str] = field(default_factory=dict[str, str])
    codecs: list[str] = field(default_factory=list[str])
    agreed: dict[str, Any] = field(default_factory=dict[str, Any])
    written: dict[str, str] = field(default_factory=dict[str, str])
    """What is `agreed`, in the user's words where they are others."""
    group: int = 0
    token: str = ""
    codes_on_gpu: bool = False  # lossy reductions of CUDA tensors
    # Where something is chosen by them: seconds per byte (codec_choice.py)
    codec_speeds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    detail_debugging: bool = False
    presence: dict[str, Any] = field(default_factory=dict[str, Any])  # the fields of a Presence
    keys_site: str = ""  # whose its keys are, where `site` does not say it; empty: it has none
    store_host: str = ""  # where torch's store is dialled, which carries plaintext; empty: not over TCP
    error: str = ""

    @property
    def description(self) -> str:
        """The rank as messages name it: "rank 3 (site b, 10.0.0.2:4000)"."""
        host = self.hosts[0] if self.hosts else ""
        return f"rank {self.global_rank} (site {self.site}, {Address(host, self.port)})"

    @property
    def machine(self) -> str:
        """Equal for ranks whose traffic never leaves one machine."""
        return str(self.presence.get("machine", ""))


def own_versions() -> dict[str, str]:
    """What must be equal on all ranks: geocomm's own version, the protocol's, the fields that ranks tell each other
    (which may differ between builds of one version), torch's minor version."""
    import torch

    from geocomm._version import __version__

    return {
        "geocomm": __version__,
        "protocol": str(PROTOCOL_VERSION),
        "rank records": layout_of(RankInfo, Presence),
        "torch": ".".join(torch.__version__.split(".")[:2]),
    }


def own_process() -> str:
    """A name that no other process has, also not a fork of this one."""
    return _name_of(os.getpid())


@Once
def _name_of(pid: int) -> str:
    return f"{pid}/{secrets.token_hex(8)}"


def new_group_identity() -> tuple[int, str]:
    """Random number of a group and the token that lets its ranks in. Only rank 0's count."""
    return secrets.randbits(63) | 1, base64.b64encode(secrets.token_bytes(16)).decode()


def ranks_text(ranks: list[int]) -> str:
    """The ranks as messages name them: "rank 3", "ranks 1, 2"; a long list is cut."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def sides_text(infos: Sequence[RankInfo], numbers: Sequence[int]) -> str:
    """The ranks `numbers` of a group as messages name them, by site: "site rome", "rank 3 (site oslo)"."""
    parts: list[str] = []
    by_site: dict[str | None, list[int]] = {}
    for number in numbers:
        by_site.setdefault(infos[number].site, []).append(infos[number].global_rank)
    for site, ranks in by_site.items():
        whole = len(ranks) == sum(info.site == site for info in infos)
        where = f"site {site}" if site is not None else ""
        parts.append(where if where and whole else ranks_text(ranks) + (f" ({where})" if where else ""))
    return ", ".join(parts)


# spec operations 1.3: "Sites MUST be numbered in order of their lowest rank."
def sites_of(infos: list[RankInfo]) -> tuple[list[int], list[str]]:
    """Index of each rank's site, and the sites' names in order of their lowest rank."""
    names: list[str] = []
    for info in infos:
        if (info.site or "") not in names:
            names.append(info.site or "")
    return [names.index(info.site or "") for info in infos], names


def path_channels(site_of_rank: Sequence[int], rank: int) -> list[int]:
    """The channels that an operation keeps busy between the sites of `rank` and each peer."""
    sizes = Counter(site_of_rank)
    return [max(sizes[site_of_rank[rank]], sizes[site]) for site in site_of_rank]


Kind = TypeVar("Kind")


def from_record(kind: type[Kind], record: Mapping[str, Any]) -> Kind:
    """The dataclass `kind` of what another rank told. What it has no field for is left out, so that ranks of different
    versions can read each other's versions and say what is wrong. Raises VersionMismatchError where it has not all that
    is needed."""
    try:
        return kind(**{name: record[name] for name in field_names(kind) if name in record})
    except TypeError as error:
        from geocomm.core.errors import VersionMismatchError

        raise VersionMismatchError(
            f"a rank runs another version of geocomm, whose records this one cannot read ({error}): install the same "
            "version on all ranks"
        ) from None


def field_names(kind: type) -> list[str]:
    """The names of a dataclass's fields, in their order."""
    return [field.name for field in dataclasses.fields(kind)]


def layout_of(*kinds: type) -> str:
    """A short text that differs between dataclasses with different fields."""
    text = ";".join(",".join(field_names(kind)) for kind in kinds)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
