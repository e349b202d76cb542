"""Where processes listen: a job's hub at "host:port", whether that is this machine, on all families; who has a port;
the addresses of this machine's interfaces; and the unix socket of a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import ipaddress
import itertools
import os
import random
import re
import socket
import struct
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from geocomm.core.bad_input import BadInput

_ANY_PORT = 9
_OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, 3849): the way to them is the default route."""
_SIOCGIFADDR = 0x8915  # of linux/sockios.h
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def source_addresses(targets: Iterable[AddressInfo]) -> list[str]:
    """The address that this machine has for each of these, where it has a route. Sends nothing."""
    found: list[str] = []
    for family, _, _, _, target in targets:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))


def machine_addresses() -> list[str]:
    """Addresses of the interfaces that are up, ways to the outside first; neither loopback nor link-local ones."""
    outside = [info for host in _OUTSIDE for info in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)]
    found = source_addresses(outside)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            number, _, _, scope, *_ = line.split()
            if scope == "00":  # of global scope
                found.append(str(ipaddress.IPv6Address(int(number, 16))))
    return [host for host in dict.fromkeys(found) if not ipaddress.ip_address(host).is_loopback]


def not_here(host: str) -> str:
    """What to say of a host that has none of this machine's addresses: which there are."""
    own = [*machine_addresses(), "127.0.0.1"]
    return f"no interface of this machine has {host}: it has {', '.join(own[:-1])}{' and ' * (len(own) > 1)}{own[-1]}"


_BACKLOG = 512
_FIRST_PORT = 10_000
"""Services of a machine mostly have ports below it."""
_MOST_TRIED = 256


_LAST_PORT = 65535
_HOST_AND_PORT = re.compile(r"(?:\[[^\[\]]+\]|[^:@\[\]]+):([0-9]+)")


class AddressError(BadInput, ValueError):
    """What is no address of the kind host:port, or cannot be a hub's; the message says what one looks like."""


def host_and_port(text: str, least: int = 1) -> tuple[str, int]:
    """Read "host:port", "[::1]:port" or "geocomm://host:port". The one reader of such text.

    least: the lowest port; 0 where the kernel may choose it. Raises AddressError.
    """
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        host, found = parts.hostname, _HOST_AND_PORT.fullmatch(parts.netloc)
        (host or "").encode("idna")  # what looks names up fails with another error, of a part of 64 characters
    except ValueError:
        host, found = None, None
    if not host or found is None:
        raise AddressError(f"{text!r} is not an address of the kind host:port")
    digits = found[1]
    if len(digits) > len(str(_LAST_PORT)) or not least <= int(digits) <= _LAST_PORT:
        raise AddressError(f"{text!r}: port {digits[:20]} is not within {least} to {_LAST_PORT}")
    return host, int(digits)


