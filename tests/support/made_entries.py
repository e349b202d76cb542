"""The journal of a run, as a leader writes it: tests of what is done with entries take them from here."""

from __future__ import annotations

from geocomm.data.deal_records import DealtSet
from geocomm.elastic.journal.entries import AnyRound, Entry, Snapshot
from geocomm.elastic.journal.messages import Applied, Beat, Lost, Model, Open, SnapshotHeld
from geocomm.elastic.journal.sequencer_events import DataRead, Ended, LeaderSettings
from support.led_sequencer import MODEL, EndlessShards, Led

SETTINGS = LeaderSettings(
    snapshot_s=20.0,
    lost_s=20.0,
    data=DealtSet(set="made", sequence_length=10),
    doubt_s=10.0,
    ahead_s=10.0,
)
_TOKENS = 60
"""That a site reads in a cycle."""


def made_entries(cycles: int = 12, model: Model = MODEL) -> tuple[Entry, ...]:
    """Of a run of sites a, b and c, and a round of each fragment in each cycle. Of six cycles, c is away for two, and
    what was dealt to it is dealt to others; one has a round that becomes void. Snapshots are kept. Equal arguments make
    equal entries."""
    run = Led(SETTINGS, model=model)
    run.on(DataRead(EndlessShards()))
    run.take_part("abc").wait(1, "abc")
    for cycle in range(cycles):
        if cycle % 6 == 2:
            run.on(Ended("c"))
            run.wait(SETTINGS.doubt_s + 4, "ab")
        if cycle % 6 == 4:
            run.take_part("c").wait(1, "abc")
        _cycle(run, "ab" if cycle % 6 in (2, 3) else "abc")
        if cycle % 6 == 1:
            _lose_frame(run)
        _keep_snapshots(run)
    return tuple(run.entries)


def _cycle(run: Led, sites: str) -> None:
    """A round of each fragment, which lists all of these sites: each has read on behind what counts."""
    state = run.sequencer.state
    tokens = {site: state.sites[site].taken + _TOKENS for site in sites}
    for site in sites:
        run.say(site, Beat(step=0, tokens=tokens[site], step_s=0.1, line_s=0, free_bytes=0))
    for fragment in range(len(state.versions)):
        run.due(sites[0], fragment)
        attempt = [one.attempt for one in run.messages(Open) if one.fragment == fragment][-1]
        for site in sites:
            run.offer(site, sites.replace(site, ""), fragment=fragment, attempt=attempt, taken=tokens[site])
        assert run.last_members == sites
    run.wait(5, sites)


def _lose_frame(run: Led) -> None:
    """Nobody has a frame of the last round: it is void. And all apply the next one."""
    listed = next(entry for entry in reversed(run.entries) if isinstance(entry, AnyRound))
    lost = Lost(
        fragment=listed.fragment, version=listed.version, site=listed.members[0].site, frame=listed.members[0].frame
    )
    while run.entries[-1].kind != "skip":
        run.say("b", lost)
        run.wait(2, "abc")
    version = listed.version + 1
    for site in "abc":
        run.say(site, Applied(fragment=listed.fragment, version=version, digest=f"{version:032x}"))


def _keep_snapshots(run: Led) -> None:
    for entry in [*run.entries]:
        if isinstance(entry, Snapshot):
            for site in "ab":
                run.say(site, SnapshotHeld(snapshot=entry.index, digest=f"{entry.index:032x}"))
