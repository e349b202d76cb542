"""What somebody on the line between two sites of an emulated WAN would see of tensors."""

from __future__ import annotations

import os
import socket
import struct
import threading

VALUE = 1234.5
"""Of all elements of a tensor that a sniffer looks for."""


class Sniffer:
    """Counts the packets on this machine's line to the others that hold the tensor's bytes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        self._socket.bind((os.environ["GLOO_SOCKET_IFNAME"], 0))
        self._socket.settimeout(0.1)
        self._ended = threading.Event()
        self._seen = 0
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Sniffer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        pattern = struct.pack("<f", VALUE) * 8
        while not self._ended.is_set():
            try:
                self._seen += pattern in self._socket.recv(65536)
            except TimeoutError:
                continue

    @property
    def seen(self) -> int:
        self._ended.wait(0.3)  # until what is in the socket was read
        return self._seen
