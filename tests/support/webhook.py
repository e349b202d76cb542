"""A receiver of messages of alerts."""

from __future__ import annotations

import contextlib
import http.server
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from support.http_serving import serving


@dataclass
class Webhook:
    """Where it is, and what it got."""

    url: str
    got: list[Any] = field(default_factory=list[Any])
    refuses: int = 0
    """So many messages more."""


@contextlib.contextmanager
def webhook() -> Generator[Webhook]:
    """One on this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if receiver.refuses:
                receiver.refuses -= 1
                self.send_error(503)
                return
            receiver.got.append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with serving(Handler) as port:
        receiver = Webhook(f"http://127.0.0.1:{port}/alerts")
        yield receiver
