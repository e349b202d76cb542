"""Where CUDA tensors are coded: the choice from two measurements, and these themselves, with the CPU as device."""

from __future__ import annotations

import pytest
import torch

from geocomm.codecs.codec_spec import collective_form
from geocomm.codecs.tensor_codec import codec_presets
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native
from geocomm.group.planning.coding_place import CodingTimes, choose_places, least_bytes, measure, measured_places

SMALL, LARGE = 1 << 20, 1 << 24


@pytest.mark.parametrize(
    ("small", "large", "least"),
    [
        ((1.0, 2.0), (3.0, 9.0), 0),
        ((2.0, 2.0), (9.0, 9.0), 0),
        ((2.0, 1.0), (9.0, 8.0), None),
        ((1.0, 2.0), (9.0, 8.0), None),  # what is larger still is further behind
        ((5.0, 1.0), (10.0, 8.0), 2 * LARGE - SMALL),
        ((2.0, 1.0), (3.0, 4.0), (SMALL + LARGE) // 2),
        ((2.0, 1.0), (4.0, 4.0), LARGE),
    ],
)
def test_gpu_codes_from_the_size_on_at_which_it_is_sooner(
    small: tuple[float, float], large: tuple[float, float], least: int | None
) -> None:
    assert least_bytes(CodingTimes(SMALL, *small), CodingTimes(LARGE, *large)) == least


@pytest.mark.parametrize("codec", ["int8", "balanced", "tiny"])
def test_measured_is_each_size_of_a_codec_both_ways(codec: str) -> None:
    sizes = (1 << 14, 1 << 16)
    found = measure(torch.device("cpu"), codec, 1, sizes)
    assert [one.size_bytes for one in found] == list(sizes)
    assert all(one.gpu_s > 0 and one.host_s > 0 for one in found)


def test_chosen_places_have_every_lossy_preset_and_reach_the_native_module() -> None:
    device = torch.device("cpu")
    choose_places(device, 2)
    places = measured_places(device, 2)
    assert places is measured_places(device, 2)  # once a process
    assert {codec for codec in codec_presets() if not collective_form(codec).exact} <= set(places)


def test_native_module_refuses_a_codec_that_is_none() -> None:
    native().code_on_device_from("int8", None)
    native().code_on_device_from("int8", 0)
    with pytest.raises(InvalidArgumentError):
        native().code_on_device_from("nothing", 0)
