"""The leader's decisions, event by event."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from geocomm.journal.entries import Away, End, Entry, Genesis, Left, Ready, Removed, Round, TermBegun, hash_of
from geocomm.journal.messages import (
    PROTOCOL_VERSION,
    Applied,
    Beat,
    Down,
    Due,
    Fetch,
    Hello,
    Hold,
    Leave,
    Model,
    Offer,
    Open,
    Owner,
    Pass,
    RanksGone,
    RanksUp,
    ReadySaid,
    Refused,
    Repair,
    SnapshotHeld,
    Stop,
    Up,
    Welcome,
)
from geocomm.journal.run_state import EMPTY, RunState, Standing
from geocomm.journal.sequencer import Sequencer
from geocomm.journal.sequencer_events import (
    Append,
    Came,
    Close,
    Ended,
    Event,
    Remove,
    Said,
    Send,
    SendEntries,
    Terms,
    Tick,
)

D = TypeVar("D", bound=Down)
STORES = {name: f"{ord(name):032x}" for name in "abcd"}
MODEL = Model(settings={"codec": "int4"}, layout="1" * 32, fragments=2, every=10)
DIGESTS = ("2" * 32, "3" * 32)


class Led:
    """A leader with its journal and clock, and what it has sent."""

    def __init__(self, terms: Terms | None = None, entries: Sequence[Entry] = ()) -> None:
        self.entries = [*entries]
        self.now = 1000.0
        self.sent: list[Send | SendEntries | Close] = []
        numbers = itertools.count(1)
        self.sequencer = Sequencer(
            RunState.of(self.entries), terms or Terms(), self._hash_at, lambda: f"{next(numbers):032x}", "leader:1"
        )

    def _hash_at(self, index: int) -> str | None:
        return EMPTY.hash if index < 0 else hash_of(self.entries[index]) if index < len(self.entries) else None

    def on(self, event: Event) -> None:
        for action in self.sequencer.on(event, self.now):
            if isinstance(action, Append):
                self.entries.append(action.entry)
            elif isinstance(action, Send | SendEntries | Close):
                self.sent.append(action)

    def say(self, site: str, message: Up) -> None:
        self.on(Said(site, message))

    def wait(self, seconds: float, beating: str = "") -> None:
        """Tick by tick; these sites beat."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            for site in beating:
                self.say(site, Beat(step=0, tokens=0, step_s=0.1, line_s=0, free_bytes=0))
            self.on(Tick())

    def hello(self, site: str, **changes: Any) -> None:
        genesis = self.sequencer.state.genesis
        fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "geocomm": "1",
            "store": STORES[site],
            "run": genesis.run if genesis else None,
            "head": len(self.entries) - 1,
            "head_hash": self._hash_at(len(self.entries) - 1) if self.entries else None,
            "term": self.sequencer.state.term,
            "fetch": f"{site}:1",
            "attempts": {},
        }
        self.on(Came(site))
        self.say(site, Hello(**fields | changes))

    def ranks_up(self, site: str, model: Model = MODEL) -> None:
        self.say(site, RanksUp(owners=(Owner(id=STORES[site], host=site, port=1),), model=model, digests=DIGESTS))

    def take_part(self, sites: str) -> Led:
        for site in sites:
            self.hello(site)
            self.ranks_up(site)
            self.say(site, ReadySaid())
        assert set(sites) <= set(self.sequencer.state.live)
        return self

    def offer(
        self,
        site: str,
        held_by: str = "",
        *,
        fragment: int = 0,
        attempt: int | None = None,
        lr: float = 0.0,
        step: int | None = None,
        by_mail: bool = True,
    ) -> str:
        """The frame that the site makes in the last attempt; who else holds it."""
        attempt = self.messages(Open)[-1].attempt if attempt is None else attempt
        version = self.sequencer.state.versions[fragment]
        frame = f"{ord(site):032x}{fragment:08x}{version:012x}{attempt:012x}"
        offer = Offer(
            fragment=fragment,
            version=version,
            attempt=attempt,
            frame=frame,
            coded_bytes=10,
            exact_bytes=2,
            weight=5,
            step=10 * version if step is None else step,
            squared_norm=1.0,
            lr=lr,
            every=0,
        )
        self.say(site, offer)
        for other in held_by:
            self.say(other, Hold(fragment=fragment, version=version, site=site, frame=frame, by_mail=by_mail))
        return frame

    def due(self, site: str = "a", fragment: int = 0) -> None:
        self.say(site, Due(fragment=fragment, version=self.sequencer.state.versions[fragment]))

    def messages(self, kind: type[D], site: str | None = None) -> list[D]:
        sends = [one for one in self.sent if isinstance(one, Send) and site in (None, one.site)]
        return [one.message for one in sends if isinstance(one.message, kind)]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.entries]

    @property
    def last_members(self) -> str:
        entry = self.entries[-1]
        assert isinstance(entry, Round)
        return "".join(one.site for one in entry.members)