@dataclass(frozen=True)
class Address:
    """Host (a name, IPv4 or IPv6) and port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `host_and_port` does. Raises AddressError also for what means every address."""
        host, port = host_and_port(text)
        if is_any(host):
            raise AddressError(f"{host} means every address; name the one that the other sites dial")
        return cls(host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket | None:
        """A listening socket; None where the host is another machine, or somebody here listens there already.

        A numeric host, and localhost, is listened on alone. A name may have other addresses here than at the other
        sites (127.0.1.1, or a family that they lack): every address of this machine is listened on.

        OSError where it cannot be known or may not be done: an unknown name, a port below 1024.
        """
        found = addresses_of(self.host, self.port)
        here = [address for address in found if _is_here(address)]
        if not here:
            return None
        try:
            if self.host == "localhost" or is_numeric(self.host):
                return _listen(here[0])
            return listen_everywhere(self.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise

    def why_not_free(self) -> str:
        """Why `listen` gave nothing. OSError for an unknown name."""
        return f"port {self.port} here is taken by {port_holder(self.port)}" if self.is_here else not_here(self.host)

    @property
    def is_here(self) -> bool:
        """Whether one of the host's addresses is this machine's. OSError for an unknown name."""
        return any(map(_is_here, addresses_of(self.host, self.port)))


AddressInfo = tuple[int, int, int, str, Any]
"""As getaddrinfo() gives them."""


def addresses_of(host: str, port: int) -> list[AddressInfo]:
    """Every address of a host, in the order to be dialled: the system's (RFC 6724), families by turns (RFC 8305).

    Blocks. OSError for an unknown name.
    """
    return by_turns(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def by_turns(found: Sequence[AddressInfo]) -> list[AddressInfo]:
    """Addresses of two families by turns, beginning with that of the first one."""
    first = [address for address in found if address[0] == found[0][0]]
    others = [address for address in found if address[0] != found[0][0]]
    return [one for pair in itertools.zip_longest(first, others) for one in pair if one is not None]


def listen_everywhere(port: int) -> socket.socket:
    """A listening socket on every address of this machine, IPv6 and IPv4, as far as the kernel has them. OSError."""
    try:
        return _listen((socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::", port)))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _listen((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("0.0.0.0", port)))


def listen_on(text: str) -> socket.socket:
    """A listening socket on "address:port"; 0.0.0.0 and [::] mean every address of both families.

    OSError, AddressError.
    """
    host, port = host_and_port(text, least=0)
    return listen_everywhere(port) if is_any(host) else _listen(addresses_of(host, port)[0])


def reached_here(listener: socket.socket) -> Address:
    """Where this machine's own processes reach a listening socket: one on every address takes IPv4 too."""
    host, port = str(listener.getsockname()[0]), int(listener.getsockname()[1])
    return Address("127.0.0.1" if is_any(host) else host, port)


def plain_host(host: str) -> str:
    """The IPv4 address that a socket of both families tells as ::ffff:10.0.0.1; all others as they are."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_numeric(host: str) -> bool:
    """Whether it is an address, and no name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether it leads to this machine wherever it is dialled."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_here(address: AddressInfo) -> bool:
    family, kind, protocol, _, target = address
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.bind((target[0], 0, *target[2:]))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        raise
    return True


def _listen(address: AddressInfo) -> socket.socket:
    family, kind, protocol, _, target = address
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(target)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise OSError(error.errno, not_here(target[0])) from None
        raise
    listener.setblocking(False)
    return listener


def loopback_listener() -> socket.socket:
    """A listening socket on 127.0.0.1, with a port of the kernel's choice."""
    return listen_on("127.0.0.1:0")


def free_port() -> int:
    """A TCP port that is free on loopback now, and that no connection gets before who wants it listens there.

    So it is none of those that the kernel gives out, unless those are all. OSError: none was found.
    """
    ports = _ports_outside(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    chance = random.SystemRandom()
    for _ in range(_MOST_TRIED):
        port = chance.choice(ports)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(errno.EADDRINUSE, "no free port was found on 127.0.0.1")


def _ports_outside(first: int, last: int) -> Sequence[int]:
    """Those to choose from where the kernel gives out `first` to `last`; all where it gives out all of them."""
    return [*range(_FIRST_PORT, first), *range(last + 1, 1 << 16)] or range(_FIRST_PORT, 1 << 16)


def is_any(host: str) -> bool:
    """Whether who listens there listens at every address."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


_LISTENS = "0A"
"""State of a socket in /proc/net/tcp (tcp_states.h)."""


def port_holder(port: int) -> str:
    """Such as "pid 4711 (python3)"; "another process" where it is not known, as that of another user."""
    sockets = {listener.inode for listener in listeners() if listener.port == port}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if process.name.isdigit() and sockets & socket_inodes(int(process.name)):
                return f"pid {process.name} ({(process / 'comm').read_text().strip()})"
    return "another process"


def socket_inodes(process: int) -> set[int]:
    """Of the sockets that a process holds; none where it has ended, or is another user's."""
    found = set[int]()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


class Listener(NamedTuple):
    """A TCP socket of any process that listens."""

    host: str
    port: int
    inode: int


def listeners(tables: Path = Path("/proc/net")) -> Iterator[Listener]:
    """All of this network namespace, of both families as far as the kernel has them."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in (tables / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    address, _, port = fields[1].partition(":")
                    yield Listener(_printed(address), int(port, 16), int(fields[9]))


def _printed(address: str) -> str:
    """An address that the kernel prints as words of 32 bits in the machine's order; IPv4's own where IPv6 maps it."""
    words = (int(address[begin : begin + 8], 16) for begin in range(0, len(address), 8))
    read = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return str(getattr(read, "ipv4_mapped", None) or read)


_LONGEST_PATH = 100


def socket_in(folder: Path, name: str) -> Path:
    """The socket `name` of a folder: in it, or in a folder of this user's where that path is too long."""
    path = folder.resolve() / name  # one name, whichever way a process has to the folder
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Path(f"/tmp/geocomm-{os.getuid()}/{place}.sock")


def own_folder(folder: Path) -> None:
    """Make the folder of a socket. PermissionError where somebody else could put a socket of his own there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (owner := folder.lstat().st_uid) not in (0, os.getuid()):
        raise PermissionError(f"{folder} belongs to user {owner}")


@contextlib.contextmanager
def private_listener(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> Generator[socket.socket]:
    """A listening unix socket at `path`, which no other user can connect to. It does not block, and its file ends with
    it. What lay at the path goes: the caller has made sure that nobody serves it.

    kind: SOCK_STREAM or SOCK_SEQPACKET. OSError: it cannot be made, or may be another user's."""
    own_folder(path.parent)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC) as listener:
        os.fchmod(listener.fileno(), 0o600)  # which the file begins with; a umask would be that of all threads
        listener.bind(os.fspath(path))
        try:
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            yield listener
        finally:
            path.unlink(missing_ok=True)


_CREDENTIALS = struct.Struct("3i")


def peer_process(connection: socket.socket) -> int:
    """The process at the other end of a unix socket, which connected or listened there."""
    return _credentials(connection)[0]


def check_peer_user(connection: socket.socket) -> None:
    """PermissionError where the other end of a unix socket is another user's."""
    user = _credentials(connection)[1]
    if user not in (0, os.getuid()):
        raise PermissionError(f"user {user} is at the other end, and this is {os.getuid()}")


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(content)
