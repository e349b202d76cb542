"""Arguments of geocomm.compress and decompress, and what the environment sets for them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import geocomm
from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError, OutputTooSmallError, UnsupportedError
from geocomm.core.native import native
from support.harness import Outcome, Ranks


def run(function: Callable[[], Any], **variables: str) -> Outcome:
    """In a process with these variables that has not used geocomm."""
    with Ranks([None], environment=variables, time_limit=60) as alone:
        return alone.outcomes(function)[0]


def test_presets_are_codecs_and_none_needs_more_than_its_name() -> None:
    presets = geocomm.codec_presets()
    assert list(presets) == ["lossless", "int8", "int4", "balanced", "small", "tiny"]
    for preset, codec in presets.items():
        assert codec_spec(preset) == codec_spec(codec)
        geocomm.compress(torch.ones(300), preset, torch.zeros(300))


@pytest.mark.parametrize("codec", ["tiny", "topk", "loco"])
def test_codec_that_needs_error_feedback_without_residual_says_what_to_pass(codec: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"residual=torch\.zeros\(5\)"):
        geocomm.compress(torch.ones(5), codec)


@pytest.mark.parametrize("decay", [float("nan"), float("inf"), 1e300])
def test_decay_that_is_not_finite_is_refused(decay: float) -> None:
    with pytest.raises(InvalidArgumentError, match="decay"):
        geocomm.compress(torch.ones(5), "int8", torch.zeros(5), decay=decay)


def test_decay_scales_the_residual_that_is_added() -> None:
    residual = torch.full((4,), 8.0)
    assert geocomm.decompress(geocomm.compress(torch.ones(4), "bf16", residual, decay=0.25)).tolist() == [3.0] * 4
    assert residual.tolist() == [0.0] * 4


@pytest.mark.parametrize("size", [0, 10])
def test_out_that_is_too_small_is_refused_and_left(size: int) -> None:
    out = torch.full((size,), 7, dtype=torch.uint8)
    with pytest.raises(OutputTooSmallError, match=rf"out has {size} bytes.*compress_bound"):
        geocomm.compress(torch.ones(300), "int8", out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("out", [torch.zeros(9999), torch.zeros(9999, dtype=torch.uint8)[::2]])
def test_out_that_is_not_contiguous_bytes_is_refused(out: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match="out must be"):
        geocomm.compress(torch.ones(300), "int8", out=out)


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_threads_out_of_range_are_refused(threads: int) -> None:
    with pytest.raises(InvalidArgumentError, match="threads"):
        geocomm.compress(torch.ones(5), "int8", threads=threads)
    with pytest.raises(InvalidArgumentError, match="threads"):
        geocomm.decompress(geocomm.compress(torch.ones(5), "int8"), threads=threads)


def test_tensor_on_another_device_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="meta"):
        geocomm.compress(torch.ones(5, device="meta"), "int8")


@pytest.mark.parametrize("out", [None, torch.zeros(5, dtype=torch.float64), torch.zeros(4), torch.zeros(10)[::2]])
def test_add_into_anything_but_as_many_contiguous_floats_is_refused(out: torch.Tensor | None) -> None:
    payload = geocomm.compress(torch.ones(5), "int8")
    with pytest.raises(InvalidArgumentError, match="to add to"):
        geocomm.decompress(payload, out=out, add=True)


def test_add_of_a_dtype_that_is_not_added_is_unsupported() -> None:
    payload = geocomm.compress(torch.ones(5, dtype=torch.int32), "none")
    with pytest.raises(UnsupportedError):
        geocomm.decompress(payload, out=torch.zeros(5), add=True)


def test_cpu_level_beyond_the_machines_is_refused_and_leaves_the_level() -> None:
    before = native().cpu_level()
    with pytest.raises(InvalidArgumentError, match="avx1024"):
        native().set_cpu_level("avx1024")
    assert native().cpu_level() == before


def _cpu_level() -> str:
    return native().cpu_level()


def test_geocomm_cpu_is_applied_when_the_module_is_first_used() -> None:
    assert run(_cpu_level, GEOCOMM_CPU="scalar").value == "scalar"
    assert run(_cpu_level, GEOCOMM_CPU="").value == native().detected_cpu_level()
    assert run(_cpu_level).value == native().detected_cpu_level()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"GEOCOMM_CPU": "avx22"}, "did you mean 'avx2'"),
        ({"GEOCOMM_THREADS": "0"}, "from 1 to 1024"),
        ({"GEOCOMM_THREADS": "many"}, "GEOCOMM_THREADS=many"),
    ],
)
def test_bad_variable_is_refused_with_the_right_spelling(variables: dict[str, str], said: str) -> None:
    assert said in run(_compress, **variables).require("InvalidArgumentError").message


def _compress() -> None:
    geocomm.compress(torch.ones(3), "int8")


def test_geocomm_threads_counts_the_caller_and_starts_threads_only_when_needed() -> None:
    assert run(_threads_started, GEOCOMM_THREADS="3").value == 2
    assert run(_threads_started, GEOCOMM_THREADS="1").value == 0


def _threads_started() -> int:
    tensor = torch.ones(1 << 20)
    geocomm.codec_names()
    before = len(os.listdir("/proc/self/task"))
    geocomm.compress(tensor, "int8")
    return len(os.listdir("/proc/self/task")) - before


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "bit1", "balanced", "lossless"])
def test_large_payload_owns_just_its_bytes_and_touches_no_others(codec: str, threads: int) -> None:
    """Without `out` the room is for the worst case: far more than what comes of finite values."""
    tensor = torch.randn(20 << 20)
    expected = geocomm.compress(
        tensor, codec, out=torch.empty(geocomm.compress_bound(tensor, codec), dtype=torch.uint8)
    )
    before = _resident_bytes()
    payload = geocomm.compress(tensor, codec, threads=threads)
    grown = _resident_bytes() - before
    assert torch.equal(payload, expected)
    assert payload.untyped_storage().nbytes() == payload.numel()
    assert grown < 1.02 * payload.numel() + (12 << 20)  # with huge pages, and what each thread keeps


def test_large_payload_can_be_grown_copied_and_outlived() -> None:
    tensor = torch.randn(10 << 20)
    payload = geocomm.compress(tensor, "int8", threads=1)
    bits = payload.clone()
    view = payload[100:200]
    del payload
    assert torch.equal(view, bits[100:200])
    payload = geocomm.compress(tensor, "int8", threads=1)
    payload.resize_(2 * bits.numel())
    assert torch.equal(payload[: bits.numel()], bits)
    stored = io.BytesIO()
    torch.save(geocomm.compress(tensor, "int8", threads=1), stored)
    assert stored.tell() < 1.02 * bits.numel()


def test_large_payload_that_is_all_raw_fits_its_room() -> None:
    tensor = torch.full((9 << 20,), float("nan"))
    for threads in (1, 2):
        payload = geocomm.compress(tensor, "int8", threads=threads)
        assert payload.numel() <= geocomm.compress_bound(tensor, "int8")
        assert geocomm.decompress(payload).isnan().all()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