def test_first_ranks_make_the_genesis_and_a_round_closes_once_all_hold_all() -> None:
    led = Led()
    led.hello("b")
    led.hello("a")
    assert led.entries == []
    led.ranks_up("a")
    assert led.kinds() == ["genesis", "join", "join"]
    led.ranks_up("b")
    led.say("a", ReadySaid())
    led.say("b", ReadySaid())
    led.due()
    opened = led.messages(Open, "b")[-1]
    assert [peer.site for peer in opened.peers] == ["a", "b"]
    led.offer("a", "b")
    led.offer("b")
    assert led.kinds()[-1] == "ready"
    led.offer("b", "a")
    assert led.last_members == "ab"
    entry = led.entries[-1]
    assert isinstance(entry, Round)
    assert (entry.fragment, entry.version, entry.base) == (0, 0, None)


def test_round_of_a_live_site_alone_needs_its_own_disk_only_and_names_the_base_that_was_said() -> None:
    led = Led().take_part("a")
    for digest in ("4" * 32, None):
        led.due()
        led.offer("a")
        if digest is not None:
            led.say("a", Applied(fragment=0, version=1, digest=digest))
    rounds = [entry for entry in led.entries if isinstance(entry, Round)]
    assert [entry.base for entry in rounds] == [None, "4" * 32]


def test_who_misses_a_round_is_not_waited_for_until_it_comes_in_time() -> None:
    led = Led().take_part("abc")
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    led.wait(1.5, "abc")
    assert led.kinds()[-1] == "ready"
    led.wait(1, "abc")
    assert led.last_members == "ab"
    led.due()  # now at once
    led.offer("a", "b")
    led.offer("b", "a")
    assert led.sequencer.state.versions[0] == 2
    # Its offer comes late for that round, but within the time that it would have been waited for.
    led.say("c", _offer_of(led, "a").model_copy(update={"frame": "c" * 64}))
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    assert led.sequencer.state.versions[0] == 2
    led.offer("c", "ab")
    assert led.last_members == "abc"


def _offer_of(led: Led, site: str) -> Offer:
    last = led.entries[-1]
    assert isinstance(last, Round)
    one = next(one for one in last.members if one.site == site)
    return Offer(**one.model_dump(exclude={"site"}), fragment=last.fragment, version=last.version, attempt=0, every=0)


def test_frame_that_no_mail_brings_is_fetched_after_the_grace_and_then_tried_anew() -> None:
    led = Led().take_part("ab")
    led.due()
    frame = led.offer("a")
    led.wait(1.5, "ab")
    assert led.messages(Fetch) == []
    led.wait(1, "ab")
    [fetch] = led.messages(Fetch)
    assert fetch.frame == frame
    assert fetch.bytes == 12
    assert fetch.sources == ("a:1", "leader:1")
    led.wait(58, "ab")
    assert led.messages(Open, "b")[-1].attempt == 1
    led.say(
        "b", Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True)
    )  # of the attempt before: it still counts
    led.wait(0.5, "ab")
    assert led.last_members == "a"


def test_site_that_no_mail_reaches_counts_by_fetching_without_waiting_for_the_grace() -> None:
    """Port of c closed: at first its frames come too late, then agents fetch them as soon as they are offered."""
    led = Led().take_part("abc")

    def one_round() -> str:
        version = led.sequencer.state.versions[0]
        led.due()
        led.offer("a", "b")
        led.offer("b", "a")
        led.offer("c")
        led.wait(0.5, "abc")
        for fetch in led.messages(Fetch):
            if fetch.version == version and fetch.site == "c":
                led.say("a", Hold(fragment=0, version=version, site="c", frame=fetch.frame, by_mail=False))
        return led.last_members if led.sequencer.state.versions[0] > version else ""

    for _ in range(4):  # two cycles of two fragments
        assert one_round() == ""
        led.wait(2, "abc")
        assert led.last_members == "ab"
    assert [one_round() for _ in range(3)] == ["abc"] * 3
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c", "ab")  # the mail is back
    before = len(led.messages(Fetch))
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c")
    led.wait(1, "abc")
    assert len(led.messages(Fetch)) == before


