"""What TCP carried between processes of this machine, as the kernel counts it. Takes no rights: `ss` reads the same.

The kernel's side is `sock_diag(7)`: struct inet_diag_msg, and struct tcp_info as its attribute INET_DIAG_INFO.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from geocomm.core.addresses import socket_inodes

_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_INFO = 2
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT = 1, 4, 5, 8
_STATES = sum(1 << state for state in (_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT))
# Of inet_diag_msg: family, ports, addresses, interface, cookie, then three counters, the user and the inode.
_SOCKET = struct.Struct("=B3x4s16s16sI8s12xII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVED_AT = 128
"""The place of tcpi_bytes_received."""
_MAPPED = bytes(10) + b"\xff\xff"
"""How the address of an IPv6 socket begins that speaks IPv4."""

End = tuple[bytes, bytes]
"""Address and port."""


@dataclass(frozen=True)
class TcpSocket:
    """One end of a connection."""

    cookie: bytes
    """No other socket has it, ever."""
    inode: int
    local: End
    remote: End
    received_bytes: int
    """Payload: without headers, and without what came twice."""


def tcp_sockets() -> Iterator[TcpSocket]:
    """All connected ones of this network namespace. OSError: the kernel does not tell."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _STATES)
            kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            yield from _answers(kernel)


def _answers(kernel: socket.socket) -> Iterator[TcpSocket]:
    while True:
        messages = kernel.recv(1 << 16)
        while messages:
            length, kind, *_ = _HEADER.unpack_from(messages)
            message, messages = messages[_HEADER.size : length], messages[_aligned(length) :]
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                number = -struct.unpack_from("=i", message)[0]
                raise OSError(number, f"sock_diag: {os.strerror(number)}")
            yield _socket(message)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _socket(message: bytes) -> TcpSocket:
    family, ports, source, target, _, cookie, _, inode = _SOCKET.unpack_from(message)
    received, attributes = 0, message[_SOCKET.size :]
    while attributes:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _INFO:
            (received,) = struct.unpack_from("=Q", attributes, _ATTRIBUTE.size + _RECEIVED_AT)
        attributes = attributes[_aligned(length) :]
    return TcpSocket(
        cookie, inode, (_address(family, source), ports[:2]), (_address(family, target), ports[2:]), received
    )


def _address(family: int, address: bytes) -> bytes:
    return address[:4] if family == socket.AF_INET else address.removeprefix(_MAPPED)


class CrossingBytes:
    """Counts what passes between groups of processes. Counts a connection up to the last look before its end."""

    def __init__(self) -> None:
        """Nothing has crossed yet."""
        self._received: dict[bytes, int] = {}

    def look(self, groups: Mapping[str, Collection[int]]) -> int:
        """Payload that the processes of a group have received from those of others, since the first look. OSError: the
        kernel does not tell."""
        group_of = {
            inode: group for group, processes in groups.items() for each in processes for inode in socket_inodes(each)
        }
        sockets = list(tcp_sockets())
        by_end = {(one.local, one.remote): group_of.get(one.inode) for one in sockets}
        for one in sockets:
            here, there = group_of.get(one.inode), by_end.get((one.remote, one.local))
            if one.cookie in self._received or (None not in (here, there) and here != there):
                self._received[one.cookie] = one.received_bytes
        return sum(self._received.values())
