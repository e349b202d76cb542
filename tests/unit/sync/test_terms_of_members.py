"""What the sites of an elastic run compare: the model, its frozen weights and its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from geocomm.core.records import line_of
from geocomm.elastic.journal.admission import difference
from geocomm.elastic.journal.entries import Genesis
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES
from geocomm.elastic.journal.messages import Model
from geocomm.sync.local_steps.elastic.member_site_rounds import MemberSiteRounds
from geocomm.sync.local_steps.local_steps import view_of
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.given_rounds import EVERY, Facts, GivenRounds


def terms_of(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Model:
    """What a site with this model says of it."""
    said: list[Model] = []
    given = LocalSettings(every=EVERY, fragments=1, codec="none")
    view, inner = view_of(model, Facts(), given), InnerOptimizers(optimizers)
    inner.check(view)

    def rounds_of(fragments: Sequence[Fragment], model: Model) -> GivenRounds:
        said.append(model)
        return GivenRounds()

    resolved = ResolvedSettings.of(given, view.tensors, None)
    MemberSiteRounds(view, inner, Facts(), resolved, rounds_of).begin()  # type: ignore[arg-type]
    return said[0]


def refused(model: Model, of_run: Model) -> str:
    """Why a run of sites with `of_run` does not take a site with `model` in; empty: it does."""
    begun = Genesis(
        index=0, prev="0" * 64, term=0, run="1" * 32, settings=of_run.settings, layout=of_run.layout,
        digests=("0" * 32,), every=of_run.every,
    )  # fmt: skip
    return difference(begun, model, "b")


def test_sites_compare_the_model_in_words_and_leave_learning_rates_to_the_rounds() -> None:
    model = torch.nn.Linear(4, 4, bias=False)
    terms = terms_of(model, [torch.optim.SGD(model.parameters(), lr=1.0)]).settings
    assert terms["model"] == "1 trained parameters with 16 elements"
    assert terms["optimizer weight_decay"] == "0"
    assert not [name for name in terms if name.endswith("lr")]


def layers(count: int, decay: Callable[[int], float]) -> Model:
    """A model with as many groups of parameters as layers, and a scheduler, which adds settings to each."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(count)))
    groups = [
        {"params": layer.parameters(), "lr": 0.9**index, "weight_decay": decay(index)}
        for index, layer in enumerate(model)
    ]
    optimizer = torch.optim.AdamW(groups)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return terms_of(model, [optimizer])


@pytest.mark.parametrize("count", [1, 5, 20, 400])
def test_optimizer_of_any_number_of_groups_is_compared_group_by_group(count: int) -> None:
    here, same = layers(count, lambda index: index % 2), layers(count, lambda index: index % 2)
    other = layers(count, lambda index: 0.5 if index == count - 1 else index % 2)
    assert refused(same, here) == ""
    assert "optimizer weight_decay: b has" in refused(other, here)
    assert len(line_of(here)) < MAX_LINE_BYTES // 8


def test_groups_with_settings_of_their_own_are_compared_however_many_and_long() -> None:
    def with_settings(last: int) -> Model:
        model = torch.nn.Linear(4, 4)
        own = {f"{index} {'of a long name' * 9}": index for index in range(200)} | {"z": last}
        return terms_of(model, [torch.optim.SGD([{"params": model.parameters(), **own}], lr=1.0)])

    assert refused(with_settings(1), with_settings(1)) == ""
    assert "other settings: b has" in refused(with_settings(2), with_settings(1))


def adapted(base: float, buffer: float) -> Model:
    """A frozen base with a buffer, and an adapter that is trained."""
    frozen, adapter = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    frozen.requires_grad_(requires_grad=False)
    torch.nn.init.constant_(frozen.weight, base)
    torch.nn.init.zeros_(frozen.bias)
    model = torch.nn.Sequential(frozen, adapter)
    model.register_buffer("scale", torch.tensor(buffer))
    return terms_of(model, [torch.optim.SGD(adapter.parameters(), lr=1.0)])


def test_frozen_weights_and_buffers_that_differ_are_refused_and_trained_ones_are_not() -> None:
    run = adapted(0.5, 1.0)
    assert refused(adapted(0.5, 1.0), run) == ""  # the adapters begin with other values
    for other in (adapted(0.25, 1.0), adapted(0.5, 2.0)):
        told = refused(other, run)
        assert told.startswith(
            "frozen parameters and buffers (load the same ones at all sites): b has 3 from 0.bias on"
        )
