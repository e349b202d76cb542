"""Real etcd servers on this machine."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.leading.etcd import Etcd, EtcdAddress, EtcdAwayError
from support.local_jobs import free_port

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="no etcd here: apt-get install etcd-server")


class EtcdServers:
    """A cluster of some members. A context that ends them."""

    def __init__(
        self, folder: Path, members: int = 1, tls: Mapping[str, Path] | None = None, more: tuple[str, ...] = ()
    ) -> None:
        """tls: files of an authority, and of a certificate for 127.0.0.1 and its key, by "ca", "cert", "key". more:
        arguments of every member."""
        self._folder, self._tls, self._more = folder, tls, more
        self._clients = [f"127.0.0.1:{free_port()}" for _ in range(members)]
        self._peers = [f"127.0.0.1:{free_port()}" for _ in range(members)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def url(self, name: str = "run") -> str:
        return f"etcd://{','.join(self._clients)}/{name}"

    def address(self, name: str = "run") -> EtcdAddress:
        return EtcdAddress(tuple(map(Address.parse, self._clients)), name)

    def start(self, *numbers: int) -> None:
        """Start these members again; none: all."""
        for number in numbers or range(len(self._clients)):
            with (self._folder / f"etcd-{number}.log").open("ab") as log:
                self._running[number] = subprocess.Popen(self._command(number), stdout=log, stderr=log)
        end = time.monotonic() + 100
        while not self._answers():
            assert time.monotonic() < end, "etcd does not answer"
            time.sleep(0.05)

    def kill(self, *numbers: int) -> None:
        """Kill these members; none: all."""
        for number in numbers or list(self._running):
            process = self._running.pop(number)
            process.kill()
            process.wait()

    def __enter__(self) -> EtcdServers:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        try:
            Etcd(self.address()).get("head")
        except EtcdAwayError:
            return False
        return True

    def _command(self, number: int) -> list[str]:
        client, peer = f"http{'s' if self._tls else ''}://{self._clients[number]}", f"http://{self._peers[number]}"
        cluster = ",".join(f"m{one}=http://{at}" for one, at in enumerate(self._peers))
        return [
            *("etcd", "--name", f"m{number}", "--data-dir", str(self._folder / f"etcd-{number}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
            *(self._tls_arguments(self._tls) if self._tls else ()),
            *self._more,
        ]

    def _tls_arguments(self, tls: Mapping[str, Path]) -> list[str]:
        files = ["--trusted-ca-file", tls["ca"], "--cert-file", tls["cert"], "--key-file", tls["key"]]
        return [*map(str, files), "--client-cert-auth"]


class Relay:
    """A TCP line to a server. Cut, it carries no byte more, and nobody is told. A context that ends it."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._whole, self._ends = threading.Event(), list[socket.socket]()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", int(self._listener.getsockname()[1]))

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it ends
            while True:
                near, _ = self._listener.accept()
                self._ends.append(near)
                with contextlib.suppress(ConnectionError):
                    far = socket.create_connection((self._target.host, self._target.port))
                    self._ends.append(far)
                    for one, other in ((near, far), (far, near)):
                        threading.Thread(target=self._pump, args=(one, other), daemon=True).start()
                    continue
                near.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                self._whole.wait()
                target.sendall(content)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
