"""What a user may give for local steps, what is refused, and what follows for a run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

import geocomm
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.sync.local_steps.model.fragments import Tensor
from geocomm.sync.local_steps.outer.resolved_settings import PRESETS, ResolvedSettings, require_elastic
from geocomm.sync.local_steps.outer.rounds import Terms, check_terms
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov

TENSORS = [Tensor("weight", 1 << 20), Tensor("bias", 1 << 10)]


def resolved(sites: int = 2, **given: Any) -> ResolvedSettings:
    return ResolvedSettings.of(LocalSettings(**given), TENSORS, sites)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"every": True}, r"every: must be 'auto' or a whole number, 1 or more \(got True\)"),
        ({"every": 2.5}, "every: must be"),
        ({"overlap": -1}, "overlap: must be 'auto' or a whole number, 0 or more"),
        ({"merge": 1}, "merge: must be 'auto', 'carry' or a number, from 0 on and below 1"),
        ({"merge": float("nan")}, "merge: must be"),
        ({"merge": "keep"}, "merge: must be"),
        ({"exact": "norm"}, "exact: "),
        ({"exact_below": -1}, "exact_below: "),
        ({"outer": {"lr": 1.0}}, "outer.momentum is missing"),
        ({"codec": "auto"}, "codec: .*'auto'"),
        ({"every": 0, "merge": 2}, "every: .*; merge: "),
    ],
)
def test_value_that_cannot_be_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^geocomm.LocalSettings: {named}"):
        LocalSettings(**given)


def test_unknown_field_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match="LocalSettings has no field 'evry'; did you mean 'every'"):
        LocalSettings(evry=3)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("lr", [0.0, -1.0, 10.5, float("nan")])
def test_outer_lr_out_of_its_range_is_refused(lr: float) -> None:
    with pytest.raises(InvalidArgumentError, match="the outer lr is"):
        Nesterov(lr, 0.5)


def test_settings_load_no_torch() -> None:
    program = (
        "import sys, geocomm\n"
        "geocomm.LocalSettings(every=100, outer=geocomm.Nesterov(1.0, 0.4)), geocomm.HookSettings\n"
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


@pytest.mark.parametrize("settings", [geocomm.LocalSettings, geocomm.HookSettings])
def test_help_has_every_field_with_its_meaning_and_default(settings: type[geocomm.LocalSettings]) -> None:
    assert settings.__doc__ is not None
    for name, field in settings.model_fields.items():
        assert field.description, name
        (line,) = [each for each in settings.__doc__.splitlines() if each.startswith(f"        {name}: ")]
        assert line.endswith(f"Default: {field.default!r}.")


@pytest.mark.parametrize(
    ("preset", "sites", "outer", "codec", "decay", "merge"),
    [
        ("pretrain", 2, Nesterov(1.0, 0.5), "int4:block=128", 1.0, "carry"),
        ("pretrain", 3, Nesterov(1.0, 0.8), "int4:block=128", 1.0, "carry"),
        ("finetune", 4, Nesterov(0.2, 0.0), "int4:block=128", 1.0, 0.5),
        ("loco", 2, Nesterov(1.0, 0.0), "loco", 0.95, 0.5),
    ],
)
def test_preset_gives_what_was_not_given(
    preset: str, sites: int, outer: Nesterov, codec: str, decay: float, merge: Any
) -> None:
    found = resolved(sites, preset=preset)
    assert (found.outer, found.coding.codec, found.coding.decay, found.merge) == (outer, codec, decay, merge)
    own = resolved(sites, preset=preset, outer=Nesterov(0.3, 0.1), codec="int8", decay=0.5, merge=0)
    assert (own.outer, own.coding.codec, own.coding.decay, own.merge) == (Nesterov(0.3, 0.1), "int8", 0.5, 0)


def test_every_preset_that_may_be_given_is_there() -> None:
    assert get_args(LocalSettings.model_fields["preset"].annotation) == tuple(PRESETS)


@pytest.mark.parametrize(
    ("given", "overlap"),
    [({}, 1), ({"deterministic": True}, 5), ({"deterministic": True, "every": 3}, 3), ({"every": 9, "overlap": 9}, 9)],
)
def test_overlap_that_was_not_given_is_short_and_at_most_every(given: dict[str, Any], overlap: int) -> None:
    assert resolved(**given).schedule.overlap == overlap


@pytest.mark.parametrize("codec", ["topk", "loco"])
def test_aggregator_does_not_take_codecs_that_need_error_feedback(codec: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{codec} needs error feedback"):
        resolved(codec=codec, reduce="aggregator")


@pytest.mark.parametrize(
    ("sites", "links", "codec", "reduce"),
    [
        (8, Links.uniform("abcdefgh", 1e7, 0.01), "int4", "aggregator"),
        (8, Links.uniform("abcdefgh", 1e7, 0.01), "loco", "all"),  # its average would need error feedback
        (8, Links.uniform("abcdefgh", 1e12, 0.1), "int4", "all"),  # latency is the round
        (2, Links.uniform("ab", 1e7, 0.01), "int4", "all"),
        (8, None, "int4", "all"),
    ],
)
def test_auto_takes_the_aggregator_where_that_saves_time_by_the_links(
    sites: int, links: Links | None, codec: str, reduce: str
) -> None:
    found = ResolvedSettings.of(LocalSettings(codec=codec, reduce="auto"), TENSORS, sites, links)
    assert found.coding.reduce == reduce
    assert found.terms().get("reduce", "all") == reduce
    assert (found.choice is None) == (links is None)
    assert found.choice is None or str(found.choice).startswith(f"{reduce}: by the links alone")


def test_auto_is_refused_in_an_elastic_run() -> None:
    with pytest.raises(InvalidArgumentError, match="reduce='auto' chooses by the links of fixed sites"):
        require_elastic(resolved(reduce="auto"))
    require_elastic(resolved(reduce="aggregator"))


def test_sites_that_disagree_on_reduce_are_refused_in_one_sentence() -> None:
    sides = [(site, Terms(resolved(reduce=one).terms(), {}, {})) for site, one in (("a", "all"), ("b", "aggregator"))]
    with pytest.raises(InvalidArgumentError, match="reduce is aggregator at site 'b' and nothing at site 'a'"):
        check_terms(sides)


def test_overlap_beyond_the_first_every_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"overlap is 31; it must be from 0 to every \(30\)"):
        resolved(overlap=31)


def test_terms_are_all_settings_but_the_preset_with_what_they_stand_for() -> None:
    terms = resolved(fragments=1).terms()
    assert terms.keys() == LocalSettings.model_fields.keys() - {"preset", "reduce"}
    assert resolved(fragments=1, reduce="aggregator").terms() == terms | {"reduce": "aggregator"}
    assert terms["every"] == "auto, 30 at first"
    assert terms["codec"] == "int4:block=128"
    assert terms["outer"] == "Nesterov(lr=1.0, momentum=0.5)"
    assert not {"auto", "None"} & {terms[name] for name in terms.keys() - {"averaging"}}
    assert resolved(every=30, fragments=1).terms()["every"] == "30"
