"""geocomm.Options: any mix of arguments and GEOCOMM_* variables, in any spelling."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.options import Options
from support.effort import effort

properties = effort(100)
FIELDS = Options.model_fields


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value that validates, and a text of the field's variable that means it."""

    value: Any
    text: str


def variable_of(name: str) -> str:
    return f"GEOCOMM_{name.upper()}"


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Those GEOCOMM_* variables and no others."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GEOCOMM_")]:
            patch.delenv(name)
        for name, text in variables.items():
            patch.setenv(name, text)
        yield


def whole_numbers(low: int, high: int) -> st.SearchStrategy[Setting]:
    return st.builds(
        lambda n, form: Setting(n, form.format(n)), st.integers(low, high), st.sampled_from(("{}", " {} "))
    )


def in_units(low: int, high: int, units: Mapping[str, int]) -> st.SearchStrategy[Setting]:
    """A whole number of a unit, with the letters' case and the space before them left to the user."""
    return st.builds(
        lambda n, unit, space, upper: Setting(n * units[unit], f"{n}{space}{unit.upper() if upper else unit}"),
        st.integers(low, high),
        st.sampled_from(sorted(units)),
        st.sampled_from(("", " ")),
        st.booleans(),
    )


def duration_settings() -> st.SearchStrategy[Setting]:
    units = {"us": 1, "ms": 1000, "s": 1_000_000}
    with_unit = in_units(1, 10**7, units).filter(lambda setting: setting.value >= 1_000_000)
    bare = st.integers(1, 10**6).map(lambda n: Setting(n * 1_000_000, str(n)))
    return st.one_of(with_unit, bare).map(lambda s: Setting(timedelta(microseconds=s.value), s.text))


words = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=64)
site_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}[A-Za-z0-9]", fullmatch=True).filter(
    lambda name: name != "issued" and not name.endswith(".pem")
)
SETTINGS: dict[str, st.SearchStrategy[Setting]] = {
    "site": site_names.map(lambda name: Setting(name, name)),
    "codec": st.sampled_from(("none", "fp16", "bf16", "int8", "int4:block=64")).map(lambda c: Setting(c, c)),
    "security": st.sampled_from(("required", "insecure")).map(lambda s: Setting(s, s)),
    "address": st.ip_addresses().map(lambda address: Setting(str(address), str(address))),
    "streams": whole_numbers(1, 64),
    "port": whole_numbers(1, 65535),
    "threads": whole_numbers(1, 1024),
    "link_deadline": duration_settings(),
    "min_compress_bytes": in_units(0, 10**6, {"": 1, "b": 1, "kb": 1000, "mb": 10**6, "kib": 1 << 10, "mib": 1 << 20}),
    "preserve_inputs": st.one_of(
        st.sampled_from(("1", "true", "YES", "On")).map(lambda text: Setting(True, text)),
        st.sampled_from(("0", "False", "no", "OFF")).map(lambda text: Setting(False, text)),
    ),
    "max_pacing_bps": in_units(8000, 10**6, {"": 1, "bit": 1, "kbit": 1000, "mbit/s": 10**6, "gbit": 10**9}),
}
some_settings = st.fixed_dictionaries({}, optional=SETTINGS)
PARSED = ("streams", "port", "threads", "link_deadline", "min_compress_bytes", "preserve_inputs", "max_pacing_bps")
"""Fields whose variables are not simply text."""


@properties
@given(some_settings)
def test_options_from_variables_equal_those_from_arguments(chosen: dict[str, Setting]) -> None:
    with environment({variable_of(name): setting.text for name, setting in chosen.items()}):
        read = Options()
    with environment({}):
        given_as_arguments = Options(**{name: setting.value for name, setting in chosen.items()})
        read.validate()
    assert read == given_as_arguments


@properties
@given(some_settings, some_settings)
def test_each_option_is_its_argument_else_its_variable_else_its_default(
    arguments: dict[str, Setting], variables: dict[str, Setting]
) -> None:
    with environment({variable_of(name): setting.text for name, setting in variables.items()}):
        options = Options(**{name: setting.value for name, setting in arguments.items()})
        options.validate()
    for name, field in FIELDS.items():
        setting = arguments.get(name) or variables.get(name) or Setting(field.default, "")
        assert getattr(options, name) == setting.value


@properties
@given(some_settings, some_settings)
def test_replace_ignores_the_environment(before: dict[str, Setting], environment_then: dict[str, Setting]) -> None:
    with environment({}):
        options = Options(**{name: setting.value for name, setting in before.items()})
    with environment({variable_of(name): setting.text for name, setting in environment_then.items()}):
        assert options.replace() == options


@pytest.mark.parametrize("name", PARSED)
@properties
@given(data=st.data())
def test_argument_beats_a_variable_that_cannot_be_read(name: str, data: st.DataObject) -> None:
    setting = data.draw(SETTINGS[name])
    with environment({variable_of(name): "?"}):
        assert getattr(Options(**{name: setting.value}), name) == setting.value


@pytest.mark.parametrize("name", PARSED)
@properties
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=10))
def test_variable_of_any_text_validates_or_is_refused_by_name(name: str, text: str) -> None:
    with environment({variable_of(name): text}):
        refusal = ""
        try:
            Options().validate()
        except InvalidArgumentError as error:
            refusal = str(error)
    assert not refusal or variable_of(name) in refusal


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("streams", st.integers().filter(lambda n: not 1 <= n <= 64)),
        ("port", st.integers().filter(lambda n: not 1 <= n <= 65535)),
        ("threads", st.integers().filter(lambda n: not 1 <= n <= 1024)),
        ("max_pacing_bps", st.integers(max_value=7999)),
        ("min_compress_bytes", st.integers(max_value=-1)),
        ("link_deadline", st.integers(-(10**6), 0)),
    ],
)
@properties
@given(data=st.data())
def test_number_out_of_range_is_refused_by_name_wherever_it_comes_from(
    name: str, values: st.SearchStrategy[int], data: st.DataObject
) -> None:
    value = data.draw(values)
    with environment({variable_of(name): str(value)}), pytest.raises(InvalidArgumentError) as from_variable:
        Options().validate()
    with environment({}), pytest.raises(InvalidArgumentError) as from_argument:
        Options(**{name: value}).validate()
    assert variable_of(name) in str(from_variable.value)
    assert f"option {name} ({variable_of(name)})" in str(from_argument.value)


@pytest.mark.parametrize("name", ["transport", "security"])
@properties
@given(text=words)
def test_word_that_is_not_offered_is_refused_by_name(name: str, text: str) -> None:
    allowed = {"transport": ("tcp", "rdma"), "security": ("required", "insecure")}[name]
    assume(text not in allowed)
    with environment({variable_of(name): text}), pytest.raises(InvalidArgumentError) as caught:
        Options().validate()
    assert f"option {name} ({variable_of(name)})" in str(caught.value)


@pytest.mark.parametrize("name", ["link_deadline", "min_compress_bytes", "max_pacing_bps"])
def test_variable_beyond_any_range_is_refused_by_name(name: str) -> None:
    with environment({variable_of(name): f"{10**400}"}), pytest.raises(InvalidArgumentError) as caught:
        Options()
    assert variable_of(name) in str(caught.value)
