"""The frames that an agent brings here: whatever asks for one first, it comes for as long as ranks need it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geocomm.elastic.files import needless_files
from geocomm.elastic.files.fetch import Outcome
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.messages import Hold, Lost, Owner, Peer, Peers, Up, Wanted
from geocomm.elastic.site import frame_fetches
from geocomm.elastic.site.frame_fetches import FrameFetches

FRAME = Wanted(fragment=0, version=3, site="a", frame="0" * 64, bytes=9)


class Told(list[str]):
    """The kinds of what is said to the leader and to ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.missed_s = -1.0

    def add(self, up: Up) -> None:
        self.append(up.kind)
        if isinstance(up, Lost):
            self.missed_s = up.missed_s


class Attempts:
    """A fetcher whose attempts end as they are told."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = iter(outcomes)
        self.made = 0
        self.may_end = asyncio.Event()

    async def frame(self, wanted: Wanted, sources: Sequence[str], proxy: str | None = None) -> Outcome:
        self.made += 1
        await self.may_end.wait()
        return next(self.outcomes)


def fetches(
    run_dir: Path, fetcher: Attempts, lacks: Any = lambda *_: True, others: Sequence[str] = ("b:1",)
) -> tuple[FrameFetches, Told]:
    async def sources(wanted: Wanted | None = None) -> list[str]:
        return list(others)

    async def no_state(*_: object) -> None:
        pass

    told = Told()
    view: Any = SimpleNamespace(
        fetcher=fetcher,
        life=SimpleNamespace(start=asyncio.create_task),
        proxy=None,
        last_known=lambda wanted: ["b:1"],
        sources=sources,
        say_of_round=told.add,
        is_current=True,
        store=FragmentStore(run_dir),
        site="b",
        state=SimpleNamespace(skipped=set(), versions=[99], live=["a", "b"]),
        peers=Peers(peers=(Peer(site="a", owners=(Owner(id="1" * 32, host="a", port=1),), fetch="a:1"),)),
    )
    ranks: Any = SimpleNamespace(lacks=lacks, complete=True, tell_owner=lambda fragment, down: told.append(down.kind))
    states: Any = SimpleNamespace(newest=no_state)
    return FrameFetches(view, states, ranks), told


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_fetches, "NEED_PAUSE_S", 0.0)


async def _until(done: Any) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.001)


def test_a_need_that_comes_while_an_attempt_is_under_way_outlives_it(tmp_path: Path) -> None:
    async def run() -> None:
        fetcher = Attempts(Outcome.FAILED, Outcome.FAILED, Outcome.HERE)
        brought, told = fetches(tmp_path, fetcher)
        brought.once(FRAME, ["a:1"])  # as the leader says
        await _until(lambda: fetcher.made == 1)
        brought.until_here(FRAME)  # the round is decided meanwhile
        fetcher.may_end.set()
        await _until(lambda: told)
        assert told == ["hold", "fetched"]
        assert fetcher.made == 3

    asyncio.run(run())


def test_an_offered_frame_that_nobody_needs_is_tried_once(tmp_path: Path) -> None:
    async def run() -> None:
        fetcher = Attempts(Outcome.FAILED, Outcome.HERE)
        brought, told = fetches(tmp_path, fetcher)
        fetcher.may_end.set()
        brought.once(FRAME, ["a:1"])
        await _until(lambda: not brought._under_way)
        assert (fetcher.made, told) == (1, [])
        brought.once(FRAME, ["a:1"])  # the leader says it again
        await _until(lambda: told)
        assert told == ["hold", "fetched"]

    asyncio.run(run())


def test_a_leader_that_hears_nobody_gives_up_a_frame_that_it_has_lost(tmp_path: Path) -> None:
    async def run() -> None:
        fetcher = Attempts(*[Outcome.FAILED] * 2, Outcome.HERE)
        brought, told = fetches(tmp_path, fetcher, others=())
        fetcher.may_end.set()
        brought.until_here(FRAME)
        await _until(lambda: "hold" in told)
        assert told[0] == "lost"

    asyncio.run(run())


def test_frames_of_a_later_round_are_not_looked_for_again_before_those_of_an_earlier_one_are_there(
    tmp_path: Path,
) -> None:
    """Hundreds at once would hold up each other, and with them what nobody has is never said to be lost."""

    async def run() -> None:
        fetcher = Attempts(*[Outcome.ABSENT] * 100_000)
        brought, told = fetches(tmp_path, fetcher)
        fetcher.may_end.set()
        for version in range(3, 23):
            brought.until_here(FRAME.model_copy(update={"version": version}))
        await _until(lambda: told.count("lost") >= 5)
        assert fetcher.made - told.count("lost") <= 20 + 1  # one may be under way

    asyncio.run(run())


def last_round(brought: FrameFetches) -> None:
    """The frame is of the round before this one, so its mail may be under way."""
    brought._view.state.versions[0] = FRAME.version + 1


def test_a_listed_frame_that_comes_by_mail_in_its_time_is_not_fetched(tmp_path: Path) -> None:
    async def run() -> None:
        fetcher = Attempts(Outcome.HERE)
        fetcher.may_end.set()
        brought, told = fetches(tmp_path, fetcher)
        last_round(brought)
        brought.until_here(FRAME)
        await asyncio.sleep(0)
        brought.came_by_mail(Hold(**FRAME.model_copy(update={"frame": "1" * 64}).named, by_mail=True))
        assert brought._under_way
        brought.came_by_mail(Hold(**FRAME.named, by_mail=True))
        assert not brought._under_way
        brought.until_here(FRAME)  # the ranks have started anew, and lack it again
        await _until(lambda: told)
        assert (fetcher.made, told) == (1, ["hold", "fetched"])

    asyncio.run(run())


@pytest.mark.parametrize("earlier", ["the leader asks for it", "the mail has had its time", "nobody sends mail"])
def test_a_listed_frame_is_fetched_once_its_mail_is_late(
    tmp_path: Path, earlier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_fetches, "MAIL_S", 0.05 if earlier == "the mail has had its time" else 1e9)

    async def run() -> None:
        fetcher = Attempts(Outcome.FAILED, Outcome.HERE)
        fetcher.may_end.set()
        brought, told = fetches(tmp_path, fetcher)
        last_round(brought)
        if earlier == "nobody sends mail":
            brought._view.peers = None
        brought.until_here(FRAME)
        await asyncio.sleep(0)
        if earlier == "the leader asks for it":
            assert fetcher.made == 0
            brought.once(FRAME, ["c:1"])
        await _until(lambda: told)
        assert (fetcher.made, told) == (2, ["hold", "fetched"])

    asyncio.run(run())


def test_a_frame_that_is_needed_no_more_is_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        lacks = True
        fetcher = Attempts(*[Outcome.FAILED] * 2, Outcome.HERE)
        brought, told = fetches(tmp_path, fetcher, lambda *_: lacks)
        brought.until_here(FRAME)
        await _until(lambda: fetcher.made == 1)
        lacks = False
        fetcher.may_end.set()
        await _until(lambda: not brought._under_way)
        assert (fetcher.made, told) == (1, [])

    asyncio.run(run())


def test_for_how_long_a_frame_is_missed_outlives_the_agent_and_ends_once_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_fetches, "NEED_PAUSE_S", 0.01)
    store = FragmentStore(tmp_path)
    store.keep_missed_s(**FRAME.named, seconds=600)

    async def run(*outcomes: Outcome) -> float:
        fetcher = Attempts(*outcomes)
        fetcher.may_end.set()
        brought, told = fetches(tmp_path, fetcher)
        brought.until_here(FRAME)
        await _until(lambda: "hold" in told)
        return told.missed_s

    absent = [Outcome.ABSENT] * 4
    assert 600 <= asyncio.run(run(*absent, Outcome.HERE)) < 601
    assert asyncio.run(run(Outcome.ABSENT, Outcome.ABSENT, Outcome.HERE)) == 0


@pytest.mark.parametrize("asked", [{"fragment": 2}, {"fragment": 10**12}, {"version": 5}, {"version": 2**60}])
def test_a_frame_of_a_round_that_the_run_does_not_have_is_not_looked_for(tmp_path: Path, asked: dict[str, int]) -> None:
    """Each would get a folder of its own."""

    async def run() -> None:
        fetcher = Attempts(Outcome.HERE)
        fetcher.may_end.set()
        brought, _ = fetches(tmp_path, fetcher)
        brought._view.state.versions = [4, 4]
        assert not await brought.for_others(FRAME.model_copy(update=asked))
        assert fetcher.made == 0
        assert await brought.for_others(FRAME)

    asyncio.run(run())


def test_what_ranks_will_begin_with_is_looked_at_once_however_long_they_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        fetcher = Attempts(*[Outcome.FAILED] * 100)
        brought, _ = fetches(tmp_path, fetcher, lambda *_: False)
        store, state = FragmentStore(tmp_path), brought._view.state
        state.live, state.rounds, state.most_frame_bytes = ["a"], {}, 9
        brought._view.store = store
        brought._ranks.complete, brought._ranks.are_away = False, False
        asked, missing, found = list[int](), [3, 4], None

        def lacking(fragment: int, version: int) -> list[Wanted]:
            asked.append(version)
            return [FRAME.model_copy(update={"version": one}) for one in missing if one >= version]

        async def newest(*_: object) -> int | None:
            return found

        states: Any = brought._states
        states.lacking, states.newest = lacking, newest
        states.replayed_from, states.state_bytes = lambda fragment: 0, lambda fragment, version: 100
        scans, scan = list[int](), store.latest_state
        monkeypatch.setattr(store, "latest_state", lambda *at: scans.append(at[0]) or scan(*at))
        assert not brought._keep_second_copies(0)
        missing.pop(0)
        assert not brought._keep_second_copies(0)
        missing.clear()
        for version in (99, 100, 101):
            state.versions[0] = version
            assert brought._keep_second_copies(0)
        assert asked == [0, 3, 4, 99, 100]
        assert len(scans) == 1
        store.write_state(0, 50, [bytes(9)])  # of others
        for answer, base in ((None, 0), (50, 50)):
            found = answer
            brought._search_state(0, 0, FRAME, ["a:1"])
            await _until(lambda: not brought._taking)
            assert brought._kept_state(0).base == base
        store.remove_state(0, 50)
        assert brought._kept_state(0).base == 0

    asyncio.run(run())


def test_frames_that_outweigh_states_give_way_to_a_newer_one_while_the_ranks_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needless_files, "_KEPT_S", 1e-9)

    async def run() -> None:
        brought, _ = fetches(tmp_path, Attempts(), lambda *_: False)
        state, states, store = brought._view.state, cast(Any, brought._states), brought._view.store
        state.live, state.most_frame_bytes = ["a"], 9
        state.rounds = {
            0: SimpleNamespace(fragment=0, version=98, frames=[SimpleNamespace(site="a", frame="0", size=9)])
        }
        monkeypatch.setattr(Wanted, "listed", lambda entry, one: FRAME)
        brought._ranks.complete, brought._ranks.are_away = False, True
        states.lacking, states.replayed_from = lambda *_: iter(()), lambda fragment: 0
        states.state_bytes = lambda fragment, version: 100
        searched: list[int] = []

        async def newest(fragment: int, above: int, _: object) -> int | None:
            searched.append(above)
            if above >= 90:
                return None
            store.write_state(0, above + 30, [bytes(100)])
            return above + 30

        states.newest = newest
        for version in range(99):
            store.write_frame(0, version, "a", [bytes([version])])

        async def look() -> list[int]:
            assert brought._keep_second_copies(0)
            await _until(lambda: not brought._taking)
            await asyncio.gather(*(one for one in asyncio.all_tasks() if one is not asyncio.current_task()))
            return [version for version in range(99) if list(tmp_path.glob(f"fragments/0@{version}/*.frame"))]

        assert await look() == [*range(99)]  # beside the first one, which may have changed on the disk
        assert await look() == [*range(30, 99)]
        assert (searched, store.states(0)) == ([0, 30], [30, 60])
        assert await look() == [*range(30, 99)]  # 39 rounds are less than four states
        assert searched == [0, 30]

    asyncio.run(run())


def test_others_are_asked_for_a_newer_state_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought, _ = fetches(tmp_path, Attempts(), lambda *_: False)
    listed = SimpleNamespace(fragment=0, version=98, frames=[SimpleNamespace(site="a", frame="0", size=9)])
    monkeypatch.setattr(Wanted, "listed", lambda entry, one: FRAME)
    brought._view.state.rounds, cast(Any, brought._states).state_bytes = {0: listed}, lambda *_: 100
    kept = brought._kept_state(0)
    assert [brought._wants_newer(0, kept) for _ in range(3)] == [True, False, False]
    kept.newer_at -= frame_fetches._NEWER_EVERY_S
    assert brought._wants_newer(0, kept)
