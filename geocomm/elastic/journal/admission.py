"""Whom the leader takes in: what it knows of a site beside the journal, the reasons to refuse one, and whom it has
refused for a journal that does not fit its own: it may have lost that, or not be the only one that leads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import Genesis
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES
from geocomm.elastic.journal.messages import PROTOCOL_VERSION, Beat, Hello, Model, Owner, RanksUp, Refused
from geocomm.elastic.journal.run_state import RunState, Standing

MOST_COMINGS, COMINGS_S = 30, 60.0
"""How often in which time a site may join, be ready or have other ranks: all others do something each time."""


@dataclass
class LedSite:
    """What the leader knows of a site beside the journal."""

    connected: bool = False
    welcomed: bool = False
    """Hello was said over this connection, and taken."""
    changed: float = 0.0
    """When the connection came or ended."""
    heard: float = 0.0
    """The time of its last Beat, or of the Hello."""
    store: str = ""
    process: str = ""
    """The name of its agent's process, which changes at each start."""
    rival: tuple[str, float] = ("", 0.0)
    """Another process under its name that has come meanwhile, and when first."""
    closed_for: str = ""
    """Why its last connection was ended, for as long as that has not changed."""
    ranks: bool = True
    """False: it follows the journal to lead once nobody does, and is no member."""
    fetch: str = ""
    owners: tuple[Owner, ...] = ()
    has_ranks: bool = False
    """They were said to be up over this connection."""
    repairs: tuple[tuple[Owner, ...], frozenset[int]] = (), frozenset()
    """The ranks that were told to repair, and the fragments: others in their place have done so."""
    gone_for: str = ""
    """Why there are none, as the site has said over this connection."""
    beat: Beat | None = None
    head: int = -1
    """The last entry that its journal has, as it said last; it may be away since."""
    leaving: float | None = None
    finished: bool = False
    """It leaves since it has trained to its end."""
    late: bool = False
    """It missed the last round: nobody waits for it."""
    goals: tuple[int, ...] = ()
    """The versions of all fragments when its Hello was taken."""
    applied: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment: the version that its ranks have at least, so that it can give away frames or a state."""
    comings: list[float] = field(default_factory=list[float])
    """When it did within the last COMINGS_S."""
    missed: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment: rounds since its offer last counted, or was waited for in vain."""

    def has_to_repair(self, fragment: int) -> None:
        """Its ranks are told so."""
        ranks, fragments = self.repairs
        self.repairs = self.owners, (fragments if ranks == self.owners else frozenset[int]()) | {fragment}

    def waits(self, standing: Standing) -> str:
        """What a site that is connected waits for, where it is not ready; empty: it is ready, or not connected."""
        if not self.connected or standing not in (Standing.JOINING, Standing.AWAY):
            return ""
        return "its ranks catch up with the run" if self.has_ranks else self.gone_for or "its ranks start"


_GONE = (Standing.LEFT, Standing.REMOVED)


def members_of(state: RunState) -> list[str]:
    """The run's member list, as its journal says it: an entry is committed once most of these hold it."""
    return sorted(name for name, site in state.sites.items() if site.standing not in _GONE)


def are_most(some: Collection[str], members: Collection[str]) -> bool:
    """Whether these are most of the members. A leader needs them to make the list longer, and a site to be promoted: so
    no two sides have most of the list that each of them knows."""
    return 2 * len(set(some).intersection(members)) > len(members)


def holders(sites: Mapping[str, LedSite], index: int) -> list[str]:
    """The sites whose journals have this entry, as they said last."""
    return [name for name, site in sites.items() if site.head >= index]


def first_to_send(state: RunState, hello: Hello) -> int:
    """The index of the first entry that a site lacks, or has another one of.

    A chain that ends outside the leader's is that of a leader before: it fits up to where the next one took over.
    """
    if hello.run is None:
        return 0
    later = [index for term, index in state.terms.items() if term > hello.term]
    return min([hello.head + 1, *later])


def has_room(sites: Mapping[str, LedSite], name: str, ranks: RanksUp) -> bool:
    """Whether an Open can name these ranks of a site too, beside those of all others."""
    owners = [one.owners for other, one in sites.items() if other != name] + [ranks.owners]
    return sum(len(line_of(owner)) for some in owners for owner in some) <= MAX_LINE_BYTES // 2


def refusal(state: RunState, sites: Mapping[str, LedSite], name: str, hello: Hello) -> str:
    """Why the site is not taken in; empty: it is."""
    known = state.sites.get(name)
    twins = [
        other
        for other, one in sites.items()
        if other != name and one.store == hello.store and _is_member(state, other, one)
    ]
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"protocol: {name} speaks {hello.protocol} (geocomm {hello.geocomm}), the leader {PROTOCOL_VERSION}; "
            "install the same version of geocomm at all sites"
        )
    if state.ended and (known is None or known.store != hello.store):
        return "the run has ended: start with an empty run folder at every site"
    if known is not None and known.standing is Standing.REMOVED:
        return f"{name} was removed from the run: {known.why}"
    if twins:
        return f"{name} has the run folder of {twins[0]} (store {hello.store[:12]}): a copy. Give it an empty folder"
    return ""


