"""Which settings of local steps an elastic run does not have."""

from __future__ import annotations

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings


def require_elastic(settings: ResolvedSettings) -> None:
    """Raise InvalidArgumentError for one of them."""
    if settings.given.deterministic:
        raise InvalidArgumentError(
            "local steps: deterministic=True has no meaning in an elastic run, whose rounds list the sites that were "
            "there; replaying its journal is deterministic"
        )
    if settings.schedule.overlap == 0:
        raise InvalidArgumentError(
            "local steps: overlap=0 has steps wait for other sites, which no step of an elastic run does; leave "
            "overlap out, or set it to 1"
        )
