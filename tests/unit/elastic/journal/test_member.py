"""A rank's part in rounds, call by call."""

from __future__ import annotations

import pytest

from geocomm.elastic.journal.entries import Entry, Listed, Round, Skip
from geocomm.elastic.journal.member import MOST_OWN_FRAMES, Act, Member, Recompute, Say, SendFrame, StartAgain
from geocomm.elastic.journal.messages import (
    Applied,
    Due,
    EntrySaid,
    Fetched,
    Hold,
    Need,
    Offer,
    Open,
    Owner,
    Pass,
    Peer,
    RankWelcome,
    Repair,
    TakeState,
    Up,
    Welcome,
)

DIGEST = "1" * 32


def peer(site: str, process: str = "0") -> Peer:
    return Peer(site=site, owners=(Owner(id=process * 32, host=site, port=1),), fetch="")


def opened(version: int = 0, attempt: int = 0, peers: str = "abc") -> Open:
    return Open(fragment=0, version=version, attempt=attempt, peers=tuple(peer(site) for site in peers))


def offer(name: str, version: int = 0, attempt: int = 0) -> Offer:
    return Offer(
        fragment=0,
        version=version,
        attempt=attempt,
        frame=name * 64,
        coded_bytes=8,
        exact_bytes=1,
        weight=3,
        step=3,
        squared_norm=1.0,
        lr=0.1,
        every=0,
    )


def listed(version: int, **frames: str) -> EntrySaid:
    members = tuple(
        Listed(site=site, frame=name * 64, coded_bytes=8, exact_bytes=1, weight=3, step=3, squared_norm=1.0, lr=0.1)
        for site, name in frames.items()
    )
    return said(
        Round(
            index=5 + version, prev="0" * 64, term=0, fragment=0, version=version, members=members, every=0, base=None
        )
    )


def void(version: int) -> EntrySaid:
    return said(Skip(index=50 + version, prev="0" * 64, term=0, fragment=0, version=version, why="lost"))


def said(entry: Entry) -> EntrySaid:
    return EntrySaid(entry=entry)


def words(acts: list[Act]) -> list[Up]:
    return [act.message for act in acts if isinstance(act, Say)]


def sent_to(acts: list[Act]) -> list[str]:
    return [one.site for act in acts if isinstance(act, SendFrame) for one in act.peers]


def test_round_from_due_to_applied() -> None:
    member = Member("a", {0: 0, 2: 4})
    assert words(member.due(0)) == [Due(fragment=0, version=0)]
    assert member.due(0) == []
    member.on_down(opened())
    assert member.begins() == [opened()]
    member.begun(opened())
    assert member.begins() == []
    acts = member.made(offer("a"))
    assert sent_to(acts) == ["b", "c"]
    assert words(acts) == [offer("a")]
    assert member.begins() == []
    assert words(member.arrived(0, 0, "b", "b" * 64, by_mail=True)) == [
        Hold(fragment=0, version=0, site="b", frame="b" * 64, by_mail=True)
    ]
    assert member.next_settled() is None
    needs = words(member.on_down(listed(0, a="a", b="b", c="c")))
    assert [need.site for need in needs if isinstance(need, Need)] == ["c"]
    member.on_down(Fetched(fragment=0, version=0, site="c", frame="c" * 64))
    settled = member.next_settled()
    assert settled is not None
    assert settled.counted == offer("a")
    assert words(member.applied(settled, DIGEST)) == [Applied(fragment=0, version=1, digest=DIGEST)]
    assert member.versions == {0: 1, 2: 4}
    assert member.next_settled() is None


def test_next_settled_of_several_fragments_is_that_of_one_that_was_not_taken_yet() -> None:
    member = Member("a", {0: 0, 2: 0, 4: 0})
    for number, fragment in enumerate((4, 0)):
        decided = listed(0, b="b").entry.model_copy(update={"index": 5 + number, "fragment": fragment})
        member.on_down(said(decided))
        member.on_down(said(void(0).entry.model_copy(update={"fragment": fragment})))
    taken: list[int] = []
    while (settled := member.next_settled(taken)) is not None:
        taken.append(settled.fragment)
    assert taken == [4, 0]