def _is_member(state: RunState, name: str, site: LedSite) -> bool:
    """Whether a run folder is that site's, also while its line is down."""
    known = state.sites.get(name)
    return site.connected if known is None else known.standing not in _GONE


def turned_away(site: LedSite, name: str, hello: Hello, now: float, silent_s: float, *, live: bool) -> Refused | None:
    """Why another machine may not take the place of a site's that is there; None: it may, or is the same.

    The one that is there may be lost, and not yet be missed: so a newcomer waits, until that one is heard again, or is
    gone. live: it counts.
    """
    there = site.connected and site.welcomed and now - site.heard < silent_s
    is_copy = site.store == hello.store
    if site.store == "" or (is_copy and site.process in ("", hello.process)):
        return None
    if not there and (is_copy or not live):  # its agent has started again, or another machine has come for good
        return None
    if site.rival[0] != hello.process:
        site.rival = (hello.process, now)
    if there and site.heard > site.rival[1]:
        site.rival = ("", 0.0)
        folder = "both have a copy of one run folder" if is_copy else "each has a run folder"
        return Refused(
            why=f"two machines call themselves {name}: {folder} ({site.store[:12]} is that of the one that is there, "
            f"{hello.store[:12]} this one's). Give each site a name, keys and an empty run folder of its own"
        )
    return Refused(
        why=f"{name} is there already, with the run folder {site.store[:12]}; this one's is {hello.store[:12]}, and "
        "has its place once that one is away",
        blames="leader",
    )


def supersedes(state: RunState, hello: Hello) -> bool:
    """Whether the site follows a higher term of this run than the leader's: another one leads."""
    return state.genesis is not None and hello.run == state.genesis.run and hello.term > state.term


def other_chain(state: RunState, hash_at: Callable[[int], str | None], name: str, hello: Hello) -> Refused | None:
    """What to say to the site where its journal is not of this leader's run, or is ahead of it; None: it is not."""
    if hello.run is None:
        return None
    if state.genesis is None:
        return Refused(
            why=f"run: {name} has the journal of run {hello.run[:12]}, the leader has none, and begins none: if the "
            f"leader lost its run folder, run geocomm members promote at {name}; for a new run, start {name} with an "
            "empty folder",
            blames="leader",
        )
    if hello.run != state.genesis.run:
        return Refused(
            why=f"run: {name} has the journal of run {hello.run[:12]}, the leader that of {state.genesis.run[:12]}",
            blames="run",
        )
    if supersedes(state, hello):
        return Refused(
            why=f"term: {name} follows term {hello.term}, and this leader has {state.term}: another one leads",
            blames="leader",
        )
    if hello.term == state.term and hello.head > state.head.index:
        return Refused(
            why=f"journal: {name} has {hello.head + 1} entries, the leader {state.head.index + 1}: the leader has "
            "an older copy. Promote a site that has more (geocomm members promote)",
            blames="leader",
        )
    if hello.term == state.term and hash_at(hello.head) not in (None, hello.head_hash):
        return Refused(
            why=f"journal: entry {hello.head} of {name} is not the leader's, though both are of term "
            f"{state.term}: two sites were promoted with --force at once. When their leaders meet, one gives way; if "
            "one is gone for good, run geocomm members promote --force at the other",
            blames="leader",
        )
    return None


def difference(genesis: Genesis, model: Model, name: str) -> str:
    """The first thing in which a site's model is not the run's; empty: none."""
    pairs: dict[str, tuple[object, object]] = {
        key: (model.settings.get(key), genesis.settings.get(key))
        for key in sorted({*genesis.settings, *model.settings})
    }
    pairs["layout"] = (model.layout, genesis.layout)
    pairs["fragments"] = (model.fragments, genesis.fragments)
    pairs["every"] = (model.every, genesis.every)
    for key, (here, there) in pairs.items():
        if here != there:
            return f"{key}: {name} has {here}, the run has {there}"
    return ""


REMEMBERED_S = 60.0
"""Such a site dials again every second or so: one that has not for this time has gone."""


@dataclass
class _Seen:
    refused: Refused
    at: float
    times: int = 1


class ForeignJournals:
    """What the leader has told those that it refused for theirs."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def told(self, name: str, refused: Refused, now: float) -> None:
        """A site is refused for its journal."""
        before = self._seen.get(name)
        self._seen[name] = _Seen(refused, now, 1 if before is None else before.times + 1)

    def taken_in(self, name: str) -> None:
        """Forget what was said of a site: its journal fits now."""
        self._seen.pop(name, None)

    def there(self, now: float) -> bool:
        """Whether such a site is there."""
        self._seen = {name: one for name, one in self._seen.items() if now - one.at < REMEMBERED_S}
        return bool(self._seen)

    def doubt(self, now: float) -> tuple[str, ...]:
        """Why the leader may not be the run's, one text a site; none: it is. Who came once with the journal of another
        run has begun with the wrong folder, and has ended."""
        if not self.there(now):
            return ()
        seen = [one for _, one in sorted(self._seen.items()) if one.refused.blames != "run" or one.times > 1]
        return tuple(one.refused.why for one in seen)
