"""The key-checking proxy in front of a small real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from starlette.applications import Starlette  # noqa: E402
from starlette.requests import ClientDisconnect, Request  # noqa: E402
from starlette.responses import JSONResponse, Response, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

from geocomm.core.addresses import loopback_listener  # noqa: E402
from geocomm.train.serve.key_proxy import KeyProxy  # noqa: E402
from support.local_jobs import free_port  # noqa: E402

_KEY = "secret"
_WITH_KEY = {"Authorization": f"Bearer {_KEY}"}


class _Engine:
    """Says what it was asked; streams slowly; notices that a client went away."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.go_on = threading.Event()
        listener = loopback_listener()
        self.port = listener.getsockname()[1]
        routes = [
            Route("/v1/slow", self._slow, methods=["GET"]),
            Route("/v1/endless", self._endless, methods=["GET"]),
            Route("/{path:path}", self._echo, methods=["GET", "POST", "DELETE"]),
        ]
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    async def _echo(self, request: Request) -> Response:
        told = {
            "method": request.method,
            "path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "headers": {name.decode(): value.decode() for name, value in request.headers.raw},
            "body": (await request.body()).decode(),
        }
        return JSONResponse(told, 418 if request.url.path == "/v1/teapot" else 200, {"X-Of-The-Engine": "yes"})

    async def _slow(self, request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.to_thread(self.go_on.wait, 20)
            yield b"second"

        return StreamingResponse(pieces())

    async def _endless(self, request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x"
                    await asyncio.sleep(0.02)
            except (asyncio.CancelledError, ClientDisconnect, GeneratorExit):
                self.left.set()
                raise

        return StreamingResponse(pieces())

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture(scope="module")
def engine() -> Iterator[_Engine]:
    started = _Engine()
    yield started
    started.close()


def _front(port: int) -> tuple[KeyProxy, int]:
    listener: socket.socket = loopback_listener()
    return KeyProxy(listener, _KEY, f"http://127.0.0.1:{port}", "/v1/models"), listener.getsockname()[1]


@pytest.fixture(scope="module")
def port(engine: _Engine) -> Iterator[int]:
    proxy, port = _front(engine.port)
    yield port
    proxy.close()


def _ask(
    port: int, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_request_arrives_as_it_was_sent_but_for_the_key(port: int) -> None:
    answer, body = _ask(port, "POST", "/v1/a%20b?x=1&y=%2F", _WITH_KEY | {"X-Mine": "1"}, b"hello")
    told = json.loads(body)
    assert (answer.status, answer.headers["X-Of-The-Engine"]) == (200, "yes")
    assert (told["method"], told["path"], told["query"], told["body"]) == ("POST", "/v1/a%20b", "x=1&y=%2F", "hello")
    assert told["headers"]["x-mine"] == "1"
    assert "authorization" not in told["headers"]


def test_body_of_unknown_length_arrives(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/x", iter([b"one", b"two"]), _WITH_KEY, encode_chunked=True)
    assert json.loads(connection.getresponse().read())["body"] == "onetwo"
    connection.close()


def test_status_of_the_engine_comes_through(port: int) -> None:
    assert _ask(port, "DELETE", "/v1/teapot", _WITH_KEY)[0].status == 418


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {_KEY}", _KEY, "Bearer \xe9"])
def test_wrong_key_is_refused(port: int, value: str | None) -> None:
    answer, body = _ask(port, "GET", "/v1/models", {} if value is None else {"Authorization": value})
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "path" not in json.loads(body)


def test_health_asks_the_engines_own_path_and_passes_on_nothing(port: int) -> None:
    answer, body = _ask(port, "GET", "/health?x=1", {"X-Mine": "1"}, b"hello")
    told = json.loads(body)
    assert answer.status == 200
    assert (told["path"], told["query"], told["body"]) == ("/v1/models", "", "")
    assert "x-mine" not in told["headers"]
    assert _ask(port, "POST", "/health")[0].status == 401


def test_pieces_come_as_the_engine_sends_them(engine: _Engine, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/v1/slow", headers=_WITH_KEY)
    answer = connection.getresponse()
    assert answer.read1(100) == b"first"  # the second is not made yet
    engine.go_on.set()
    assert answer.read() == b"second"
    connection.close()


def test_engine_learns_that_the_client_went_away(engine: _Engine, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/v1/endless", headers=_WITH_KEY)
    assert connection.getresponse().read1(1) == b"x"
    connection.close()
    assert engine.left.wait(10)


def test_engine_that_is_not_there_yet_is_503() -> None:
    proxy, port = _front(free_port())
    try:
        assert _ask(port, "GET", "/health")[0].status == 503
        assert _ask(port, "GET", "/v1/models", _WITH_KEY)[0].status == 503
    finally:
        proxy.close()


def test_engine_that_hangs_up_is_502() -> None:
    listener = loopback_listener()
    listener.setblocking(True)

    def hang_up() -> None:
        listener.accept()[0].close()

    threading.Thread(target=hang_up, daemon=True).start()
    proxy, port = _front(listener.getsockname()[1])
    try:
        assert _ask(port, "GET", "/v1/x", _WITH_KEY)[0].status == 502
    finally:
        proxy.close()
        listener.close()


def test_close_gives_the_port_back() -> None:
    proxy, port = _front(free_port())
    assert _ask(port, "GET", "/health")[0].status == 503
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        _ask(port, "GET", "/health")
