"""Groups whose sites have keys: TLS between them, and the same refusal on every rank where the keys do not fit."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from geocomm.security.job_ca import JobCa
from support.harness import Ranks, joined


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, dict[str, str]]:
    """Variables of the ranks, by site."""
    folder = tmp_path / "keys"
    JobCa.create(folder, "run7", ["a", "b"], 30)
    return {site: {"GEOCOMM_KEYS": str(folder / site), "GEOCOMM_SECURITY": "required"} for site in "ab"}


def _sum_and_ciphers() -> tuple[float, list[str]]:
    from geocomm.group.backend.runtime import runtime

    tensor = torch.full((300_000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    _, endpoint = runtime._endpoint
    return float(tensor[0]), [channel["cipher"] for channel in endpoint.channel_stats()]


def test_all_reduce_between_sites_with_keys_is_encrypted_on_every_channel(keys: dict[str, dict[str, str]]) -> None:
    with joined(["a", "a", "b", "b"], environment_of={rank: keys["aabb"[rank]] for rank in range(4)}) as ranks:
        for total, ciphers in ranks.run(_sum_and_ciphers):
            assert total == 10.0
            assert len(ciphers) >= 1
            assert set(ciphers) <= {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


def test_keys_on_one_site_only_are_named_on_every_rank(keys: dict[str, dict[str, str]]) -> None:
    with Ranks(["a", "b"], environment_of={0: keys["a"]}) as ranks:
        for outcome in ranks.try_init():
            message = outcome.require("InvalidArgumentError").message
            assert "option keys" in message
            assert "not set" in message


def test_keys_of_another_site_are_refused_on_every_rank(keys: dict[str, dict[str, str]]) -> None:
    with Ranks(["a", "b"], environment_of={0: keys["a"], 1: keys["a"]}) as ranks:
        own = ranks.try_init()[1].require("InvalidArgumentError").message
        assert "geocomm://run7/a" in own
        assert "GEOCOMM_KEYS" in own


def test_readers_keys_make_no_rank(keys: dict[str, dict[str, str]]) -> None:
    """Those of one that has the very name of the site, too."""
    folder = Path(keys["a"]["GEOCOMM_KEYS"]).parent
    (folder / "b").rename(folder / "site-b")
    JobCa.open(folder).add("b", 30, reader=True)
    with Ranks(["a", "b"], environment_of={0: keys["a"], 1: keys["b"]}) as ranks:
        own = ranks.try_init()[1].require("InvalidArgumentError").message
        assert "names no geocomm://job/site" in own


def test_private_key_that_others_may_read_is_refused(keys: dict[str, dict[str, str]]) -> None:
    (Path(keys["b"]["GEOCOMM_KEYS"]) / "key.pem").chmod(0o644)
    with Ranks(["a", "b"], environment_of={0: keys["a"], 1: keys["b"]}) as ranks:
        assert "chmod 600" in ranks.try_init()[1].require("InvalidArgumentError").message


def test_keys_of_another_job_end_the_group_with_an_error_that_says_so(
    keys: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    JobCa.create(other, "run8", ["b"], 30)
    shutil.rmtree(keys["b"]["GEOCOMM_KEYS"])
    shutil.copytree(other / "b", keys["b"]["GEOCOMM_KEYS"])
    with Ranks(["a", "b"], environment_of={0: keys["a"], 1: keys["b"]}) as ranks:
        ranks.init(timeout=timedelta(seconds=10))
        messages = [outcome.failure.message for outcome in ranks.outcomes(_sum_and_ciphers) if outcome.failure]
        assert any("signed by" in message for message in messages), messages
