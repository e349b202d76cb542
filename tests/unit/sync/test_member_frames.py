"""What a rank of an elastic run keeps of frames and states, and when it lets go of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from geocomm.core.errors import CorruptDataError
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import Added, Listed, Round, Skip, Snapshot
from geocomm.elastic.journal.member import Frame
from geocomm.elastic.journal.messages import Check, Offer, Open, Owner, Peer, Sum
from geocomm.metrics.events import EventReader, events
from geocomm.sync.local_steps.elastic.member_frames import Delta, MemberFrames, OwnFrame
from geocomm.sync.local_steps.elastic.member_records import MemberRecords
from geocomm.sync.local_steps.elastic.member_states import MemberStates
from geocomm.sync.local_steps.model.fragments import Fragment, Range
from geocomm.sync.local_steps.outer.round_records import ROUNDS, RoundRecord
from geocomm.sync.local_steps.outer.rounds import Coding
from geocomm.sync.local_steps.outer.schedule import LineClock

FRAGMENT = Fragment(0, (Range("matrix", 0, 64),))
HEAD: dict[str, Any] = {"index": 9, "prev": "0" * 64, "term": 0}


def frames_of(store: FragmentStore) -> MemberFrames:
    return MemberFrames("a", store, {0: FRAGMENT}, Coding("none", 1.0, "mean"), LineClock())


def offer_of(frames: MemberFrames, value: float, version: int) -> Offer:
    own = OwnFrame(5, 8, 20, None, torch.full((64,), value), 0)
    delta = Delta(torch.full((64,), value), None, 4, own, 8, 1.0, 0.1, 0)
    return frames.make(Open(fragment=0, version=version, attempt=0, peers=()), delta, RoundRecord.unread())


def round_of(*offers: tuple[str, Offer]) -> Round:
    members = tuple(
        Listed(
            site=site, frame=one.frame, coded_bytes=one.coded_bytes, exact_bytes=one.exact_bytes, weight=one.weight,
            step=one.step, squared_norm=one.squared_norm, lr=one.lr,
        )
        for site, one in offers
    )  # fmt: skip
    return Round(**HEAD, fragment=0, version=offers[0][1].version, members=members, every=0, base=None)


def test_frame_lies_on_disk_once_it_is_made_and_is_averaged_from_there(tmp_path: Path) -> None:
    store = FragmentStore(str(tmp_path))
    frames = frames_of(store)
    own = offer_of(frames, 1.0, 3)
    assert store.has_frame(0, 3, "a", own.frame)
    at_b = frames_of(FragmentStore(str(tmp_path / "b")))
    other = offer_of(at_b, 3.0, 3)
    assert frames.keep(0, 3, "b", at_b.content(Frame(0, 3, "a", other.frame))) == other.frame
    for reader in (frames, frames_of(store)):  # another one has nothing in memory
        average, counted = reader.average(round_of(("a", own), ("b", other)), RoundRecord.unread())
        assert average is not None
        assert torch.equal(average, torch.full((64,), 2.0))
        assert counted == ["a", "b"]


def test_another_site_finds_the_hash_of_an_average_and_that_of_other_frames_is_another_one(tmp_path: Path) -> None:
    sites = [frames_of(FragmentStore(str(tmp_path / name))) for name in "ab"]
    listed = round_of(("a", offer_of(sites[0], 1.0, 3)), ("b", offer_of(sites[0], 3.0, 3))).members
    members = tuple(Added.of(one, one.site, one.weight) for one in listed)
    for one in members:
        for site in sites:
            site.keep(0, 3, one.site, sites[0].content(Frame(0, 3, "a", one.frame)))
    asked: dict[str, Any] = {"fragment": 0, "version": 3, "attempt": 4}
    made = sites[0].make_sum(Sum(**asked, members=members), RoundRecord.unread())
    assert sites[1].sum_hash(Check(**asked, members=members)) == made.frame
    assert sites[1].sum_hash(Check(**asked, members=members[:1])) != made.frame
    gone = members[0].model_copy(update={"site": "c"})
    with pytest.raises(FileNotFoundError):
        sites[1].sum_hash(Check(**asked, members=(gone,)))


def test_bytes_that_are_no_delta_count_nothing(tmp_path: Path) -> None:
    frames = frames_of(FragmentStore(str(tmp_path)))
    own = offer_of(frames, float("nan"), 0)
    assert frames.average(round_of(("a", own)), RoundRecord.unread()) == (None, [])


def test_own_frames_of_equal_bytes_are_told_apart_and_forgotten_with_their_round(tmp_path: Path) -> None:
    frames = frames_of(FragmentStore(str(tmp_path)))
    earlier, later = (offer_of(frames, 1.0, version) for version in (0, 1))
    assert earlier.frame == later.frame
    assert [fragment for fragment, _ in frames.kept_weights()] == [0, 0]
    frames.forget(0, 0)
    assert frames.own(earlier) is None
    kept = frames.own(later)
    assert kept is not None
    assert (kept.weight, kept.wire_bytes) == (5, later.coded_bytes + later.exact_bytes)
    frames.forget(0, 1)
    assert frames.kept_weights() == []


def test_state_is_wanted_once_for_who_joins_and_at_its_version_for_a_snapshot(tmp_path: Path) -> None:
    states = MemberStates(FragmentStore(str(tmp_path)), [0, 2])
    assert not states.wants(0, 5)
    states.joined()
    assert [states.wants(0, 5), states.wants(0, 5), states.wants(2, 5)] == [True, False, True]
    states.take_snapshot(Snapshot(**HEAD, versions=(7, 7, 8), state="0" * 64))
    assert [states.wants(0, 6), states.wants(0, 7), states.wants(0, 7), states.wants(2, 8)] == [
        False,
        True,
        False,
        True,
    ]
    part = torch.ones(4)
    states.keep(0, 6, [part, part])
    states.keep(0, 7, [part, part])
    assert torch.equal(states.read(0, 7, 8), torch.ones(8))
    with pytest.raises(CorruptDataError, match="remove the file"):
        states.read(0, 7, 4)


def test_snapshot_has_states_that_were_written_before_it_was_asked_for(tmp_path: Path) -> None:
    store = FragmentStore(str(tmp_path))
    states, part = MemberStates(store, [0]), torch.ones(4)
    for version in (5, 6, 7):  # as each round of a tiny model does
        states.keep(0, version, [part])
    states.take_snapshot(Snapshot(**HEAD, versions=(7,), state="0" * 64))
    assert states.wants(0, 7)
    states.keep(0, 7, [part])
    states.keep(0, 7, [part])
    assert (store.files.snapshot(HEAD["index"]) / "0@7.state").exists()
    assert store.latest_state(0) == 7


def test_a_snapshot_whose_state_was_passed_over_or_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    store, told = FragmentStore(str(tmp_path)), EventReader(events)
    told.take()
    states, part = MemberStates(store, [0, 1]), torch.ones(4)
    states.take_snapshot(Snapshot(**HEAD, versions=(7, 9), state="0" * 64))
    states.passed(0, 7)
    assert not [one for one in told.take() if one.kind == "snapshot_lost"]
    states.passed(0, 8)
    (tmp_path / "snapshots").write_text("in the way")
    with pytest.raises(OSError, match="snapshots"):
        states.keep(1, 9, [part])
    lost = [one.fields for one in told.take() if one.kind == "snapshot_lost"]
    assert [(one["snapshot"], one["fragment"]) for one in lost] == [(HEAD["index"], 0), (HEAD["index"], 1)]
    assert "later state" in lost[0]["reason"]


def test_record_of_a_round_takes_no_arrival_after_its_average_and_ends_when_it_is_applied() -> None:
    before = max((row["number"] for row in ROUNDS.read(0)), default=0)
    versions = {0: 3}
    records = MemberRecords("a", lambda fragment, version: version < versions.get(fragment, version + 1))
    owner = Owner(id="1" * 32, host="127.0.0.1", port=1)
    peers = tuple(
        Peer(site=site, owners=owners, fetch="") for site, owners in (("a", (owner,)), ("b", (owner,)), ("c", ()))
    )
    records.opened(Open(fragment=0, version=3, attempt=0, peers=peers))
    records.arrived(0, 3, "b", 100)
    record = records.of(0, 3)
    record.averaged()
    records.arrived(0, 3, "b")  # the agent has fetched it, too
    (row,) = ROUNDS.read(before)
    (peer,) = row["peers"]
    assert (peer["site"], peer["bytes"]) == ("b", 100)
    assert peer["arrived_ns"] <= row["averaged_ns"]
    versions[0] = 4
    records.applied(0, 3, 4)
    records.arrived(0, 3, "b", 100)
    records.decided(Skip(**HEAD, fragment=1, version=9, why="of another rank"))
    records.of(0, 3).fail()
    (row,) = ROUNDS.read(before)
    assert not row["failed"]
