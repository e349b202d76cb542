"""What is asked for in vain is refused before a group is made."""

from __future__ import annotations

import pytest

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.options import Options
from geocomm.metrics.exporters import check_reporting


@pytest.mark.parametrize("variable", ["GEOCOMM_EGRESS_PRICE", "GEOCOMM_EGRESS_BUDGET"])
@pytest.mark.parametrize("text", ["-1", "nan", "inf", "cheap"])
def test_what_is_no_price_is_refused(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0.08")
    check_reporting(Options())
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidArgumentError):
        check_reporting(Options())
