"""torch's reconfigure over sites: ranks die, leave and come, while the processes of the others live on."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.security.job_ca import JobCa
from support.harness import Ranks
from support.reconfigured import handle, join, meet, reconfigure, total, values

pytestmark = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="torch before 2.14 has no reconfigure"
)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, dict[str, str]]:
    """Variables of the ranks, by site."""
    folder = tmp_path / "keys"
    JobCa.create(folder, "run7", ["a", "b", "c"], 30)
    return {site: {"GEOCOMM_KEYS": str(folder / site), "GEOCOMM_SECURITY": "required"} for site in "abc"}


@pytest.fixture
def three(keys: dict[str, dict[str, str]]) -> Iterator[Ranks]:
    """One rank each at sites a, b and c, with keys, which have joined; and one more process of site c."""
    environment = {rank: keys["abcc"[rank]] for rank in range(4)}
    with Ranks(["a", "b", "c", "c"], environment_of=environment) as ranks:
        values(ranks.outcomes(join))
        yield ranks


def _all_kinds() -> list[float]:
    """A few operations by rank numbers, of which torch has its own idea."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = torch.full((1000,), float(rank))
    dist.broadcast(sent, src=size - 1)
    gathered = [torch.zeros(10) for _ in range(size)]
    dist.all_gather(gathered, torch.full((10,), float(rank)))
    received = torch.zeros(10)
    if size == 1:
        received.fill_(7.0)
    elif rank == 0:
        dist.recv(received, src=size - 1)
    elif rank == size - 1:
        dist.send(torch.full((10,), 7.0), dst=0)
    return [sent[0].item(), *(one[0].item() for one in gathered), received[0].item()]


def _ciphers() -> set[str]:
    from geocomm.group.backend.runtime import runtime

    _, endpoint = runtime._endpoint
    return {channel["cipher"] for channel in endpoint.channel_stats()}


