"""A policy on its way from rank 0 to the others."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from geocomm.core.errors import InvalidArgumentError, VersionMismatchError
from geocomm.group.backend.policy import Policy, agree
from geocomm.group.planning.link_table import Links

POLICY = Policy(epoch=3, links=Links.uniform(("a", "b"), rate_bps=12345.678, rtt_s=0.1), codecs=((0, "none"),))
KEY = "geocomm/policy/3"


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
