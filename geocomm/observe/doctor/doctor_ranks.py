"""The part of `geocomm doctor` that compares all ranks of a job."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.options import Options, listen_port
from geocomm.core.place import find_place
from geocomm.group.membership.job_store import Rendezvous
from geocomm.group.membership.one_site import Scope, check_one_site, own_presence
from geocomm.group.membership.own_address import advertised
from geocomm.group.membership.rank_record import Presence, from_record, own_versions, ranks_text
from geocomm.group.membership.roll_call import differences
from geocomm.observe.doctor.doctor_machine import Finding, State, usable_congestion_control
from geocomm.observe.doctor.doctor_network import Answerer, peer_findings
from geocomm.observe.doctor.examination import Examination, examine, versions


@dataclass(frozen=True)
class RankRecord:
    """What a rank tells the others: where it is, what it has, and the address of its Answerer."""

    rank: int
    local_rank: int
    site: str
    hosts: list[str]
    """In the order to be dialled."""
    port: int
    needed: dict[str, str]
    """Facts (name: value) without whose equality no job starts."""
    others: dict[str, str]
    """Facts whose difference is a warning."""
    outbound_only: bool = False
    """Other sites cannot dial it."""
    presence: dict[str, Any] = field(default_factory=dict[str, Any])
    """The fields of a topology.Presence."""

    @property
    def facts(self) -> dict[str, str]:
        return self.needed | self.others


def examine_job(question: Examination, timeout_s: float) -> list[Finding] | None:
    """All ranks' part; what there is to print at rank 0, else None. Raises GeocommError."""
    place = find_place(os.environ)
    own_findings = list(examine(question))
    with _answerer(question.options) as answerer:
        needed = own_versions() | {"site set": "yes" if question.options.site is not None else "no"}
        needed |= {f"option {name}": str(value) for name, value in question.options.agreed().items()}
        others = versions() | {"congestion control": usable_congestion_control()}
        others["build of torch"] = others.pop("torch")
        hosts = advertised(question.options.address)
        outbound = question.options.outbound_only
        presence = vars(own_presence(place.rank, question.options, hosts[0]))
        own = RankRecord(
            place.rank, place.local_rank, place.site, hosts, answerer.port, needed, others, outbound, presence
        )
        rendezvous = Rendezvous(place, timeout_s)
        records = [from_record(RankRecord, record) for record in rendezvous.exchange(vars(own))]
        own_findings += way_findings(own, records)
        found = rendezvous.exchange({"findings": [vars(finding) for finding in own_findings]}, "findings")
    rendezvous.linger()
    if place.rank != 0:
        return None
    return [
        *difference_findings(records),
        *outbound_findings(records),
        *site_findings(records),
        *gathered_findings(records, [each["findings"] for each in found]),
    ]


def _answerer(options: Options) -> Answerer:
    """Listen at the rank's own port, so that firewalls are tried; at any port if that one is taken."""
    try:
        return Answerer(port=listen_port(options))
    except OSError:
        return Answerer()


def difference_findings(records: list[RankRecord]) -> Iterator[Finding]:
    """One finding for each fact: all alike, or who differs from the most."""
    names = list(dict.fromkeys(name for record in records for name in record.facts))
    facts = [{name: record.facts.get(name, "") for name in names} for record in records]
    different = {difference.name: difference for difference in differences(facts)}
    for name in names:
        difference = different.get(name)
        if difference is None:
            yield Finding(f"all alike: {name}", facts[0][name] or "none", State.OK)
            continue
        usual = difference.usual
        others = "; ".join(
            f"{_who([records[number] for number in numbers])}: {value or 'none'}"
            for value, numbers in difference.sides
            if value != usual
        )
        state = State.BAD if any(name in record.needed for record in records) else State.WARNING
        value = f"{usual or 'none'}, but {others}"
        yield Finding(f"not alike: {name}", value, state, f"make {name} the same on all ranks")


def _who(records: list[RankRecord]) -> str:
    sites = ", ".join(dict.fromkeys(record.site for record in records))
    return f"{ranks_text([record.rank for record in records])} (site {sites})"


def place_peers(own: RankRecord, records: list[RankRecord]) -> list[RankRecord]:
    """The ranks that `own` will exchange data with: those of its place at every other site."""
    return [other for other in records if other.site != own.site and other.local_rank == own.local_rank]


def way_findings(own: RankRecord, records: list[RankRecord]) -> Iterator[Finding]:
    """Findings on the ways from `own` to the peers that it will exchange data with, as far as it can dial them."""
    for other in place_peers(own, records):
        name = f"to rank {other.rank} (site {other.site}, {other.hosts[0]})"
        if other.outbound_only:
            value = "not tried: that site only dials out, and looks at this way itself"
            yield Finding(f"{name}: reached", value, State.NOTE)
        else:
            yield from peer_findings(name, ",".join(other.hosts), other.port)


def outbound_findings(records: list[RankRecord]) -> Iterator[Finding]:
    """Whether some of two sites that have to meet cannot be dialled by the other."""
    sites = sorted({record.site for record in records if record.outbound_only})
    if len({record.site for record in records}) < 2 or not sites:
        return
    if len(sites) > 1:
        fix = "one site of a job can be so; let the others be dialled: GEOCOMM_PORT, GEOCOMM_ADDRESS, forwarded ports"
        yield Finding("sites that only dial out", f"{', '.join(sites)}: they cannot connect", State.BAD, fix)
    else:
        yield Finding("site that only dials out", f"{sites[0]}: it dials all others", State.OK)


def site_findings(records: list[RankRecord]) -> Iterator[Finding]:
    """Which machines make up each site, between which everything is plaintext, and whether a job may be one site."""
    ranks = [from_record(Presence, record.presence) for record in records if record.presence]
    for site in dict.fromkeys(rank.site for rank in ranks):
        machines = {rank.machine: rank.machine_name for rank in ranks if rank.site == site}
        if len(machines) > 1:
            value = f"{', '.join(machines.values())}: plaintext between them"
            yield Finding(f"machines of site {site}" if site else "machines", value, State.NOTE)
    try:
        text, state = check_one_site(ranks, Scope.JOB), State.WARNING
    except InvalidArgumentError as error:
        text, state = str(error), State.BAD
    if text:
        found, _, fix = text.partition(". ")
        yield Finding("sites", found, state, fix)


def gathered_findings(records: list[RankRecord], found: list[list[dict[str, Any]]]) -> Iterator[Finding]:
    """What is wrong, and ways to peers, among what every rank found (`found`, by rank); equal findings come once."""
    ranks_of: dict[Finding, list[int]] = defaultdict(list)
    for record, findings in zip(records, found, strict=True):
        for finding in findings:
            ranks_of[Finding(**finding | {"state": State(finding["state"])})].append(record.rank)
    for finding, ranks in ranks_of.items():
        if finding.state in (State.WARNING, State.BAD) or finding.name.startswith("to "):
            yield Finding(f"{ranks_text(ranks)}: {finding.name}", finding.value, finding.state, finding.fix)