def _sum_until_it_fails(value: float) -> str:
    """The error that ended it."""
    try:
        while True:
            total(value, 3_000_000)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_ranks_leave_and_come_back_and_torch_knows_their_numbers(three: Ranks) -> None:
    for uuid, members in enumerate([[0, 1, 2], [2, 0], [1, 2, 0], [0], [0, 1, 2]]):
        size = len(members)
        assert values(meet(three, uuid, members)) == [(rank, size) for rank in range(size)]
        assert values(three.outcomes(total, 2.0, ranks=members)) == [2.0 * size] * size
        found = values(three.outcomes(_all_kinds, ranks=members))
        expected = [float(size - 1), *map(float, range(size))]
        assert [one[:-1] for one in found] == [expected] * size
        assert found[0][-1] == 7.0
        if size > 1:
            for ciphers in values(three.outcomes(_ciphers, ranks=members)):
                assert ciphers <= {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
    three.destroy()


def test_killed_site_is_done_without_and_one_that_comes_is_taken_in(three: Ranks) -> None:
    values(meet(three, 1, [0, 1, 2]))
    three.begin(_sum_until_it_fails, 1.0, ranks=[0, 1, 2])
    time.sleep(1)
    three.signal(2, signal.SIGKILL)
    *survivors, killed = three.finish(ranks=[0, 1, 2])
    assert killed.exit_code == -signal.SIGKILL
    for survivor in values(survivors):
        assert survivor.startswith("PeerLostError")
        assert "rank 2 (site c" in survivor
    assert values(meet(three, 2, [0, 1])) == [(0, 2), (1, 2)]
    assert values(three.outcomes(total, 3.0, ranks=[0, 1])) == [6.0, 6.0]
    assert values(meet(three, 3, [0, 1, 3])) == [(0, 3), (1, 3), (2, 3)]
    assert values(three.outcomes(total, 3.0, ranks=[0, 1, 3])) == [9.0] * 3


def test_set_of_handles_gives_the_same_order_on_all_ranks(three: Ranks) -> None:
    handles = {outcome.value for outcome in three.outcomes(handle, ranks=[0, 1, 2])}
    found = values(three.outcomes(reconfigure, 5, handles, ranks=[0, 1, 2]))
    assert sorted(found) == [(0, 3), (1, 3), (2, 3)]
    assert values(three.outcomes(total, 1.0, ranks=[0, 1, 2])) == [3.0] * 3


def test_wrong_arguments_are_refused_in_words_and_leave_the_group_as_it_is(three: Ranks) -> None:
    before = [outcome.value for outcome in three.outcomes(handle, ranks=[0, 1])]
    values(three.outcomes(reconfigure, 1, before, ranks=[0, 1]))
    own, other = (outcome.value for outcome in three.outcomes(handle, ranks=[0, 1]))
    newer = json.dumps(json.loads(other) | {"geocomm": 2})
    moved = json.dumps(json.loads(own) | {"store": "elsewhere"})
    refused: list[tuple[int, Any, str]] = [
        (1, before, "is from before its last reconfigure"),
        (2, [other], "do not hold this rank's"),
        (2, [], "do not hold this rank's"),
        (2, [own, "gloo:0:1:0:"], "handle 1 of reconfigure cannot be read"),
        (2, [own, newer], "handle 1 of reconfigure cannot be read"),
        (2, [own, other, other], "rank 2 is there twice"),
        (2, [moved, other], "was changed on its way"),
    ]
    for uuid, handles, message in refused:
        (outcome,) = three.outcomes(reconfigure, uuid, handles, ranks=[0])
        assert message in outcome.require("InvalidArgumentError").message
    assert values(three.outcomes(total, 1.0, ranks=[0, 1])) == [2.0, 2.0]


def test_ranks_that_do_not_meet_hear_of_it_and_can_try_again(three: Ranks) -> None:
    values(meet(three, 1, [0, 1, 2]))
    handles = values(three.outcomes(handle, ranks=[0, 1, 2]))
    three.begin(reconfigure, 2, handles, 3, ranks=[0])
    three.begin(reconfigure, 3, handles, 3, ranks=[1])
    first, second = three.finish(ranks=[0, 1])  # and rank 2 does not come at all
    for uuid, outcome in ((2, first), (3, second)):
        message = outcome.require("DistNetworkError").message
        assert f"reconfigure (uuid {uuid}) of 3 ranks failed" in message
        assert "same uuid" in message
    assert "reconfigure()" in three.outcomes(total, 1.0, ranks=[0])[0].require("AbortedError").message
    assert values(meet(three, 4, [0, 1, 2])) == [(0, 3), (1, 3), (2, 3)]
    assert values(three.outcomes(total, 1.0, ranks=[0, 1, 2])) == [3.0] * 3


def _abort() -> None:
    dist.group.WORLD.abort()


def _words_of_a_wait(uuid: int, handles: list[str]) -> list[str]:
    """What is said while others do not come."""
    from geocomm.group.backend import reconfiguration

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("geocomm").addHandler(handler)
    reconfiguration._WORD_S = 0
    with contextlib.suppress(dist.DistError):
        reconfigure(uuid, handles, 2)
    return said


def test_long_wait_is_told_with_who_is_waited_for(three: Ranks) -> None:
    handles = values(three.outcomes(handle, ranks=[0, 1, 2]))
    (said,) = values(three.outcomes(_words_of_a_wait, 7, handles, ranks=[0]))
    assert "waiting for ranks 1, 2 to call reconfigure (uuid 7), at rank 0" in said


def test_abort_ends_operations_and_the_group_can_be_formed_again(three: Ranks) -> None:
    values(meet(three, 1, [0, 1]))
    three.begin(_sum_until_it_fails, 1.0, ranks=[1])
    values(three.outcomes(_abort, ranks=[0]))
    assert "Error" in values(three.finish(ranks=[1]))[0]
    values(meet(three, 2, [0, 1]))
    assert values(three.outcomes(total, 1.0, ranks=[0, 1])) == [2.0, 2.0]


def test_handle_of_a_job_with_other_keys_is_refused(keys: dict[str, dict[str, str]], tmp_path: Path) -> None:
    other = tmp_path / "other"
    JobCa.create(other, "run8", ["b"], 30)
    shutil.rmtree(keys["b"]["GEOCOMM_KEYS"])
    shutil.copytree(other / "b", keys["b"]["GEOCOMM_KEYS"])
    with Ranks(["a", "b"], environment_of={0: keys["a"], 1: keys["b"]}) as ranks:
        values(ranks.outcomes(join))
        for outcome in meet(ranks, 1, [0, 1]):
            assert "belongs to a job with other keys" in outcome.require("AuthenticationError").message


def _join_as(site: str) -> str:
    """Join with a handle that names another site than this rank's keys."""
    import dataclasses

    from geocomm.group.backend import reconfiguration

    introduce = reconfiguration.introduce

    def lie(*arguments: Any) -> Any:
        info, options, endpoint = introduce(*arguments)
        return dataclasses.replace(info, site=site), options, endpoint

    reconfiguration.introduce = lie
    return join()


def test_rank_cannot_name_another_site_than_its_keys(keys: dict[str, dict[str, str]]) -> None:
    with Ranks(["a", "b"], environment_of={0: keys["a"], 1: keys["b"]}) as ranks:
        values(ranks.outcomes(join, ranks=[0]))
        values(ranks.outcomes(_join_as, "c", ranks=[1]))
        honest, liar = meet(ranks, 1, [0, 1], 5)  # whoever dials hears why, the other one waits in vain
        assert "rank 1 (site c" in honest.require("DistError").message
        liar.require("DistError")
        ranks.outcomes(total, 1.0)[0].require("AbortedError")


def test_ranks_of_one_site_meet_in_their_store(tmp_path: Path) -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        for site, members in (("a", [0, 1]), ("b", [2])):
            values(ranks.outcomes(join, str(tmp_path / site), ranks=members))
        values(meet(ranks, 1, [0, 1, 2]))
        assert values(ranks.outcomes(total, 1.0)) == [3.0] * 3
        values(meet(ranks, 2, [1, 2]))
        assert values(ranks.outcomes(total, 1.0, ranks=[1, 2])) == [2.0] * 2
        values(meet(ranks, 3, [1, 0]))  # of one site alone
        assert values(ranks.outcomes(total, 1.0, ranks=[1, 0])) == [2.0] * 2


def test_ranks_of_one_site_without_a_common_store_are_told_so() -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        values(ranks.outcomes(join))
        for outcome in meet(ranks, 1, [0, 1, 2]):
            message = outcome.require("InvalidArgumentError").message
            assert "ranks 0, 1 are at site a and were not given the same store" in message


def _new_group() -> None:
    dist.new_group([0, 1])


def _refresh_links() -> None:
    import geocomm

    geocomm.refresh_links()


def test_codec_auto_is_agreed_and_what_needs_a_common_store_is_refused() -> None:
    with Ranks(["a", "b"], environment={"GEOCOMM_CODEC": "auto", "GEOCOMM_CODECS": "int8,none"}) as ranks:
        values(ranks.outcomes(join))
        assert "reconfigure()" in ranks.outcomes(total, 1.0)[0].require("AbortedError").message
        values(meet(ranks, 1, [0, 1]))
        assert values(ranks.outcomes(total, 0.0)) == [0.0] * 2
        for refused in (_new_group, _refresh_links):
            for outcome in ranks.outcomes(refused):
                outcome.require("UnsupportedError")


@pytest.mark.parametrize(
    ("site", "environment", "message"),
    [
        (None, {}, "needs GEOCOMM_SITE"),
        ("a", {"GEOCOMM_ADDRESS": "192.0.2.1"}, "has no keys for TLS"),
        ("a", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "cannot reconfigure: use INFO"),
    ],
    ids=["no site", "plaintext", "debugging"],
)
def test_options_that_do_not_fit_are_refused(site: str | None, environment: dict[str, str], message: str) -> None:
    with Ranks([site], environment=environment) as ranks:
        (outcome,) = ranks.outcomes(join)
        assert message in outcome.require("GeocommError").message
