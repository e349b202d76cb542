"""Options of the ranks that are not as by default: who runs with what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from geocomm.core.options import Options, value_text
from geocomm.observe.telemetry.report import Report


@dataclass(frozen=True)
class OptionState:
    """An option that some rank has not as by default."""

    name: str
    default: str
    values: dict[str, tuple[str, ...]]
    """Sites by value."""


def option_states(reports: Iterable[Report]) -> Iterator[OptionState]:
    """Such options, in the order in which `Options` has them. Ranks that do not say theirs are left out."""
    told = [(report.site, report.options) for report in reports if report.options is not None]
    names = {name for _, options in told for name in options}
    for name, field in Options.model_fields.items():
        if name not in names:
            continue
        default = value_text(field.default)
        sites: dict[str, set[str]] = {}
        for site, options in told:
            sites.setdefault(options.get(name, default), set()).add(site)
        yield OptionState(name, default, {value: tuple(sorted(sites[value])) for value in sorted(sites)})