def test_site_whose_frames_take_longer_than_the_grace_is_waited_for_in_some_round() -> None:
    led = Led().take_part("abc")
    members = []
    for _ in range(12):
        led.due()
        led.offer("a", "b")
        led.offer("b", "a")
        frame = led.offer("c")
        version = led.sequencer.state.versions[0]
        led.wait(9, "abc")
        for holder in "ab":  # also where the round has ended without it
            led.say(holder, Hold(fragment=0, version=version, site="c", frame=frame, by_mail=True))
        members.append(led.last_members)
    assert members == [*["ab"] * 4, "abc", *["ab"] * 4, "abc", *["ab"] * 2]


def test_site_is_away_after_a_lost_connection_or_silence_and_its_frame_still_counts() -> None:
    led = Led(Terms(least_grace_s=60)).take_part("abc")
    led.due()
    led.offer("c", "ab")
    led.on(Ended("c"))
    led.offer("a", "b")
    led.offer("b", "a")
    led.wait(2.5, "ab")
    assert led.kinds()[-1] == "ready"
    led.wait(0.5, "ab")
    assert led.kinds()[-2:] == ["away", "round"]
    assert led.last_members == "abc"
    led.wait(9, "a")
    away = led.entries[-1]
    assert isinstance(away, Away)
    assert away.site == "b"
    assert Close("b", "silent") in led.sent


def test_site_that_is_back_within_three_seconds_was_never_away() -> None:
    led = Led().take_part("ab")
    led.due()
    led.on(Ended("b"))
    led.wait(2, "a")
    led.hello("b")
    led.ranks_up("b")
    led.wait(8, "ab")
    assert "away" not in led.kinds()
    assert led.messages(Welcome, "b")[-1].open == ((0, 0, 0),)


def test_site_whose_ranks_are_gone_is_away_at_once() -> None:
    led = Led().take_part("ab")
    led.say("b", RanksGone(why="killed"))
    assert isinstance(led.entries[-1], Away)
    led.ranks_up("b")
    led.say("b", ReadySaid())
    assert isinstance(led.entries[-1], Ready)


def test_restarted_leader_opens_above_every_attempt_and_says_what_is_open() -> None:
    before = Led().take_part("ab")
    led = Led(entries=before.entries)
    led.hello("a", attempts={0: 4})
    assert led.messages(Welcome, "a")[-1].open == ()
    led.ranks_up("a")
    led.due()
    assert led.messages(Open, "a")[-1].attempt == 5
    led.hello("b", attempts={0: 9})
    assert led.messages(Open, "a")[-1].attempt == 10
    led.wait(20, "a")
    last = led.entries[-1]
    assert isinstance(last, Away)
    assert last.site == "b"  # its ranks never came


REFUSALS = [
    ({"protocol": 99}, ("99", str(PROTOCOL_VERSION))),
    ({"run": "9" * 32}, ("9" * 12,)),
    ({"head": 500, "head_hash": "a" * 64}, ("501 entries",)),
    ({"head_hash": "a" * 64}, ("entry",)),
    ({"store": STORES["a"]}, ("a copy",)),
    ({"term": 7}, ("7", "0")),
]


@pytest.mark.parametrize(("changes", "words"), REFUSALS, ids=lambda one: next(iter(one), ""))
def test_hello_that_does_not_fit_is_refused_with_both_values(changes: dict[str, Any], words: Sequence[str]) -> None:
    led = Led().take_part("a")
    entries = len(led.entries)
    led.hello("b", **changes)
    [refused] = led.messages(Refused, "b")
    assert all(word in refused.why for word in words)
    assert len(led.entries) == entries
    assert led.sequencer.superseded_by == changes.get("term", 0)
    assert refused.blames == {"run": "run", "head": "leader", "term": "leader"}.get(next(iter(changes)), "site")


