"""A file of sites and links: what it says of which link, and errors that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.core.link_matrix import LinkMatrixError, Matrix


def test_later_link_goes_over_an_earlier_one_and_any_link_over_overrides_and_default(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text(
        'sites = ["a", "b"]\n[default]\nloss = "1%"\n[[link]]\nbetween = ["a", "b"]\nrtt = "80ms"\nrate = "1mbit"\n'
        '[[link]]\nfrom = "b"\nto = "a"\ndelay = "10ms"'
    )
    matrix = Matrix.read(path)
    assert matrix.sites == ["a", "b"]
    assert matrix.links({"rate_bps": 1e9, "loss": 0.02}) == {
        ("a", "b"): {"loss": 0.02, "delay_s": 0.04, "rate_bps": 1e6},
        ("b", "a"): {"loss": 0.02, "delay_s": 0.01, "rate_bps": 1e6},
    }
    assert matrix.links()["a", "b"]["loss"] == 0.01


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sites = [", "not TOML"),
        ("", "sites"),
        ("sites = 3", "sites"),
        ('sites = ["a", "b"]\nrate = "1gbit"', "'rate'"),
        ('sites = ["a", "b"]\n[default]\nspeed = "1gbit"', "'speed'"),
        ('sites = ["a", "b"]\n[default]\nrate = "1gb"', r"\[default\]: rate"),
        ('sites = ["a", "b"]\n[default]\nup = "no"', "up"),
        ('sites = ["a", "b"]\n[link]\nrtt = "1ms"', "two brackets"),
        ('sites = ["a", "b"]\n[[link]]\nrtt = "1ms"', "between"),
        ('sites = ["a", "b"]\n[[link]]\nbetween = ["a", "b"]\nfrom = "a"', "between"),
        ('sites = ["a", "b"]\n[[link]]\nbetween = ["a", "paris"]', "'paris'"),
        ('sites = ["a", "b"]\n[[link]]\nbetween = ["a", "a"]', "two different sites"),
        ('sites = ["a", "b"]\n[[link]]\nfrom = "a"', "two different sites|unknown site"),
        ('sites = ["a", "b"]\n[[link]]\nbetween = ["a", "b"]\nrtt = "1ms"\ndelay = "1ms"', "rtt and delay"),
    ],
)
def test_matrix_mistakes_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "links.toml"
    path.write_text(text)
    with pytest.raises(LinkMatrixError, match=named):
        Matrix.read(path)


def test_matrix_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkMatrixError, match=r"absent\.toml"):
        Matrix.read(tmp_path / "absent.toml")