def test_frame_of_an_earlier_attempt_counts_by_its_hash() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened())
    member.made(offer("d"))
    member.on_down(opened(attempt=1))
    member.made(offer("e", attempt=1))
    member.on_down(listed(0, a="d"))
    settled = member.next_settled()
    assert settled is not None
    assert settled.counted == offer("d")


def test_frame_of_the_process_before_counts_for_nobody() -> None:
    member = Member("a", {0: 0})
    member.on_down(Fetched(fragment=0, version=0, site="a", frame="d" * 64))
    assert member.on_down(listed(0, a="d")) == []
    settled = member.next_settled()
    assert settled is not None
    assert settled.counted is None


def test_round_that_was_applied_is_not_begun_again_where_its_open_comes_late() -> None:
    member = Member("a", {0: 1})
    assert member.on_down(opened()) == []
    assert member.begins() == []


def test_ranks_compute_a_fragment_anew_that_the_leader_finds_wrong() -> None:
    assert Member("a", {0: 0}).on_down(Repair(fragment=0)) == [Recompute(0)]


def test_late_frame_is_dropped() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened())
    member.arrived(0, 0, "b", "b" * 64, by_mail=True)
    member.on_down(listed(0, b="b"))
    settled = member.next_settled()
    assert settled is not None
    member.applied(settled, DIGEST)
    assert member.made(offer("a")) == []


@pytest.mark.parametrize("down", [Welcome(term=0, run=None, head=0, open=()), None])
def test_what_the_leader_does_not_name_is_not_open(down: Welcome | None) -> None:
    member = Member("a", {0: 0})
    member.due(0)
    member.on_down(opened())
    welcome = RankWelcome(site="a", run=DIGEST, versions={}, head=0, head_hash="0" * 64, states={}, every=1, step=0)
    acts = member.on_down(down or welcome)
    assert words(acts) == [Due(fragment=0, version=0)]
    assert member.begins() == []


def test_new_connection_hears_again_all_that_matters() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened())
    member.made(offer("a"))
    member.arrived(0, 0, "b", "b" * 64, by_mail=True)
    again = words(member.on_down(Welcome(term=0, run=None, head=0, open=((0, 0, 0),))))
    assert again == [offer("a"), Hold(fragment=0, version=0, site="b", frame="b" * 64, by_mail=False)]
    member.on_down(listed(0, c="c"))
    assert [type(one) for one in words(member.reconnected())] == [Need]


def test_who_comes_later_gets_the_frame_too_and_nobody_twice() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened(peers="ab"))
    assert sent_to(member.made(offer("a"))) == ["b"]
    assert sent_to(member.on_down(opened(peers="abc"))) == ["c"]
    again = Open(fragment=0, version=0, attempt=0, peers=(peer("a"), peer("b", "1"), peer("c")))
    assert sent_to(member.on_down(again)) == ["b"]  # another process of b
    elsewhere = tuple(one.model_copy(update={"fetch": "b:1"}) for one in again.peers)
    assert sent_to(member.on_down(again.model_copy(update={"peers": elsewhere}))) == []  # its agent's address alone


def test_after_so_many_frames_the_newest_is_offered_again() -> None:
    member = Member("a", {0: 0})
    names = "def"
    assert len(names) == MOST_OWN_FRAMES
    for attempt, name in enumerate(names):
        member.on_down(opened(attempt=attempt))
        assert member.begins() == [opened(attempt=attempt)]
        member.made(offer(name, attempt=attempt))
    acts = member.on_down(opened(attempt=3))
    assert words(acts) == [offer("f", attempt=2), Pass(fragment=0, version=0, attempt=3)]
    assert member.begins() == []


