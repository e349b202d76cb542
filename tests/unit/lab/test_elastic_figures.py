"""The elastic demo's figures out of the lines of its sites."""

from __future__ import annotations

from typing import Any

import pytest

from geocomm.lab.demo.demo_run import DemoError
from geocomm.lab.demo.elastic_picture import smoothed
from geocomm.lab.demo.elastic_run import compare_anchors


def lines(*anchors: str) -> list[dict[str, Any]]:
    """Of a site with two fragments, the second of which never changes."""
    return [{"anchors": [anchor, "same"]} if anchor else {"step": 1} for anchor in anchors]


def test_anchors_count_once_each_and_may_begin_late_or_skip_some() -> None:
    first = lines("a", "b", "", "b", "c", "d")
    assert compare_anchors("site1", lines("a", "b", "c", "d"), first) == 5
    assert compare_anchors("site2", lines("c", "c", "", "d"), first) == 3


@pytest.mark.parametrize("anchors", [("a", "x"), ("b", "a"), ("d", "e")])
def test_anchor_that_the_first_site_did_not_have_then_is_an_error(anchors: tuple[str, ...]) -> None:
    with pytest.raises(DemoError, match="fragment 0 of site1"):
        compare_anchors("site1", lines(*anchors), lines("a", "b", "c", "d"))


def test_smoothed_has_the_mean_of_the_last_five() -> None:
    assert smoothed([1.0, 3.0, 2.0, 2.0, 2.0, 8.0]) == [1.0, 2.0, 2.0, 2.0, 2.0, 3.4]
