"""What must be the same at every site of an elastic run: few and short texts, however many groups of parameters there
are. The leader compares them when a site joins, and the journal keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geocomm.elastic.journal.messages import MOST_SETTINGS, SETTING_NAME_CHARS
from geocomm.sync.local_steps.model.fragments import digest
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers

FROZEN = "frozen parameters and buffers (load the same ones at all sites)"
_RATES = {"lr", "initial_lr", "max_lr", "min_lr"}
"""Of an optimizer and of its scheduler: every round compares the rate, and tells of one that differs."""
_TEXT_CHARS = 1000
_REST = "other settings"


def optimizer_terms(inner: InnerOptimizers) -> dict[str, str]:
    """What an optimizer must have alike: one text a setting, with its values in all groups, those of learning rates
    left out."""
    return {f"optimizer {name}": _alike(values) for name, values in inner.settings().items() if name not in _RATES}


def frozen_text(digests: Mapping[str, str]) -> str:
    """What the tensors that nobody trains are, from the digests of each."""
    if not digests:
        return "none"
    return f"{len(digests)} from {min(digests)} on, digest {digest([], repr(sorted(digests.items())))}"


def within_bounds(terms: Mapping[str, str]) -> dict[str, str]:
    """The terms as `Model.settings` takes them, whatever they are: of long texts the beginning, and of those that are
    too many the number, each with a digest of the whole."""
    short = {_short(name, SETTING_NAME_CHARS): _short(text, _TEXT_CHARS) for name, text in terms.items()}
    if len(short) <= MOST_SETTINGS:
        return short
    names = list(short)
    rest = {name: short.pop(name) for name in names[MOST_SETTINGS - 1 :]}
    return short | {_REST: f"{len(rest)}, digest {digest([], repr(sorted(rest.items())))}"}


def _alike(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = f"... {digest([], text)}"
    return text[: most - len(end)] + end