def test_a_frame_that_the_disk_has_lost_is_offered_no_more_and_another_may_be_made() -> None:
    member = Member("a", {0: 0})
    for attempt, name in enumerate("def"):
        member.on_down(opened(attempt=attempt))
        member.made(offer(name, attempt=attempt))
    member.lost(0, 0, "a", "e" * 64)
    kept = [offer("d"), offer("f", attempt=2)]
    assert words(member.on_down(Welcome(term=0, run=None, head=0, open=((0, 0, 2),)))) == kept
    assert words(member.on_down(opened(attempt=3))) == []
    assert member.begins() == [opened(attempt=3)]
    member.on_down(listed(0, a="e"))  # another site has it
    member.on_down(Fetched(fragment=0, version=0, site="a", frame="e" * 64))
    settled = member.next_settled()
    assert settled is not None
    assert settled.counted == offer("e", attempt=1)


def test_void_round_counts_on_without_its_frames() -> None:
    member = Member("a", {0: 0})
    assert words(member.on_down(listed(0, b="b")))
    member.on_down(void(0))
    settled = member.next_settled()
    assert settled is not None
    assert settled.entry is None
    member.applied(settled, DIGEST)
    assert member.versions == {0: 1}


def test_state_takes_the_place_of_rounds_whose_frames_nobody_has() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened())
    member.made(offer("a"))
    for entry in (listed(0, a="a", b="b"), listed(1, b="c"), listed(2, b="d")):
        member.on_down(entry)
    member.on_down(TakeState(fragment=0, version=2))
    settled = member.next_settled()
    assert settled is not None
    assert (settled.entry, settled.state, settled.counted) == (None, 2, offer("a"))
    assert words(member.applied(settled, DIGEST)) == [Applied(fragment=0, version=2, digest=DIGEST)]
    assert member.next_settled() is None  # round 2 needs its frame
    member.on_down(Fetched(fragment=0, version=2, site="b", frame="d" * 64))
    member.on_down(TakeState(fragment=0, version=3))
    settled = member.next_settled()
    assert settled is not None
    assert settled.state is None  # all frames are here: no need


def test_frame_that_the_disk_has_lost_is_asked_for_again_and_its_round_waits() -> None:
    member = Member("a", {0: 0})
    member.on_down(listed(0, a="1", b="2"))
    member.arrived(0, 0, "a", "1" * 64, by_mail=False)
    member.arrived(0, 0, "b", "2" * 64, by_mail=False)
    assert member.next_settled() is not None
    assert words([*member.lost(0, 0, "a", "1" * 64)]) == [
        Need(fragment=0, version=0, site="a", frame="1" * 64, bytes=9)
    ]
    assert member.next_settled() is None
    member.on_down(Fetched(fragment=0, version=0, site="a", frame="1" * 64))
    assert member.next_settled() is not None


def test_lost_frame_of_no_round_is_asked_for_once_a_round_lists_it() -> None:
    member = Member("a", {0: 0})
    member.arrived(0, 0, "b", "2" * 64, by_mail=True)
    [said_at_once] = words([*member.lost(0, 0, "b", "2" * 64)])
    assert said_at_once == Hold(fragment=0, version=0, site="b", frame="2" * 64, by_mail=False, held=False)
    assert words(member.on_down(listed(0, b="2"))) == [Need(fragment=0, version=0, site="b", frame="2" * 64, bytes=9)]


def test_void_round_that_was_applied_starts_the_ranks_again() -> None:
    member = Member("a", {0: 3})
    [act] = member.on_down(void(1))
    assert isinstance(act, StartAgain)


@pytest.mark.parametrize(("head", "again"), [(5, True), (4, False), (50, False)])
def test_void_round_of_an_earlier_start_has_the_site_read_its_data_again(head: int, again: bool) -> None:
    """Entry 5 is the round, and entry 50 makes it void: what the site was told before or after both is right."""
    member = Member("a", {0: 0}, head=head)
    member.on_down(listed(0, a="a", b="b"))
    acts = member.on_down(void(0))
    assert [isinstance(act, StartAgain) for act in acts] == [True] * again
    other = Member("c", {0: 0}, head=head)
    other.on_down(listed(0, a="a", b="b"))
    assert other.on_down(void(0)) == []
