"""Where the sockets of a folder are."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.core.addresses import socket_in


@pytest.mark.parametrize("length", [1, 90])
def test_every_way_to_a_folder_leads_to_the_same_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    folder = tmp_path / ("x" * length)
    beside = tmp_path / "code"
    for one in (folder, beside):
        one.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(beside)
    ways = [folder, Path("..") / folder.name, tmp_path / "code" / ".." / folder.name, tmp_path / "link"]
    (found,) = {socket_in(way, "a.sock") for way in ways}
    assert len(str(found)) <= 107
    assert len({found, socket_in(folder, "b.sock"), socket_in(beside, "a.sock")}) == 3
