"""How fast shards may come from afar."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.core.link_table import Links
from geocomm.data.shard_cache import far_rates, own_far_rate

RATES = ((0.0, 8e6, 16e6), (8e6, 0.0, 4e6), (2e6, 80e6, 0.0))


def test_half_of_the_fastest_link_to_a_site_or_of_its_own_line() -> None:
    rtt = ((0.0, 0.1, 0.1),) * 3
    links = Links(("a", "b", "c"), RATES, rtt)
    assert far_rates(links) == {"a": 0.5e6, "b": 5e6, "c": 1e6}
    assert far_rates(links.model_copy(update={"down_bps": (8e6, 16e6, 24e6)})) == {"a": 0.5e6, "b": 1e6, "c": 1.5e6}


def test_own_rate_is_that_of_the_named_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEOCOMM_LINKS", raising=False)
    assert own_far_rate("a") == math.inf
    path = tmp_path / "links.json"
    monkeypatch.setenv("GEOCOMM_LINKS", str(path))
    with pytest.raises(BadInput, match="GEOCOMM_LINKS: links: cannot read"):
        own_far_rate("a")
    path.write_text(json.dumps(Links.uniform(["a", "b"], 8e6).to_dict()))
    assert own_far_rate("a") == 0.5e6
    assert own_far_rate("elsewhere") == math.inf
