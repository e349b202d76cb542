"""Help texts of metrics: Prometheus shows each by itself."""

from __future__ import annotations

import re

_LEANS = re.compile(r"(of|in|at|on|from|since|until|that|where|whose) |.*\b(the same|these|those)\b", re.IGNORECASE)


def leans_on_another(text: str) -> bool:
    """Whether a help text says something only after another one: it has no subject, or points to what was said."""
    return _LEANS.match(text) is not None
