"""How many examples hypothesis tries: few in `make test`, PROPERTY_FACTOR times as many in `make ecosystem`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_FACTOR = int(os.environ.get("PROPERTY_FACTOR", "1"))


def effort(examples: int) -> settings:
    """Settings of a test; `examples` for `make test`. What one example takes depends on the machine: no limit."""
    return settings(deadline=None, max_examples=_FACTOR * examples, suppress_health_check=[HealthCheck.too_slow])
