"""Where the sockets of a folder are."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from geocomm.core.addresses import check_peer_user, peer_process, private_listener, socket_in


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


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_private_listener_is_this_users_alone_and_its_file_goes_with_it(
    tmp_path: Path, kind: socket.SocketKind
) -> None:
    path = tmp_path / "a.sock"
    path.write_text("of one that died")
    with private_listener(path, kind) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX, kind) as client:
            client.connect(str(path))
            with listener.accept()[0] as there:
                check_peer_user(there)
                assert peer_process(there) == os.getpid()
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives a folder to another user")
def test_private_listener_is_not_made_in_a_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(PermissionError, match="12345"), private_listener(tmp_path / "a.sock"):
        pass
