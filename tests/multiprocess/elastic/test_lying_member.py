"""A member that lies in every field, in a live run of three sites: the others train on, and the run ends in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.journal.claims import MOST_TIMES
from geocomm.elastic.leading.questions import LeaderAnswer, RemovalAsked, ask
from support.elastic_rank import MODEL, STEP_S
from support.elastic_sites import ElasticSites
from support.hub_support import make_keys, run
from support.lying_member import LyingMember

pytestmark = pytest.mark.timeout(1200)
SAMPLE = 150


@pytest.mark.parametrize("most", [SAMPLE, pytest.param(None, marks=pytest.mark.slow)])
def test_member_that_lies_in_any_field_costs_the_others_nothing(tmp_path: Path, most: int | None) -> None:
    keys = make_keys(tmp_path / "keys", "abc")
    with ElasticSites(tmp_path, {name: keys[name] for name in "ab"}, wait_for=("a", "b")) as sites:
        sites.start()
        leader = Address.parse(sites["a"].leader)
        processes = [process for site in sites.values() for process in (site.agent, site.rank)]
        told = counted = 0

        async def lie() -> None:
            nonlocal told, counted
            agents = [Address.parse(site.listen) for site in sites.values()]
            async with LyingMember(keys["c"], leader, agents, MODEL, seed=len(sites["a"].entries())) as liar:
                await liar.tell(liar.all_lies()[:most])
                told, counted = liar.told, liar.counted
            removed = await ask(leader, keys["a"], RemovalAsked(site="c", why="it lies"), LeaderAnswer)
            assert not removed.problem

        before = sites["a"].listed("b")
        run(lie(), 1000)
        assert all(process is not None and process.poll() is None for process in processes), sites["a"].text()
        rounds = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) > rounds + 2, "rounds come")
        assert sites["a"].listed("b") > before
        steps = sum(1 for _ in sites["a"].rounds()) * MODEL.every * MOST_TIMES
        assert sites["a"].state().step < steps
        for site in sites.values():
            site.leave()
        sites.until(lambda: sites["a"].state().ended, "the run has ended")
        for site in sites.values():
            sites.until(lambda site=site: site.agent is not None and site.agent.poll() == 0, "its agent has ended")
            assert site.rank is not None
            assert site.rank.wait(100) == 0
            assert "Traceback" not in site.text()
            [line] = [line for line in site.text().splitlines() if line.startswith("steps: ")]
            print(f"site {site.name}, {told} lies, {counted} frames of the liar counted, step {STEP_S} s: {line}")
