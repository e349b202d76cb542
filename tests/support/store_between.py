"""A store between a client and another one: it hands requests on, and is slow, dies in the middle of an answer, or
lies."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from support.http_serving import serving

_PIECE = 1024
_OF_A_CONNECTION = {"connection", "transfer-encoding", "content-length"}


@dataclass
class StoreBetween:
    """How it behaves now; fields may be changed while it runs."""

    port: int = 0
    bytes_per_second: float = 1e9
    dies_after: int | None = None
    """Bytes of contents that it answers in all from now on, or takes; then it closes each connection."""
    revives_after: int | None = None
    """How many connections it closes at most."""
    loses: set[str] = field(default_factory=set[str])
    """Ends of paths of objects whose writers get no answer, though they arrive."""
    instead: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """What it gives for objects, by the ends of their paths."""
    hidden: set[str] = field(default_factory=set[str])
    """Ends of paths of objects that it does not list."""
    endless: set[str] = field(default_factory=set[str])
    """Ends of paths of objects whose contents do not end, whatever was asked for."""
    closed: int = 0
    """Connections that it has closed."""
    given: int = 0
    """Bytes of contents that it has answered."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def well(self) -> None:
        """From now on it hands on what is asked, and what is answered."""
        self.bytes_per_second, self.dies_after, self.revives_after = 1e9, None, None
        self.instead, self.hidden, self.endless, self.loses = {}, set(), set(), set()

    def is_dead(self, count: int) -> bool:
        """Whether it dies now, with so many bytes more."""
        if self.dies_after is None:
            return False
        self.dies_after = max(0, self.dies_after - count)
        if self.dies_after > 0:
            return False
        self.closed += 1
        if self.revives_after is not None and self.closed >= self.revives_after:
            self.dies_after = None
        return True


@contextmanager
def store_between(endpoint: str) -> Generator[StoreBetween]:
    """Before the store at an endpoint, until the block ends."""
    state = StoreBetween()
    host = endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

        def _handed_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if state.is_dead(len(content)):
                self.close_connection = True
                return
            onward = http.client.HTTPConnection(host)
            onward.request(self.command, self.path, content, dict(self.headers))
            answer = onward.getresponse()
            body, headers = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
            onward.close()
            if self.command == "PUT" and any(self.path.partition("?")[0].endswith(end) for end in state.loses):
                state.closed += 1
                self.close_connection = True
                return
            self._answer(answer.status, headers, body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handed_on

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            path, _, query = self.path.partition("?")
            lied = next((content for end, content in state.instead.items() if path.endswith(end)), None)
            if lied is not None and self.command == "GET":
                status, body = self._range_of(lied, headers)
            elif "list-type" in query:
                for name in state.hidden:
                    listed = rb"(?s)<Contents>\s*<Key>[^<]*" + name.encode() + rb"</Key>.*?</Contents>"
                    body = re.sub(listed, b"", body)
            is_endless = any(path.endswith(end) for end in state.endless)
            self.send_response(status)
            for name, value in headers.items():
                if name not in _OF_A_CONNECTION:
                    self.send_header(name, value)
            size = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", "1000000000000" if is_endless else size)
            self.end_headers()
            with suppress(OSError):  # nobody listens any more
                self._send(body)
                while is_endless:
                    self.wfile.write(bytes(1 << 20))
            self.close_connection = self.close_connection or is_endless

        def _range_of(self, content: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if found is None:
                return 200, content
            first, last = int(found[1]), min(int(found[2]), len(content) - 1)
            if first > last:
                headers["content-range"] = f"bytes */{len(content)}"
                return 416, b""
            headers["content-range"] = f"bytes {first}-{last}/{len(content)}"
            return 206, content[first : last + 1]

        def _send(self, body: bytes) -> None:
            for start in range(0, len(body) if self.command != "HEAD" else 0, _PIECE):
                piece = body[start : start + _PIECE]
                if state.is_dead(len(piece)):
                    self.close_connection = True
                    self.wfile.write(piece[: len(piece) // 2])
                    raise ConnectionAbortedError
                self.wfile.write(piece)
                state.given += len(piece)
                time.sleep(len(piece) / state.bytes_per_second)

    with serving(Handler) as state.port:
        try:
            yield state
        finally:
            state.well()
