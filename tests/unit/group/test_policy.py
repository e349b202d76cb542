"""A policy on its way from rank 0 to the others."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from geocomm import Options
from geocomm.codecs.codec_facts import FACTS
from geocomm.core.errors import InvalidArgumentError, VersionMismatchError
from geocomm.core.link_table import Links
from geocomm.group.backend.policy import Policy, agree
from geocomm.group.membership.rank_record import RankInfo
from geocomm.group.planning.codec_choice import candidates, measure, worth_measuring

POLICY = Policy(epoch=3, links=Links.uniform(("a", "b"), rate_bps=12345.678, rtt_s=0.1), codecs=((0, "none"),))
KEY = "geocomm/policy/3"


SPEEDS = {"none": [1e-9, 2e-9], "int8": [3e-9, 4e-9]}


def _decided(links: Links, **second: object) -> Policy:
    """By two ranks of site a, and one each of the others; the second rank of a is the slowest."""
    slow = {codec: [2 * seconds for seconds in both] for codec, both in SPEEDS.items()}
    infos = [RankInfo(rank, rank, site, codes_on_gpu=True, codec_speeds=SPEEDS) for rank, site in enumerate("abc")]
    infos.append(RankInfo(3, 3, "a", **{"codes_on_gpu": True, "codec_speeds": slow} | second))  # type: ignore[arg-type]
    return Policy.decide(0, links, infos, Options(codec="int8"))


def test_what_the_host_takes_counts_where_all_ranks_code_on_gpus_and_regions_would_not() -> None:
    links = Links.uniform("abc", 1e9, 0.01)
    by_region = links.model_copy(update={"regions": ("x", "x", "y")})
    decided = _decided(by_region)
    assert decided.coding == (("none", 2e-9, 4e-9, 2e-9), ("int8", 6e-9, 8e-9, 2e-9))
    _, _, coding = decided.for_native()
    assert [(str(codec).split(":")[0], *seconds) for codec, *seconds in coding] == list(decided.coding)
    store = dist.HashStore()
    assert agree(store, 0, 0, lambda: decided) == agree(store, 1, 0, never) == decided
    assert _decided(links).coding == ()
    assert _decided(by_region, codes_on_gpu=False).coding == ()


def test_speeds_are_measured_where_they_decide_something() -> None:
    links = Links.uniform("abc", 1e9, 0.01)
    by_region = links.model_copy(update={"regions": ("x", "x", "y")})
    int8, auto = Options(codec="int8"), Options(codec="auto")
    assert worth_measuring(auto, None, codes_on_gpu=False) == candidates(auto)
    assert worth_measuring(int8, by_region, codes_on_gpu=False) == ()
    assert worth_measuring(int8, links, codes_on_gpu=True) == ()
    measured = measure(worth_measuring(int8, by_region, codes_on_gpu=True), 1)
    assert measured.keys() == FACTS.keys()
    assert min(map(min, measured.values())) > 0.0


def never() -> Policy:
    raise AssertionError("only rank 0 decides")


def test_followers_have_the_policy_of_rank_0() -> None:
    store = dist.HashStore()
    assert agree(store, 0, 3, lambda: POLICY) == POLICY
    followed = agree(store, 1, 3, never)
    assert followed == POLICY
    assert followed.links.digest() == POLICY.links.digest()
    assert followed.links.source == POLICY.links.source


def test_what_rank_0_could_not_decide_is_raised_everywhere() -> None:
    store = dist.HashStore()
    with pytest.raises(ZeroDivisionError):
        agree(store, 0, 3, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidArgumentError, match="rank 0 could not decide: ZeroDivisionError"):
        agree(store, 1, 3, never)


def test_policy_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    store = dist.HashStore()
    later = POLICY.model_dump(mode="json") | {"colour": "red"}
    store.set(KEY, json.dumps({"decision": later}))
    assert agree(store, 1, 3, never) == POLICY


@pytest.mark.parametrize("change", [{"codecs": None}, {"links": {"sites": ["a", "b"]}}, {"epoch": "soon"}])
def test_policy_that_cannot_be_read_is_of_another_version(change: dict[str, object]) -> None:
    store = dist.HashStore()
    store.set(KEY, json.dumps({"decision": POLICY.model_dump(mode="json") | change}))
    with pytest.raises(VersionMismatchError, match="same version"):
        agree(store, 1, 3, never)