def test_journal_of_a_run_is_refused_by_a_leader_without_one() -> None:
    led = Led()
    led.hello("a", run="9" * 32, head=4, head_hash="a" * 64)
    [refused] = led.messages(Refused)
    assert "promote" in refused.why
    assert refused.blames == "leader"  # the site does not end for it


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"codec": "int8"}}, ("codec", "int8", "int4")),
        ({"layout": "5" * 32}, ("layout", "5" * 32, "1" * 32)),
        ({"every": 11}, ("every", "11", "10")),
    ],
)
def test_ranks_with_another_model_are_refused_with_both_values(changes: dict[str, Any], words: Sequence[str]) -> None:
    led = Led().take_part("a")
    led.hello("b")
    led.ranks_up("b", MODEL.model_copy(update=changes))
    [refused] = led.messages(Refused, "b")
    assert all(word in refused.why for word in words)


def test_second_machine_of_a_name_takes_over_and_the_first_is_refused() -> None:
    led = Led().take_part("a")
    led.hello("a", store=STORES["d"], run=None, head=-1, head_hash=None)
    assert led.sequencer.state.sites["a"].store == STORES["d"]
    assert led.sequencer.state.sites["a"].standing is Standing.JOINING
    led.hello("a")
    assert "two machines" in led.messages(Refused)[0].why


def test_follower_of_an_earlier_term_is_sent_the_entries_since_the_leader_took_over() -> None:
    entries = Led().take_part("ab").entries
    head = entries[-1]
    began = TermBegun(index=head.index + 1, prev=hash_of(head), term=1, site="a", address="a:1")
    led = Led(entries=[*entries, began])
    led.hello("b", term=0, head=40, head_hash="f" * 64)  # its chain ends with entries of the leader before
    assert led.messages(Refused) == []
    assert SendEntries("b", began.index, began.index) in led.sent
    led.hello("a")
    assert not [one for one in led.sent if isinstance(one, SendEntries) and one.site == "a"]


def test_digests_that_differ_are_repaired_once_and_then_stop_both() -> None:
    led = Led().take_part("abc")

    def a_round(digests: Sequence[str]) -> None:
        led.due()
        for site in "abc":
            led.offer(site, "abc".replace(site, ""))
        version = led.sequencer.state.versions[0]
        for site, digest in zip("abc", digests, strict=True):
            led.say(site, Applied(fragment=0, version=version, digest=digest * 32))

    a_round("445")
    assert [one.site for one in led.sent if isinstance(one, Send) and isinstance(one.message, Repair)] == [
        "a",
        "b",
        "c",
    ]
    led.due()
    for site in "abc":
        led.offer(site, "abc".replace(site, ""))
    assert led.sequencer.state.versions[0] == 1  # no round before they agree
    for site in "abc":
        led.say(site, Applied(fragment=0, version=1, digest="4" * 32))
    assert led.sequencer.state.versions[0] == 2
    for site, digest in zip("ab", "67", strict=True):
        led.say(site, Applied(fragment=0, version=2, digest=digest * 32))
    stopped = led.messages(Stop)
    assert len(stopped) == 2
    assert "a and b" in stopped[0].why
    assert led.sequencer.state.live == ["c"]


def test_digests_that_differ_after_a_repair_too_stop_both() -> None:
    led = Led().take_part("ab")
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    for digest in ("45", "45"):
        for site, one in zip("ab", digest, strict=True):
            led.say(site, Applied(fragment=0, version=1, digest=one * 32))
    led.wait(59, "ab")
    assert led.messages(Stop) == []
    led.wait(2, "ab")
    assert len(led.messages(Stop)) == 2


def test_frame_with_another_learning_rate_is_left_out_and_the_third_time_stops_the_site() -> None:
    led = Led().take_part("abc")
    for number in range(3):
        led.due()
        for site, lr in (("a", 0.1), ("b", 0.104), ("c", 0.2)):
            led.offer(site, "abc".replace(site, ""), lr=lr)
        assert led.sequencer.state.versions[0] == number + 1
        listed = led.sequencer.state.rounds[0].members
        assert [one.site for one in listed] == ["a", "b"]
    [stop] = led.messages(Stop, "c")
    assert "0.2" in stop.why
    assert "0.1" in stop.why


def test_sites_that_agree_with_each_other_count_in_a_warm_up_and_a_joiner_with_another_rate_does_not() -> None:
    led = Led().take_part("ab")
    for step in (5, 17, 29):
        led.due()
        for site, other in ("ab", "ba"):
            led.offer(site, other, lr=1e-3 * min(1, (step + 1) / 20), step=step)
        assert led.last_members == "ab"
    led.say("b", RanksGone(why="killed"))
    led.take_part("c")
    led.due()
    led.offer("a", "c", lr=1e-3, step=40)
    led.offer("c", "a", lr=5e-5, step=40)
    assert led.last_members == "a"


