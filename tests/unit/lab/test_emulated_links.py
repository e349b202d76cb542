"""What an emulated WAN is made of: options, a matrix, and errors that name the field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan, WanConfigError, WanError, link_changes
from geocomm.lab.emulator.emulated_wan import LinkReport, WanReport


def test_link_changes_hold_only_what_was_said() -> None:
    assert link_changes() == {}
    changes = link_changes(rtt="100ms", rate="1mbit", loss="1%", queue="3kb", up=False)
    assert changes == {"delay_s": 0.05, "rate_bps": 1e6, "loss": 0.01, "queue_bytes": 3000, "up": False}
    with pytest.raises(WanConfigError):
        link_changes(rtt="1ms", delay="1ms")
    assert link_changes(reorder="2%", duplicate=0.5, reset="0") == {"reorder": 0.02, "duplicate": 0.5, "reset": 0.0}
    with pytest.raises(WanConfigError, match=r"^link a to b: rate: "):
        link_changes(rate="fast", where="link a to b")


@pytest.mark.parametrize(
    "link",
    [
        EmulatedLink(rate_bps=10),
        EmulatedLink(rate_bps=float("nan")),
        EmulatedLink(delay_s=61),
        EmulatedLink(delay_s=-1),
        EmulatedLink(loss=1.1),
        EmulatedLink(reorder=1.1),
        EmulatedLink(duplicate=-0.1),
        EmulatedLink(reset=float("nan")),
        EmulatedLink(queue_bytes=100),
    ],
)
def test_emulated_wan_impossible_link_is_refused(link: EmulatedLink) -> None:
    with pytest.raises(WanConfigError, match="site0 to site1"):
        EmulatedWan.uniform(2, link)


@pytest.mark.parametrize("sites", [1, 65, ["a", "a"], ["a", "b/c"], ["a", ""], ["a", "x" * 65], ["a", 7]])
def test_emulated_wan_bad_sites_are_refused(sites: object) -> None:
    with pytest.raises(WanConfigError, match=r"^sites: "):
        EmulatedWan.uniform(sites)  # type: ignore[arg-type]


def test_emulated_wan_missing_link_is_refused() -> None:
    with pytest.raises(WanConfigError, match="b to a"):
        EmulatedWan(("a", "b"), {("a", "b"): EmulatedLink()})


MATRIX = """
sites = ["frankfurt", "virginia", "tokyo"]
[default]
rate = "500mbit"
rtt = "100ms"
loss = "0.1%"
[[link]]
between = ["frankfurt", "virginia"]
rtt = "80ms"
[[link]]
from = "frankfurt"
to = "tokyo"
rate = "100mbit"
delay = "120ms"
queue = "1mb"
up = false
"""


def _matrix(folder: Path, text: str) -> Path:
    path = folder / "links.toml"
    path.write_text(text)
    return path


def test_matrix_links_override_the_default(tmp_path: Path) -> None:
    topology = EmulatedWan.from_toml(_matrix(tmp_path, MATRIX))
    assert topology.sites == ("frankfurt", "virginia", "tokyo")
    assert topology.links["frankfurt", "virginia"] == EmulatedLink(500e6, 0.04, 0.001)
    assert topology.links["virginia", "frankfurt"] == EmulatedLink(500e6, 0.04, 0.001)
    assert topology.links["frankfurt", "tokyo"] == EmulatedLink(100e6, 0.12, 0.001, 1_000_000, up=False)
    assert topology.links["tokyo", "frankfurt"] == EmulatedLink(500e6, 0.05, 0.001)
    assert len(topology.links) == 6


def test_matrix_overrides_beat_its_default_but_not_its_links(tmp_path: Path) -> None:
    topology = EmulatedWan.from_toml(_matrix(tmp_path, MATRIX), {"delay_s": 0.001, "rate_bps": 1e6})
    assert topology.links["tokyo", "virginia"] == EmulatedLink(1e6, 0.001, 0.001)
    assert topology.links["frankfurt", "tokyo"].delay_s == 0.12
    assert topology.links["frankfurt", "virginia"].rate_bps == 1e6


def test_mistake_in_a_matrix_is_an_error_of_the_wan(tmp_path: Path) -> None:
    with pytest.raises(WanConfigError, match=r"links\.toml: \[\[link\]\] 1: unknown site 'paris'"):
        EmulatedWan.from_toml(_matrix(tmp_path, 'sites = ["a", "b"]\n[[link]]\nbetween = ["a", "paris"]'))


def test_report_survives_json() -> None:
    link = LinkReport("a", "b", True, 1e9, 0.05, 0.0, 262144, 10, 1, 1, 0, 0, 0, 10, 0.001, 0, 0.1, 0.0, 0.0, 1, 0, 0)
    report = WanReport(("a", "b"), (0, None), 1.5, 0.001, 0, True, 0, (link,))
    assert WanReport.from_json(report.to_json()) == report
    assert report.link("a", "b") == link
    with pytest.raises(KeyError):
        report.link("b", "a")


def test_report_of_another_version_is_read_as_far_as_it_is_known_or_refused_by_field() -> None:
    report = WanReport(("a", "b"), (0, None), 1.5, 0.001, 0, True, 0, ())
    document = json.loads(report.to_json())
    assert WanReport.from_json(json.dumps(document | {"colour": "red"})) == report
    del document["reliable"]
    with pytest.raises(WanError, match="reliable is missing"):
        WanReport.from_json(json.dumps(document))
