"""Ranks that do not fit together: every rank gets the same error, at once, naming ranks, option and values."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from geocomm.core.errors import AuthenticationError
from geocomm.security.job_ca import JobCa
from support.harness import Ranks, joined
from support.local_jobs import free_port, free_ports


def _require_refusal(ranks: Ranks, kind: str, *mentions: str, **arguments: object) -> None:
    outcomes = ranks.try_init(**arguments)
    for rank, outcome in enumerate(outcomes):
        message = outcome.require(kind).message
        for mention in mentions:
            assert mention in message, f"rank {rank}: {message}"


@pytest.mark.parametrize(
    ("variables", "mentions"),
    [
        ({"GEOCOMM_CODEC": "int8"}, ["codec", "int8", "none", "rank 2 (site b)", "site a, rank 1 (site b)"]),
        ({"GEOCOMM_SECURITY": "insecure"}, ["security", "insecure", "required", "rank 2"]),
        ({"GEOCOMM_MIN_COMPRESS_BYTES": "1kb"}, ["min_compress_bytes", "1000", "65536", "rank 2"]),
    ],
)
def test_init_with_options_that_differ_fails_on_every_rank(variables: dict[str, str], mentions: list[str]) -> None:
    with Ranks(["a", "b", "b"], environment_of={2: variables}) as ranks:
        _require_refusal(ranks, "InvalidArgumentError", *mentions)


def test_init_with_a_rank_without_site_names_it_on_every_rank() -> None:
    with Ranks(["a", None, "b", None]) as ranks:
        _require_refusal(ranks, "InvalidArgumentError", "GEOCOMM_SITE", "ranks 1, 3")


def test_init_with_keys_of_two_sites_and_no_site_is_refused_on_every_rank(tmp_path: Path) -> None:
    """As one site their tensors would be plaintext, which keys say that they must not be."""
    JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)
    keys = {rank: {"GEOCOMM_KEYS": str(tmp_path / "keys" / site)} for rank, site in enumerate("ab")}
    with Ranks([None, None], environment_of=keys) as ranks:
        _require_refusal(ranks, "InvalidArgumentError", "rank 0: site a", "rank 1: site b", "Set GEOCOMM_SITE")
    with joined([None, None], environment_of=dict.fromkeys(range(2), keys[0])):
        pass  # one site, with keys that nothing needs
    with Ranks([None, None], environment_of=keys | {1: {"GEOCOMM_KEYS": str(tmp_path / "none")}}) as ranks:
        _require_refusal(ranks, "InvalidArgumentError", str(tmp_path / "none"))


@pytest.mark.parametrize(
    "variables",
    [{"GEOCOMM_CODEC": "int9"}, {"GEOCOMM_STREAMS": "0"}, {"GEOCOMM_SECURITY": "off"}, {"GEOCOMM_KEYS": "/tmp/keys"}],
)
def test_init_with_a_bad_option_on_one_rank_fails_on_every_rank(variables: dict[str, str]) -> None:
    (name, value) = next(iter(variables.items()))
    with Ranks(["a", "b"], environment_of={1: variables}) as ranks:
        outcomes = ranks.try_init()
        own = outcomes[1].require("InvalidArgumentError").message
        assert name == "GEOCOMM_CODEC" or name in own
        assert name == "GEOCOMM_KEYS" or value in own
        assert "rank 1" in outcomes[0].require("InvalidArgumentError").message


def _pretend_version() -> None:
    from geocomm import _version

    if int(os.environ["RANK"]) == 1:
        _version.__version__ = "9.9.9"


def test_init_with_versions_that_differ_fails_on_every_rank() -> None:
    with Ranks(["a", "a"]) as ranks:
        ranks.run(_pretend_version)
        _require_refusal(ranks, "VersionMismatchError", "version of geocomm", "9.9.9", "rank 0", "rank 1")


def test_init_outside_loopback_without_tls_says_how_to_go_on() -> None:
    with Ranks(["a", "b"], environment_of={1: {"GEOCOMM_ADDRESS": "192.0.2.7"}}) as ranks:
        _require_refusal(ranks, "AuthenticationError", "rank 1", "192.0.2.7", "GEOCOMM_SECURITY=insecure")


def test_init_of_one_site_outside_loopback_needs_no_security() -> None:
    with joined(["a", "a"], environment={"GEOCOMM_ADDRESS": "192.0.2.7"}):
        pass


def _read_debug_level() -> None:
    dist.set_debug_level_from_env()


def test_init_with_detail_debugging_across_sites_is_refused() -> None:
    with Ranks(["a", "b"], environment_of={1: {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}) as ranks:
        ranks.run(_read_debug_level)
        _require_refusal(ranks, "UnsupportedError", "TORCH_DISTRIBUTED_DEBUG", "rank 1")


def _init_over_tcp(host: str, port: int) -> None:
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(host, port, 2, rank == 0, timedelta(seconds=30))
    try:
        dist.init_process_group("geocomm", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
        dist.destroy_process_group()
    finally:
        store.set(f"done{rank}", "1")
        if rank == 0:  # it has the server
            store.wait(["done0", "done1"])


def _refusal_over_tcp(host: str, port: int) -> str:
    with pytest.raises(AuthenticationError) as refused:
        _init_over_tcp(host, port)
    return str(refused.value)


def test_init_with_a_plaintext_store_beyond_loopback_is_refused_on_every_rank() -> None:
    with Ranks(["a", "b"]) as ranks:
        # This machine has no other address for certain; to dial 0.0.0.0 is to dial oneself.
        messages = ranks.run(_refusal_over_tcp, "0.0.0.0", free_port("0.0.0.0"))
        assert messages[0] == messages[1]
        assert "0.0.0.0" in messages[0]
        assert "geocomm run --hub" in messages[0]


def test_init_with_a_plaintext_store_on_loopback_or_inside_a_site_passes() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.run(_init_over_tcp, "localhost", free_port())
    with Ranks(["a", "a"]) as ranks:
        ranks.run(_init_over_tcp, "0.0.0.0", free_port("0.0.0.0"))


def _init_alone(path: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "geocomm", store=dist.FileStore(path), rank=rank, world_size=3, timeout=timedelta(seconds=2)
    )


def test_init_with_a_rank_that_never_comes_names_it() -> None:
    with Ranks(["a", "b", "b"]) as ranks:
        for outcome in ranks.outcomes(_init_alone, ranks.new_store(), ranks=[0, 1]):
            failure = outcome.require("OperationTimeoutError")
            # On a busy machine the other one may be late too.
            assert re.search(r"\branks? (\d, )*2\b", failure.message), failure.message
            assert "TimeoutError" in failure.kinds


def _pinned_ports() -> int:
    from geocomm.group.backend.runtime import runtime

    return runtime._endpoint[1].port


def test_pinned_port_is_port_plus_local_rank() -> None:
    ports = free_ports(2)
    local = {rank: {"LOCAL_RANK": str(rank)} for rank in range(2)}
    with joined(["a", "b"], environment={"GEOCOMM_PORT": str(ports[0])}, environment_of=local) as ranks:
        assert ranks.run(_pinned_ports) == ports