def test_sites_that_have_nothing_to_offer_are_asked_again_after_a_cycle() -> None:
    led = Led().take_part("ab")
    led.due()
    for site in "ab":
        led.say(site, Pass(fragment=0, version=0, attempt=0))
    led.wait(5, "ab")
    assert led.messages(Open, "a")[-1].attempt == 1


def test_last_frames_of_a_site_that_leaves_count_and_the_last_one_ends_the_run() -> None:
    led = Led().take_part("ab")
    led.due()
    led.offer("a")
    led.say("a", Leave())
    led.wait(1, "ab")
    assert "left" not in led.kinds()
    led.offer("b", "a")
    led.say("b", Hold(fragment=0, version=0, site="a", frame=led.offer("a"), by_mail=True))
    led.wait(1, "ab")
    assert led.kinds()[-2:] == ["round", "left"]
    led.say("b", Leave())
    led.wait(1, "b")
    assert isinstance(led.entries[-2], Left)
    assert isinstance(led.entries[-1], End)


def test_first_round_waits_for_the_named_sites_and_every_round_for_min_sites() -> None:
    led = Led(Terms(min_sites=2, wait_for=frozenset("bc"))).take_part("ab")
    led.due()
    assert led.messages(Open) == []
    led.take_part("c")
    assert len(led.messages(Open)) == 3
    led.offer("a", "bc")
    led.wait(5, "abc")
    assert led.sequencer.state.versions[0] == 0
    led.offer("b", "c")
    led.wait(1, "abc")
    assert led.last_members == "ab"


def test_snapshot_is_due_after_rounds_and_kept_once_two_sites_have_equal_bits() -> None:
    led = Led(Terms(snapshot_s=10)).take_part("abc")
    led.wait(11, "abc")
    assert "snapshot" not in led.kinds()  # nothing has happened yet
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c", "ab")
    led.wait(0.5, "abc")
    assert led.kinds()[-1] == "snapshot"
    snapshot = led.sequencer.state.snapshot
    assert snapshot is not None
    assert snapshot.versions == (1, 0)
    for site, digest in (("a", "1"), ("b", "2"), ("c", "2")):
        assert led.kinds()[-1] == "snapshot"
        led.say(site, SnapshotHeld(snapshot=snapshot.index, digest=digest * 32))
    assert led.sequencer.state.kept[snapshot.index].sites == ("b", "c")
    led.wait(11, "abc")
    assert led.kinds()[-1] == "kept"  # and no second one without a round


def test_removed_site_is_stopped_and_refused_from_then_on() -> None:
    led = Led().take_part("ab")
    led.on(Remove("b", "its disk is wrong"))
    assert isinstance(led.entries[-1], Removed)
    assert "its disk is wrong" in led.messages(Stop, "b")[0].why
    led.hello("b")
    assert "its disk is wrong" in led.messages(Refused, "b")[0].why


def test_message_of_a_fragment_that_is_not_there_ends_the_connection_alone() -> None:
    led = Led().take_part("ab")
    led.say("b", Due(fragment=7, version=0))
    assert [one.site for one in led.sent if isinstance(one, Close)] == ["b"]
    assert isinstance(led.entries[0], Genesis)
    led.due()
    assert led.messages(Open, "a")


def test_site_that_leaves_while_it_is_away_has_left_and_the_run_can_end() -> None:
    led = Led().take_part("ab")
    led.say("b", RanksGone(why="its ranks have ended"))
    assert isinstance(led.entries[-1], Away)
    led.say("b", Leave())
    assert isinstance(led.entries[-1], Left)
    led.say("a", Leave())
    led.wait(1, "a")
    assert isinstance(led.entries[-1], End)


def test_ranks_that_come_after_the_end_are_refused_and_the_leader_lives() -> None:
    led = Led().take_part("a")
    led.say("a", Leave())
    led.wait(1, "a")
    assert isinstance(led.entries[-1], End)
    led.hello("b")
    led.ranks_up("b")
    assert "has ended" in led.messages(Refused, "b")[0].why
    assert isinstance(led.entries[-1], End)


def test_site_is_removed_after_the_end_without_another_entry() -> None:
    led = Led().take_part("a")
    led.say("a", Leave())
    led.wait(1, "a")
    led.on(Remove("a", "told so"))
    assert isinstance(led.entries[-1], End)
