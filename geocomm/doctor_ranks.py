"""The part of `geocomm doctor` that compares all ranks of a job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from geocomm.finding import Finding, State
from geocomm.topology import ranks_text


@dataclass(frozen=True)
class Record:
    """What a rank tells the others: where it is, what it has, and the address of its Answerer."""

    rank: int
    local_rank: int
    site: str
    host: str
    port: int
    needed: dict[str, str]
    """Facts (name: value) without whose equality no job starts."""
    others: dict[str, str]
    """Facts whose difference is a warning."""

    @property
    def facts(self) -> dict[str, str]:
        return self.needed | self.others


def difference_findings(records: list[Record]) -> Iterator[Finding]:
    """One finding for each fact: all alike, or who differs from the most."""
    for name in dict.fromkeys(name for record in records for name in record.facts):
        ranks_with: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            ranks_with[record.facts.get(name, "")].append(record)
        usual = Counter(record.facts.get(name, "") for record in records).most_common(1)[0][0]
        if len(ranks_with) == 1:
            yield Finding(f"all alike: {name}", usual or "none", State.OK)
            continue
        others = "; ".join(f"{_who(found)}: {value or 'none'}" for value, found in ranks_with.items() if value != usual)
        state = State.BAD if any(name in record.needed for record in records) else State.WARNING
        value = f"{usual or 'none'}, but {others}"
        yield Finding(f"not alike: {name}", value, state, f"make {name} the same on all ranks")


def _who(records: list[Record]) -> str:
    sites = ", ".join(dict.fromkeys(record.site for record in records))
    return f"{ranks_text([record.rank for record in records])} (site {sites})"


def lane_peers(own: Record, records: list[Record]) -> list[Record]:
    """The ranks that `own` will exchange data with: those of its place at every other site."""
    return [other for other in records if other.site != own.site and other.local_rank == own.local_rank]


def gathered_findings(records: list[Record], found: list[list[dict[str, Any]]]) -> Iterator[Finding]:
    """Of what every rank found (`found`, by rank): what is not right, and ways to peers. Equal ones come once."""
    ranks_of: dict[Finding, list[int]] = defaultdict(list)
    for record, findings in zip(records, found, strict=True):
        for finding in findings:
            ranks_of[Finding(**finding | {"state": State(finding["state"])})].append(record.rank)
    for finding, ranks in ranks_of.items():
        if finding.state in (State.WARNING, State.BAD) or finding.name.startswith("to "):
            yield Finding(f"{ranks_text(ranks)}: {finding.name}", finding.value, finding.state, finding.fix)
