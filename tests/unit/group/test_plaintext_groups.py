"""Which groups of Gloo and others may be, by what their ranks say; and the function of torch that makes all groups."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from geocomm import _autoload
from geocomm.core.errors import InvalidArgumentError
from geocomm.group.backend import group_admission
from geocomm.group.membership.rank_record import RankInfo


def rank_at(site: str, host: str, security: str, keys: str) -> RankInfo:
    return RankInfo(0, 0, site=site, hosts=[host], agreed={"security": security, "keys": keys})


@pytest.mark.parametrize(
    ("sites", "host", "security", "keys", "refused"),
    [
        ("ab", "192.0.2.1", "required", "set", True),
        ("ab", "192.0.2.1", "required", "not set", True),
        ("ab", "127.0.0.1", "required", "set", True),
        ("ab", "127.0.0.1", "required", "not set", False),  # as geocomm's own plaintext
        ("aa", "192.0.2.1", "required", "set", False),
        ("ab", "192.0.2.1", "insecure", "not set", False),
    ],
)
def test_group_of_another_backend_is_refused_where_it_would_carry_plaintext_between_sites(
    sites: str, host: str, security: str, keys: str, refused: bool
) -> None:
    infos = [rank_at(site, host, security, keys) for site in sites]
    if refused:
        with pytest.raises(InvalidArgumentError, match="of gloo over the sites a, b sends PLAINTEXT"):
            group_admission.check_other_backend(infos, "gloo", 0)
    else:
        group_admission.check_other_backend(infos, "gloo", 0)


@pytest.mark.parametrize(("rank", "times"), [(0, 1), (1, 0), (None, 0)])
def test_insecure_job_of_another_backend_is_warned_once(
    caplog: pytest.LogCaptureFixture, rank: int | None, times: int
) -> None:
    group_admission._warn_of_plaintext.forget()
    infos = [rank_at(site, "192.0.2.1", "insecure", "not set") for site in "ab"]
    for _ in range(3):
        group_admission.check_other_backend(infos, "gloo", rank)
    assert caplog.text.count("PLAINTEXT") == times


def test_function_of_torch_that_makes_every_group_is_looked_at() -> None:
    made = distributed_c10d._new_process_group_helper
    assert inspect.getsourcefile(inspect.unwrap(made)) == inspect.getsourcefile(distributed_c10d)
    assert inspect.unwrap(made) is not made
    assert made.__code__.co_filename == _autoload.__file__


def test_torch_that_makes_groups_otherwise_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def make(size: int, rank: int) -> Any: ...

    monkeypatch.setattr(dist.Backend, "backend_list", ["gloo"])
    monkeypatch.setattr(dist.Backend, "register_backend", lambda *_, **__: None)
    monkeypatch.setattr(sys.modules["torch.distributed.rendezvous"], "_rendezvous_handlers", {})
    monkeypatch.setattr(distributed_c10d, "_new_process_group_helper", make)
    _autoload.register()
    assert "make has no backend, backend_options, global_ranks_in_group" in caplog.text
    assert distributed_c10d._new_process_group_helper is make
