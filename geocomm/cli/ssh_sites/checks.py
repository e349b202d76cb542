"""Before the start: the sites' keys here, and what the nodes' answers say against a start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from geocomm._version import __version__
from geocomm.cli.ssh_sites.sites_file import Node, SitesFile, in_sites_file
from geocomm.cli.ssh_sites.ssh import Done
from geocomm.security.job_ca import CA_KEY_FILE, JobCa
from geocomm.security.key_folder import CA_FILE, CERTIFICATE_FILE, Keys, KeysError, certificate_fault

_DAYS = 365
_NEEDED_BYTES = 16 << 20
"""On the disk of a node, besides the script's folder."""


class Facts(BaseModel):
    """What `facts.py` said."""

    now: Annotated[float, Field(ge=0, le=1e11)]
    """Unix seconds there."""
    python: str
    problem: str
    """Why geocomm or torch is not there; empty: they are."""
    hub_here: bool
    geocomm: str = ""
    torch: str = ""
    free_bytes: Annotated[int, Field(ge=0)]
    writable: bool
    rsync: bool
    lacks: list[str]
    running: bool
    ca: str = ""
    """SHA-256 of the certificate authority's file in the folder of the run."""
    skew_s: float = 0.0
    """How far that clock is before the one here."""


class SiteFinding(BaseModel):
    """What `geocomm doctor --json` says of one thing."""

    name: str
    value: Any
    state: str
    fix: str


_FINDINGS = TypeAdapter(list[SiteFinding])


def make_keys(sites: SitesFile) -> dict[str, Path]:
    """Each site's folder of keys, made where it is not there. KeysError, OSError."""
    folders = {name: sites.keys / name for name in sites.sites}
    missing = [name for name, folder in folders.items() if not (folder / CERTIFICATE_FILE).exists()]
    if missing and (sites.keys / CA_KEY_FILE).exists():
        ca = JobCa.open(sites.keys)
        for name in missing:
            ca.add(name, _DAYS)
    elif len(missing) == len(folders):
        JobCa.create(sites.keys, sites.job, missing, _DAYS)
    elif missing:
        raise KeysError(
            f"{sites.keys} has no keys of {', '.join(missing)}, and no {CA_KEY_FILE} to make them: name with keys = "
            "the folder that geocomm keys create made"
        )
    for name, folder in folders.items():
        if (own := Keys.load(folder).identity.site) != name:
            raise KeysError(f"{folder} has the keys of site {own}")
    return folders


def read_facts(node: Node, done: Done, before: float, after: float) -> Facts | str:
    """The facts; or why there are none. before, after: when they were asked for, in Unix seconds."""
    try:
        facts = Facts.model_validate_json(done.out.strip().splitlines()[-1])
    except (IndexError, ValidationError):
        said = (done.err.strip().splitlines() or ["nothing"])[-1]
        return (
            f"its Python does not run as {node.site.python!r} ({said}). Name the one that has geocomm "
            f"{in_sites_file('python')}"
        )
    return facts.model_copy(update={"skew_s": facts.now - (before + after) / 2})


def against_start(node: Node, facts: Facts, keys: Path, code_bytes: int) -> list[str]:
    """What keeps a node from a run, each with what to do."""
    found: list[str] = []
    python = node.site.python
    if facts.running:
        found.append("a run goes on there. geocomm up --attach shows it, geocomm down ends it")
    elif facts.ca not in ("", hashlib.sha256((keys / CA_FILE).read_bytes()).hexdigest()):
        found.append(
            f"its keys in {node.folder}/keys are of another certificate authority than those in {keys.parent}. Name "
            f"the folder of keys that the last start used {in_sites_file('keys')}. Or, for new keys, remove "
            f"{node.folder}/keys there"
        )
    if facts.problem:
        found.append(
            f"{python} (Python {facts.python}) lacks geocomm or torch ({facts.problem}). Install geocomm "
            f"{__version__} there, or name another Python {in_sites_file('python')}"
        )
    elif facts.geocomm != __version__:
        found.append(f"{python} has geocomm {facts.geocomm}, this machine {__version__}. Install the same at both")
    if facts.lacks:
        found.append(f"it lacks {', '.join(facts.lacks)}: install util-linux, coreutils and tar there")
    if not facts.writable:
        found.append(f"{node.folder} may not be written. Name another folder {in_sites_file('folder')}")
    if facts.free_bytes < code_bytes + _NEEDED_BYTES:
        found.append(
            f"its disk is full: {facts.free_bytes >> 20} MiB are free for {node.folder}, "
            f"{(code_bytes + _NEEDED_BYTES) >> 20} are needed. Free some, or name another one {in_sites_file('folder')}"
        )
    if wrong := certificate_fault(keys, facts.now):
        found.append(
            f"its clock is {facts.skew_s:+.0f} s off this machine's, and its certificate {wrong}. Set both clocks: "
            "timedatectl set-ntp true"
        )
    return found


def against_each_other(facts: Mapping[Node, Facts]) -> list[str]:
    """What keeps nodes from a run with each other."""
    minors = {node: ".".join(each.torch.split(".")[:2]) for node, each in facts.items() if each.torch}
    if len(set(minors.values())) <= 1:
        return []
    told = ", ".join(f"{minor} at {node}" for node, minor in minors.items())
    return [f"all sites need the same torch, up to the second number: it is {told}"]


def hub_node(sites: SitesFile, facts: Mapping[Node, Facts]) -> Node | str:
    """The node at which the hub will be; or why there is none."""
    told = [node for node in facts if node.site.listen and node.rank_in_site == 0]
    here = told or [node for node in facts if facts[node].hub_here]
    if len(here) == 1:
        return here[0]
    if here:
        names = " and ".join(map(str, here))
        return (
            f"hub: {names} both have the address {sites.hub}. Say at which site the hub is, there "
            f"{in_sites_file('listen')}"
        )
    return (
        f"hub: no machine of sites.toml has the address {sites.hub}. Name an address of one of them that all others "
        f"reach; behind a translated address, say at its site {in_sites_file('listen')}"
    )


def bad_findings(done: Done) -> list[str]:
    """What `geocomm doctor --json` found bad, each with its fix."""
    try:
        findings = _FINDINGS.validate_json(done.out[done.out.index("[\n") :])  # after a greeting
    except ValueError:  # a ValidationError is one
        said = (done.err.strip().splitlines() or [f"nothing, and ended with status {done.status}"])[-1]
        return [f"geocomm doctor says: {said}"]
    return [f"{one.name}: {one.value}. {one.fix}" for one in findings if one.state == "bad"]
