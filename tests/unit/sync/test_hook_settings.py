"""What a user may give for a gradient hook, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.gradients.hook_settings import HookSettings, ReductionPlan

_LORA = {"A": (8, 256), "B": (256, 8)}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"codec": "int9"}, "codec: .*did you mean 'int8'"),
        ({"codec": None}, "codec: "),
        ({"warmup_steps": -1}, "warmup_steps: "),
        ({"decay": 1.5}, "decay: "),
        ({"guard_steps": 0}, "guard_steps: "),
        ({"exact": ["("]}, "exact: '\\(' is not a regular expression"),
    ],
)
def test_value_that_cannot_be_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^geocomm.HookSettings: {named}"):
        HookSettings(**given)


def test_unknown_field_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match="HookSettings has no field 'warmup'; did you mean 'warmup_steps'"):
        HookSettings(warmup=3)  # pyright: ignore[reportCallIssue]


def test_name_of_a_codec_stands_for_settings() -> None:
    given = HookSettings(codec="small", warmup_steps=3)
    assert HookSettings.of(given) is given
    assert HookSettings.of("small") == HookSettings(codec="small")


def test_schedule_is_exact_through_the_warm_up() -> None:
    assert ReductionPlan.of(HookSettings(codec="small", warmup_steps=3)).schedule == ((0, "none"), (3, "small"))
    assert ReductionPlan.of(HookSettings(codec="small", warmup_steps=0)).schedule == ((0, "small"),)


@pytest.mark.parametrize(
    ("name", "shape", "exact"),
    [
        ("layers.0.weight", (100, 50), False),
        ("layers.0.weight", (5000,), True),
        ("layers.0.weight", (10, 10), True),
        ("input_norm.weight", (100, 50), True),
        ("head.weight", (100, 50), True),
    ],
)
def test_small_and_named_parameters_stay_exact(name: str, shape: tuple[int, ...], exact: bool) -> None:
    settings = HookSettings(exact=["norm", "^head"], exact_below=5000)
    assert (name in settings.exact_names({name: shape})) is exact


def test_of_a_model_of_small_matrices_only_most_are_compressed() -> None:
    """LoRA of rank 8 on a model of width 256: no adapter has 4096 elements."""
    adapters = {f"layers.{layer}.q.lora_{side}": shape for layer in range(24) for side, shape in _LORA.items()}
    assert HookSettings().exact_names(adapters) == frozenset()
    assert len(HookSettings(exact_below=4096).exact_names(adapters)) == len(adapters)
    assert HookSettings().exact_names(adapters | {"bias": (256,)}) == {"bias"}


def test_small_matrices_go_exactly_where_they_are_little_of_the_model() -> None:
    shapes = {"router": (8, 64), "gate": (64, 50), "second": (64, 60), "large": (1000, 700)}
    assert HookSettings().exact_names(shapes) == {"router", "gate"}, "these are 0.5 % of it, with the next one 1.1 %"
    assert HookSettings().exact_names({**shapes, "large": (1000, 1000)}) == {"router", "gate", "second"}
