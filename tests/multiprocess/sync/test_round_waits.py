"""Rounds between real sites that wait, fail, or run beside the program's own messages: who is named, and who ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from geocomm.core import patience
from geocomm.core.errors import GeocommError
from geocomm.core.message_log import logger
from geocomm.sync.local_steps.fixed import group_rounds
from geocomm.sync.local_steps.fixed.group_rounds import GroupRounds
from geocomm.sync.local_steps.fixed.round_exchange import RoundExchange
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.model.fragments import Fragment, Range
from geocomm.sync.local_steps.outer.rounds import Coding, SiteOffer
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Reduce
from support.harness import Ranks, hash_of, links_over_b, meet, ranks_fixture
from support.local_models import adamw, make_model, train, train_steps, values

ranks = ranks_fixture({"1+1": ["a", "b"], "2+1+1": ["a", "a", "b", "c"]})
CODING = Coding("int4", 1.0, "mean")


def _site(sites: list[str]) -> str:
    return sites[dist.get_rank()]


def _unequal_steps(sites: list[str], reduce: Reduce) -> str:
    """Site b ends its run after 7 steps, the others go on to 40."""
    model = make_model()
    handle = local_steps(
        model,
        optimizer := adamw(model),
        LocalSettings(every=6, overlap=2, fragments=3, deterministic=True, reduce=reduce),
    )
    try:
        train_steps(model, optimizer, _site(sites), range(7 if _site(sites) == "b" else 40))
        handle.finish()
    except GeocommError as error:
        return f"{type(error).__name__}: {error}"
    return "ended"


def _whole_run(sites: list[str]) -> str:
    model = make_model()
    handle = local_steps(model, optimizer := adamw(model), LocalSettings(every=4, overlap=2, deterministic=True))
    train_steps(model, optimizer, _site(sites), range(9))
    handle.finish()
    return hash_of(values(model))


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
def test_deterministic_sites_with_unequal_steps_end_with_one_error_and_can_begin_again(
    ranks: Ranks, reduce: Reduce
) -> None:
    found = ranks.run(_unequal_steps, ranks.sites, reduce)
    for said in found:
        assert said.startswith("InvalidArgumentError"), found
        assert "'b' has called finish()" in said, found
    assert len(set(ranks.run(_whole_run, ranks.sites))) == 1


def _beside_messages(sites: list[str]) -> tuple[str, bool]:
    """Each rank sends to the next one and reduces with all, while rounds are under way."""
    model = make_model()
    handle = local_steps(
        model, optimizer := adamw(model), LocalSettings(every=4, overlap=3, fragments=4, deterministic=True)
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    works, rooms, sums = [], [], []
    for step in range(20):
        train_steps(model, optimizer, _site(sites), [step])
        for tag in range(3):
            works.append(dist.isend(torch.full((1000,), 100 * step + 10 * tag + rank), (rank + 1) % size, tag=tag))
            rooms.append((100 * step + 10 * tag + (rank - 1) % size, torch.empty(1000, dtype=torch.int64)))
            works.append(dist.irecv(rooms[-1][1], (rank - 1) % size, tag=tag))
        sums.append(torch.full((1000,), float(rank)))
        works.append(dist.all_reduce(sums[-1], async_op=True))
    handle.finish()
    for work in works:
        assert work is not None
        work.wait()
    right = all(bool((room == expected).all()) for expected, room in rooms)
    return hash_of(values(model)), right and all(bool((one == sum(range(size))).all()) for one in sums)


def test_program_sends_messages_of_its_own_beside_rounds(ranks: Ranks) -> None:
    found = ranks.run(_beside_messages, ranks.sites)
    assert len(set(found)) == 1
    assert found[0][1]


def _many_at_once(sites: list[str], reduce: Reduce) -> tuple[list[list[float]], int]:
    """Site b begins ten rounds when the others have begun theirs; all wait for them in the opposite order."""
    rounds = GroupRounds()
    if not rounds.ranks.owns(0):
        dist.barrier()
        return [], 0
    fragment = Fragment(0, (Range("w", 0, 300_000), Range("b", 0, 5, exact=True)))
    if _site(sites) == "b":
        dist.barrier()
    reductions = []
    for number in range(10):
        offer = SiteOffer(number, 0, number, number, 1)
        delta = torch.full((fragment.numel,), float(number + sites.index(_site(sites))))
        residual = torch.zeros(fragment.coded_elems)
        reductions.append(rounds.reduce(offer, fragment, delta, residual, replace(CODING, reduce=reduce)))
    done_alone = 0
    if _site(sites) != "b":
        time.sleep(0.2)
        done_alone = sum(one.is_done() for one in reductions)
        dist.barrier()
    found = []
    for reduction in reversed(reductions):
        mean = reduction.wait().values
        assert mean is not None
        found.append([float(mean[0]), float(mean[-1])])
    rounds.close()
    return found, done_alone


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
def test_many_rounds_are_under_way_and_end_in_any_order(ranks: Ranks, reduce: Reduce) -> None:
    firsts = [list(ranks.sites).index(site) for site in dict.fromkeys(ranks.sites)]
    shift = sum(firsts) / len(firsts)
    results = ranks.run(_many_at_once, ranks.sites, reduce)
    for rank in firsts:
        found, done_alone = results[rank]
        assert done_alone == 0
        assert found == results[0][0]
        for number, (coded, exact) in zip(reversed(range(10)), found, strict=True):
            assert coded == pytest.approx(number + shift, abs=0.4)
            assert exact == pytest.approx(number + shift)


@contextmanager
def _words(heard: Callable[[str], None]) -> Iterator[list[str]]:
    """What is logged, with a word after every 0.2 s."""
    said: list[str] = []
    handler = logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        said.append(record.getMessage())
        heard(said[-1])

    handler.emit = emit
    logger().addHandler(handler)
    with mock.patch.object(patience, "FIRST_WORD_S", 0.2):
        yield said
    logger().removeHandler(handler)


def _come_late(sites: list[str]) -> dict[str, list[str]]:
    """Site b comes to everything once another one has said twice that it waits for it."""
    said: dict[str, list[str]] = {}
    store = dist.distributed_c10d._get_default_store()

    def hear(line: str) -> None:
        if "has waited" in line and line.endswith(("for site 'b'", "for b")):
            waits = [one for one in words if "has waited" in one]
            if len(waits) >= 2:
                store.set(f"waited after {len(said)}", "")

    with _words(hear) as words:

        def note(what: str, *, last: bool = False) -> None:
            said[what] = list(words)
            words.clear()
            if _site(sites) == "b" and not last:
                store.wait([f"waited after {len(said)}"], timedelta(seconds=60))

        note("start")
        model = make_model()
        handle = local_steps(
            model, optimizer := adamw(model), LocalSettings(every=2, overlap=1, fragments=1, deterministic=True)
        )
        note("local_steps")
        train_steps(model, optimizer, _site(sites), range(4))
        note("rounds")
        handle.finish()
        note("finish, deterministic")
        model = make_model()
        handle = local_steps(model, optimizer := adamw(model), LocalSettings(every=10))
        words.clear()
        note("again")
        handle.finish()
        note("finish", last=True)
    return said


def test_every_wait_for_a_site_is_logged_with_its_name(ranks: Ranks) -> None:
    found = ranks.run(_come_late, ranks.sites)
    lines = {what: [line for said in found for line in said[what]] for what in found[0]}
    for what, words in {
        "local_steps": "local_steps() has waited",
        "rounds": "round 0 has waited",
        "finish, deterministic": "has waited",
        "finish": "where the sites are has waited",
    }.items():
        assert any(words in line for line in lines[what]), (what, lines)
    for what in ("rounds", "finish, deterministic", "finish"):
        # Others of them may be late, too, on a busy machine.
        waits = [line for line in lines[what] if "has waited" in line and line.endswith("for site 'b'")]
        assert len(waits) >= 2, lines[what]  # at growing intervals
    assert any("for b" in line for line in lines["local_steps"])


def _stay_away(sites: list[str], what: str) -> str:
    """Site b does not come to what the others wait for; then it uses the rounds."""
    store = dist.distributed_c10d._get_default_store()
    try:
        if what == "local_steps" and _site(sites) == "b":
            dist.barrier()
        model = make_model()
        with mock.patch.object(group_rounds, "RoundExchange", _short_exchange):
            handle = local_steps(
                model, optimizer := adamw(model), LocalSettings(every=2, overlap=1, deterministic=what == "round")
            )
        if what != "local_steps":
            meet("all have begun", 3)
            assert dist.group.WORLD is not None
            dist.group.WORLD.set_timeout(timedelta(seconds=2))
        if _site(sites) == "b":
            store.wait(["0 ended", "1 ended"], timedelta(seconds=60))
        train_steps(model, optimizer, _site(sites), range(4))
        handle.finish()
    except GeocommError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        store.set(f"{dist.get_rank()} ended", "")
    return "ended"


def _short_exchange(
    ranks: Any, own: str, relays: Any, tags: Any, _: timedelta, line: Any, check_digest: Any
) -> RoundExchange:
    """Which names the time-out that the group gets once all have begun."""
    return RoundExchange(ranks, own, relays, tags, timedelta(seconds=2), line, check_digest)


@pytest.mark.parametrize("what", ["round", "finish", "local_steps"])
def test_wait_ends_at_every_site_within_the_time_out_of_the_group(what: str) -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        if what == "local_steps":
            ranks.set_timeout(2)
        found = ranks.run(_stay_away, ranks.sites, what)
        assert all("TimeoutError" in said for said in found[:2]), found
        assert "Error" in found[2], found
        if what == "local_steps":
            assert all("b did not call local_steps() within 2 s" in said for said in found[:2]), found
        else:
            assert all("site 'b' sent nothing within 2 s" in said for said in found[:2]), found
            assert "site b" in found[2], found


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
def test_site_passes_on_what_two_others_hardly_reach_each_other_with(tmp_path: Path, reduce: Reduce) -> None:
    links = links_over_b(tmp_path, lambda src, dst: 0.08 if 2 in (src, dst) else 0.002)
    settings: dict[str, Any] = {"every": 3, "overlap": 2, "fragments": 3, "deterministic": True, "reduce": reduce}

    def simulate(rounds: Any) -> str:
        model, handle = train(rounds, 14, **settings)
        handle.finish()
        return hash_of(values(model))

    expected = SimulatedSites(["a", "b", "c"]).run(simulate)
    with Ranks(["a", "b", "c"], environment={"GEOCOMM_LINKS": links}) as ranks:
        ranks.init()
        with_relay = ranks.run(_relayed, ranks.sites, reduce)
    assert [bits for bits, _ in with_relay] == expected
    if reduce == "all":  # what a and c have for each other goes over b
        assert with_relay[0][1] == with_relay[2][1] == 0


def _relayed(sites: list[str], reduce: Reduce) -> tuple[str, int]:
    """The bits of the result, and the messages that this rank sent to the one that it hardly reaches."""
    sent: list[int] = []
    isend = dist.isend

    def count(tensor: torch.Tensor, dst: int, *, tag: int) -> Any:
        sent.append(dst)
        return isend(tensor, dst, tag=tag)

    model = make_model()
    with mock.patch("torch.distributed.isend", count):
        handle = local_steps(
            model,
            optimizer := adamw(model),
            LocalSettings(every=3, overlap=2, fragments=3, exact_below=100, deterministic=True, reduce=reduce),
        )
        train_steps(model, optimizer, _site(sites), range(14))
        handle.finish()
    far = {"a": 2, "b": -1, "c": 0}[_site(sites)]
    assert sent
    return hash_of(values(model)), sent.count(far)


def _ask_one_that_failed(sites: list[str]) -> str:
    """Site a fails in a round of its own; the others have none, and ask for its number."""
    rounds = GroupRounds()
    fragment = Fragment(0, (Range("w", 0, 300),))
    try:
        if _site(sites) == "a" and rounds.ranks.owns(0):
            offer = SiteOffer(0, 0, 0, 0, 1)
            rounds.reduce(offer, fragment, torch.zeros(300), None, Coding("no codec", 1.0, "mean")).wait()
        rounds.furthest(3)
    except (GeocommError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "answered"


def test_site_that_has_failed_answers_so() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        found = ranks.run(_ask_one_that_failed, ranks.sites)
        assert "answered" not in found
        assert "site 'a' has failed" in found[1]
