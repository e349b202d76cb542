"""A reverse proxy that asks for a key, in front of an engine that listens on loopback.

Engines ask for none (transformers), or not on every path (vLLM). This proxy passes on `/v1/…` with the key, and the
health check without. Nothing else of the engine can be reached through it.
"""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import AsyncIterator

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

HEALTH = "/health"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
# Of one connection, so never passed on (RFC 9110, 7.6.1); the key is not the engine's either.
_NOT_PASSED_ON = {
    *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
    *(b"transfer-encoding", b"upgrade", b"host", b"authorization"),
}
_STOP_SECONDS = 2


class KeyProxy:
    """Answers on a listening socket, in a thread of its own, from its making to `close`."""

    def __init__(self, listener: socket.socket, key: str, engine: str, engine_health: str) -> None:
        """engine: its address, such as http://127.0.0.1:5000; engine_health: the path of its own health check."""
        self._key = key.encode()
        self._health = engine_health
        # No limit on reading: a long answer may be silent while the engine computes.
        self._client = httpx2.AsyncClient(
            base_url=engine, timeout=httpx2.Timeout(10, read=None), limits=httpx2.Limits(), trust_env=False
        )
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=_METHODS)])
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=_STOP_SECONDS, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="key-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to answer; what is under way has two seconds."""
        self._server.should_exit = True
        self._thread.join(2 * _STOP_SECONDS)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path == HEALTH and request.method in ("GET", "HEAD"):
            return await self._pass_on(httpx2.Request("GET", self._client.base_url.join(self._health)))
        if not self._has_key(request):
            return _refusal(401, "a wrong API key, or none", {"WWW-Authenticate": "Bearer"})
        if not path.startswith("/v1/") or ".." in path.split("/"):
            return _refusal(404, f"{path} is not passed on; only /v1/ and {HEALTH} are")
        url = self._client.base_url.copy_with(raw_path=_raw_target(request))
        headers = [(name, value) for name, value in request.headers.raw if name not in _NOT_PASSED_ON]
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        content = request.stream() if has_body else None
        return await self._pass_on(httpx2.Request(request.method, url, headers=headers, content=content))

    def _has_key(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._key)

    async def _pass_on(self, request: httpx2.Request) -> Response:
        """The engine's answer, piece by piece as it comes."""
        try:
            answer = await self._client.send(request, stream=True)
        except httpx2.ConnectError:
            return _refusal(503, "the model is not loaded yet")
        except httpx2.HTTPError as error:
            return _refusal(502, f"the engine did not answer: {type(error).__name__}")
        passed = StreamingResponse(_pieces(answer), answer.status_code)
        passed.raw_headers = [(n.lower(), v) for n, v in answer.headers.raw if n.lower() not in _NOT_PASSED_ON]
        return passed


async def _pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Bytes as the engine sent them; the engine's connection ends with the client's."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def _raw_target(request: Request) -> bytes:
    """Path and query as the client wrote them."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return path + b"?" + query if query else path


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A refusal in the form that clients of OpenAI's API read."""
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status, headers)
