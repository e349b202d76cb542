"""Which field is named where the backend refuses a codec, or local steps a number."""

from __future__ import annotations

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.train.loop.config_text import load_config
from geocomm.train.loop.driver import _backend_options


@pytest.mark.parametrize(
    ("assignments", "field"),
    [
        (["distributed.codec=int9"], "distributed.codec"),
        (["distributed.codec=tiny"], "distributed.codec"),
        (["sync.codec=int9"], "--set: sync.codec"),
        (["sync.mode=local", "sync.codec=int9"], "--set: sync.codec"),
        (["sync.mode=local", "sync.every=0"], "--set: sync.every"),
        (["sync.mode=local", "sync.overlap=-1"], "--set: sync.overlap"),
        (["sync.mode=local", "sync.overlap=31"], "sync: overlap is 31"),
        (["sync.mode=local", "sync.fragments=0"], "--set: sync.fragments"),
        (["sync.mode=local", "sync.merge=1"], "--set: sync.merge"),
        (["sync.mode=local", "sync.decay=2"], "--set: sync.decay"),
        (["sync.mode=local", "sync.outer={lr: -1, momentum: 0}"], "--set: sync.outer: the outer lr is -1.0"),
        (["sync.mode=local", "sync.outer={lr: 1, momentum: 1}"], "--set: sync.outer: the outer momentum is 1.0"),
    ],
)
def test_what_is_refused_is_said_of_a_field(assignments: list[str], field: str) -> None:
    with pytest.raises(BadInput, match=rf"^{field}[:;] "):
        _backend_options(load_config(None, assignments))


def test_a_codec_of_the_environment_is_that_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOCOMM_CODEC", "int9")
    with pytest.raises(BadInput, match=r"^GEOCOMM_CODEC: "):
        _backend_options(load_config(None))
