"""One TLS connection of an event loop, over a plain non-blocking socket.

Not asyncio's own TLS: that reserves 256 KiB for every connection, strangers' included, and does not tell the server why
a handshake failed, which `explain` says in words for a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from geocomm.core.addresses import plain_host
from geocomm.security.key_folder import RENEW

_READ_BYTES = 64 * 1024
_TCP_RTO_MAX_MS = 44  # of linux/tcp.h, since 6.15
_GIVEN_UP_MS = 900_000  # as TCP does by default, which counts attempts


class TlsStream:
    """Bytes both ways; one task may read while others write. Every method may raise OSError (ssl.SSLError is one).

    It owns the socket. It sets no time limits: callers use asyncio.timeout.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._turn_to_send = asyncio.Lock()
        self._ahead = bytearray()  # read together with a line, and behind it
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)

    @property
    def own_host(self) -> str:
        """The address of this end."""
        return plain_host(str(self._socket.getsockname()[0]))

    def send_with(self, congestion_control: str) -> None:
        """Let the kernel pace what is sent in this way, where it has it and allows it."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())

    def retry_each(self, seconds: float) -> None:
        """Have TCP send again so often, at least, what is not acknowledged, where the kernel can: by default its pauses
        double, so that a line which was away is found again only after as long a time."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, round(seconds * 1000))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GIVEN_UP_MS)

    async def handshake(self) -> None:
        """Agree on keys. A client may return before the server has looked at its certificate: the first read tells."""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert, so that the peer knows why
                raise
        await self._flush()

    async def read_exactly(self, size: int) -> bytes:
        """The next `size` bytes; ConnectionError where the peer closed before."""
        parts = bytearray()
        while len(parts) < size:
            parts += await self.read_some(size - len(parts))
        return bytes(parts)

    async def read_some(self, most: int) -> bytes:
        """The next bytes, one at least; ConnectionError where the peer closed before."""
        if self._ahead:
            part = bytes(self._ahead[:most])
            del self._ahead[:most]
            return part
        return await self._read_more(most)

    async def _read_more(self, most: int) -> bytes:
        while True:
            try:
                part = self.tls.read(most)
            except ssl.SSLWantReadError:
                await self._flush()  # an answer to a change of keys
                await self._receive()
                continue
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:
                raise ConnectionResetError("the peer closed the connection")
            return part

    async def read_line(self, most: int) -> bytes:
        """The bytes up to a line feed, and nothing of what follows it; ConnectionError for more than `most`."""
        looked = 0
        while (end := self._ahead.find(b"\n", looked)) < 0:
            looked = len(self._ahead)
            if looked > most:
                break
            self._ahead += await self._read_more(_READ_BYTES)
        if not 0 <= end <= most:
            raise ConnectionAbortedError(f"the peer sent a line of more than {most} bytes")
        line = bytes(self._ahead[:end])
        del self._ahead[: end + 1]
        return line

    async def write(self, content: bytes) -> None:
        """Send all of `content`, which waits while the peer does not take it."""
        self.tls.write(content)
        await self._flush()

    def close(self) -> None:
        """Tell the peer if that takes no waiting, and close. Idempotent."""
        with contextlib.suppress(OSError):
            self.tls.unwrap()
        with contextlib.suppress(OSError):
            self._socket.send(self._outgoing.read())
        with contextlib.suppress(OSError):
            # Forked children may hold copies of the descriptor; the connection ends all the same.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    async def _flush(self) -> None:
        async with self._turn_to_send:
            content = self._outgoing.read()
            if content:
                await asyncio.get_running_loop().sock_sendall(self._socket, content)

    async def _receive(self) -> None:
        content = await asyncio.get_running_loop().sock_recv(self._socket, _READ_BYTES)
        if not content:
            raise ConnectionResetError("the peer closed the connection")
        self._incoming.write(content)


# What OpenSSL found wrong with the peer's certificate (X509_V_ERR_*), and what it was told of ours (TLS alerts).
_FOUND = {
    **dict.fromkeys(
        (7, 18, 19, 20),
        "its certificate was not signed by this job's CA; are both folders from the same geocomm keys create?",
    ),
    9: "its certificate is not valid yet; set the clocks of both machines right",
    10: f"its certificate has expired; renew it: {RENEW}",
    12: "the list of revoked certificates here (crl.pem) has expired; copy the newest from where the CA's key is",
    23: "its certificate has been revoked (crl.pem)",
}
_TOLD = {
    "CERTIFICATE_EXPIRED": f"it says that this site's certificate has expired; renew it: {RENEW}",
    "CERTIFICATE_REVOKED": "it says that this site's certificate has been revoked",
    "UNKNOWN_CA": "it says that this site's certificate is not of its job's CA; are both of one geocomm keys create?",
    "DECRYPT_ERROR": "it says that this site's certificate is not of its job's CA; are both of one job?",
    "BAD_CERTIFICATE": "it says that this site's certificate is not good, perhaps not valid yet; compare the clocks",
    "CERTIFICATE_REQUIRED": "it asks for a certificate, and none was sent; set GEOCOMM_KEYS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no certificate; is GEOCOMM_KEYS set there?",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; is another program on that port, or a peer without keys?",
    "HTTP_REQUEST": "it speaks plain HTTP",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
}


def explain(error: ssl.SSLError) -> str:
    """Why a handshake failed, and what to do, in words for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _FOUND.get(error.verify_code, f"its certificate is not good: {error.verify_message}")
    reason = error.reason or ""
    for part, text in _TOLD.items():
        if reason.endswith(part):
            return text
    return f"TLS failed: {reason or error}"
