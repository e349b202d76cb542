"""Real stores for tests: S3 by moto, a process each with a key of its own; a web server that is slow, lies and dies."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from support.http_serving import serving
from support.local_jobs import free_port

_BUCKET = "tokens"
_SET_UP_REQUESTS = 4
"""Then moto looks at signatures."""


@dataclass(frozen=True)
class S3Server:
    """moto with one bucket; every request needs its key."""

    endpoint: str
    key: str
    secret: str
    log: Path
    url: str = f"s3://{_BUCKET}/web"

    @property
    def table(self) -> dict[str, Any]:
        """For GEOCOMM_STORES."""
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "endpoint": self.endpoint,
            "region": "us-east-1",
        }

    def table_without(self, action: str) -> dict[str, Any]:
        """The table of another key, which may do all but this, such as s3:PutObject."""
        key = _new_key(self.endpoint, self.key, self.secret, f"without-{action}".replace(":", "-"), denied=action)
        return self.table | {"access_key_id": key["AccessKeyId"], "secret_access_key": key["SecretAccessKey"]}

    def requests(self, about: str = "") -> list[str]:
        """Lines of the access log since the bucket was made, of paths with `about` in them."""
        lines = self.log.read_text().splitlines()
        made = next(index for index, line in enumerate(lines) if f'"PUT /{_BUCKET} ' in line)
        return [line for line in lines[made + 1 :] if '" ' in line and about in line]


@contextmanager
def s3_server(folder: Path, name: str) -> Iterator[S3Server]:
    """name: of its log in the folder."""
    port = free_port()
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(_SET_UP_REQUESTS)}
    environment.pop("PYTHONPATH", None)
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as server:
        try:
            _await_port(server, port)
            endpoint = f"http://127.0.0.1:{port}"
            key = _new_key(endpoint, "any", "any", name)
            _client("s3", endpoint, "any", "any").create_bucket(Bucket=_BUCKET)
            yield S3Server(endpoint, key["AccessKeyId"], key["SecretAccessKey"], log)
        finally:
            server.kill()


def _client(service: str, endpoint: str, key: str, secret: str) -> Any:
    import boto3

    return boto3.client(  # pyright: ignore[reportUnknownMemberType, reportCallIssue, reportArgumentType]
        service,  # pyright: ignore[reportArgumentType]
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
    )


def _new_key(endpoint: str, key: str, secret: str, user: str, denied: str = "") -> dict[str, str]:
    """A key of a new user, who may do all but what is denied. Three requests."""
    iam = _client("iam", endpoint, key, secret)
    iam.create_user(UserName=user)
    effects = {"Allow": "*"} | ({"Deny": denied} if denied else {})
    statements = [{"Effect": effect, "Action": action, "Resource": "*"} for effect, action in effects.items()]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=user, PolicyName="all", PolicyDocument=policy)
    made: dict[str, str] = iam.create_access_key(UserName=user)["AccessKey"]
    return made


def _await_port(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("moto ended at once")


@dataclass
class WebServer:
    """Serves files from memory, by ranges."""

    files: dict[str, bytes]
    """By path, with the / before it. May be changed while it runs, which is how it lies."""
    bytes_per_second: float = 1e9
    dead: bool = False
    """It takes connections, and closes them."""
    hangs: bool = False
    """It takes requests, and answers none until this is over."""
    hanging: list[str] = field(default_factory=list[str])
    """Paths of requests that wait for that."""
    asked: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])
    """Path, first byte, and when (monotonic)."""
    port: int = 0
    most_at_once: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begun(self, change: int) -> None:
        """Count requests that are answered now."""
        with self._lock:
            self._now += change
            self.most_at_once = max(self.most_at_once, self._now)


@contextmanager
def web_server(files: dict[str, bytes]) -> Iterator[WebServer]:
    """Until the block ends."""
    state = WebServer(files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: `asked` has it."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            if state.dead:
                self.close_connection = True
                return
            if state.hangs:
                state.hanging.append(self.path)
            while state.hangs:
                time.sleep(0.02)
            state.begun(1)
            begun = True

            def ends() -> None:
                """Before the last byte goes: the next request may come before this thread goes on."""
                nonlocal begun
                if begun:
                    begun = False
                    state.begun(-1)

            try:
                self._send(ends, with_body=with_body)
            finally:
                ends()

        def _send(self, ends: Callable[[], None], *, with_body: bool) -> None:
            content = state.files.get(self.path)
            found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            end = len(content or b"") - 1
            first, last = (int(found[1]), min(int(found[2]), end)) if found else (0, end)
            state.asked.append((self.path, first, time.monotonic()))
            body = b"" if content is None else content[first : last + 1]
            self.send_response(404 if content is None else 206 if found else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            if found and content is not None:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.end_headers()
            for start in range(0, len(body) if with_body else 0, 65536):
                if state.dead:
                    self.close_connection = True
                    return
                if start + 65536 >= len(body):
                    ends()
                self.wfile.write(body[start : start + 65536])
                time.sleep(65536 / state.bytes_per_second)

    with serving(Handler) as state.port:
        try:
            yield state
        finally:
            state.hangs = False


def write_tables(path: Path, tables: dict[str, dict[str, Any]]) -> Path:
    """The TOML file of GEOCOMM_STORES."""
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f'["{name}"]')
        for key, value in table.items():
            inner = (
                ", ".join(f"{one} = {json.dumps(other)}" for one, other in value.items())
                if key.endswith("options")
                else ""
            )
            lines.append(f"{key} = {{{inner}}}" if inner else f"{key} = {json.dumps(value)}")
    path.write_text("\n".join(lines) + "\n")
    return path
