"""The web application of the page: files, the state as JSON, a stream of it, and the metrics of all sites.

It only reads. Who may look is decided before anything else: requests come with the token, or, where there is none, to a
host name that it knows. `write_report` writes the page as one file, which opens without a server.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import sqlite3
import time
import traceback
import zlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from geocomm.core.message_log import CalmLog, logger
from geocomm.observe.dashboard.page_state import Curves, LastSteps, page_state, plain, verdicts
from geocomm.observe.diagnosis.bottleneck import LiveDiagnosis, bottleneck_metric
from geocomm.observe.telemetry.overview import overview
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder

STATIC = Path(__file__).parent / "static"
COOKIE = "geocomm-token"
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_INTERVAL_S = 1.0
_MOST_VIEWERS = 32
_KEPT_S = 1.0
_COMPLAINT_S = 600.0
_JUDGED_EVERY_S = 10.0
_MOST_JUDGING = 0.1
"""The share of the time that judging may take."""


class Page:
    """One run's page."""

    def __init__(self, path: Path) -> None:
        """path: of the run store, or its folder. NoStoreError."""
        # A store each, so that none waits for another.
        self._store, self._store_of_curves, self._store_of_verdicts = (RunStore(path) for _ in range(3))
        self._turn, self._turn_of_curves = asyncio.Lock(), asyncio.Lock()
        self._steps = LastSteps(self._store)
        self._curves = Curves(self._store_of_curves)
        self._state: tuple[float, dict[str, Any]] = (0.0, {})
        self._live = LiveDiagnosis()
        self._judging: asyncio.Task[None] | None = None
        self._judge_at = 0.0
        self._viewers = 0
        self._complain = CalmLog(logger().warning, _COMPLAINT_S)

    async def state(self) -> dict[str, Any]:
        """The state of now; at most a second old. Verdicts are those of some seconds ago."""
        async with self._turn:
            if time.monotonic() - self._state[0] > _KEPT_S / 2:
                self._begin_to_judge()
                state = await run_in_threadpool(page_state, self._store, self._steps, time.time())
                found = [] if self._live.shown is None else verdicts(self._live.shown)
                self._state = (time.monotonic(), {**state, "verdicts": found})
            return self._state[1]

    def _begin_to_judge(self) -> asyncio.Task[None]:
        """If it is time for that."""
        if self._judging is None or (self._judging.done() and time.monotonic() >= self._judge_at):
            self._judging = asyncio.create_task(self._judge())
        return self._judging

    async def _judge(self) -> None:
        """Look for what is slow. Where that takes long, as with long steps, it is done less often."""
        began = time.monotonic()
        try:
            await run_in_threadpool(self._live.look, self._store_of_verdicts)
        except sqlite3.Error as error:
            self._complain(f"the page does not say what is slow: {error}; it looks again")
        except Exception:
            self._complain(f"the page does not say what is slow, by an error of this program: {traceback.format_exc()}")
        ended = time.monotonic()
        self._judge_at = ended + max(_JUDGED_EVERY_S, (ended - began) / _MOST_JUDGING)

    async def show_state(self, _: Request) -> Response:
        """`/api/run`."""
        return JSONResponse(await self.state())

    async def show_curves(self, request: Request) -> Response:
        """`/api/curves?seconds=3600`."""
        seconds = _number_of(request, "seconds", "600")
        async with self._turn_of_curves:
            return JSONResponse(await run_in_threadpool(self._read_curves, seconds))

    def _read_curves(self, seconds: float) -> dict[str, Any]:
        now, first = time.time(), self._first()
        return self._curves.read(max(first, now - seconds) if seconds > 0 else first, now)

    def _first(self) -> float:
        """Before anything was reported."""
        span = self._store_of_curves.span()
        return time.time() if span is None else span[0] - 1

    async def show_part(self, request: Request) -> Response:
        """`/api/part?since=1700000000&until=1700000600`: the curves of a part of the time, as close as there is data,
        with the last `steps` in it."""
        since, until = (_number_of(request, name, "nan") for name in ("since", "until"))
        if not since < until:
            return PlainTextResponse("since, until: Unix seconds", 400)
        async with self._turn_of_curves:
            return JSONResponse(await run_in_threadpool(self._read_part, since, until))

    def _read_part(self, since: float, until: float) -> dict[str, Any]:
        since, until = max(since, self._first()), min(until, time.time())
        store = self._store_of_curves
        return {**Curves(store).read(since, until), "steps": plain(LastSteps(store).read(until, since))}

    async def show_metrics(self, _: Request) -> Response:
        """`/metrics`."""
        try:
            from geocomm.observe.telemetry.run_numbers import prometheus_text

            judging = self._begin_to_judge()
            async with self._turn:
                folder = await run_in_threadpool(StoreFolder.look, self._store.path.parent)
                seen = await run_in_threadpool(overview, self._store, time.time(), folder.collected_since)
            if self._live.shown is None:
                await asyncio.wait([judging])
            more = [] if self._live.shown is None else [bottleneck_metric(self._live.shown)]
            text = prometheus_text(seen, folder, more)
            return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
        except ImportError:
            return PlainTextResponse("the package prometheus-client is missing", 501)

    async def stream(self, request: Request) -> Response:
        """`/api/stream`: server-sent events, one a second: the state first, then those parts of it that changed."""
        if self._viewers >= _MOST_VIEWERS:
            return PlainTextResponse("too many viewers", 503)
        self._viewers += 1  # before anything is waited for: others may ask meanwhile
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"x-accel-buffering": "no"} | ({"content-encoding": "gzip"} if zipped else {})
        events = self._events(_zipper() if zipped else bytes)
        return _Stream(events, self._leave, media_type="text/event-stream", headers=headers)

    def _leave(self) -> None:
        self._viewers -= 1

    async def _events(self, pack: Callable[[bytes], bytes]) -> AsyncGenerator[bytes]:
        """Nothing waits for a viewer who is slow: who has taken one event gets what is so then."""
        shown: dict[str, Any] = {}
        while True:
            state = await self.state()
            changed = {name: part for name, part in state.items() if name not in shown or shown[name] != part}
            shown = state
            yield pack(f"data: {json.dumps(changed, separators=(',', ':'))}\n\n".encode())
            await asyncio.sleep(_INTERVAL_S)


def _number_of(request: Request, name: str, usual: str) -> float:
    try:
        return float(request.query_params.get(name, usual))
    except ValueError:
        raise HTTPException(400, f"{name}: a number") from None


class _Stream(StreamingResponse):
    """Tells when it has ended, also where the viewer was gone before its first event."""

    def __init__(self, events: AsyncGenerator[bytes], ended: Callable[[], None], **options: Any) -> None:
        super().__init__(events, **options)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _zipper() -> Callable[[bytes], bytes]:
    """Packs piece after piece of one answer with gzip, so that each can be read at once."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return lambda piece: packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)


def dashboard_app(path: Path, token: str | None, hosts: frozenset[str]) -> Starlette:
    """The application. token: who comes without it sees nothing; None: everybody who reaches it sees the run.
    hosts: without a token, the names by which it is asked for, without the port. A request for another one is refused,
    so that no web page elsewhere can read this one by a name of its own (DNS rebinding); such a page has no token."""
    if token == "":
        raise ValueError("an empty token lets everybody in")
    page = Page(path)

    routes = [
        Route("/", _index),
        Route("/api/run", page.show_state),
        Route("/api/curves", page.show_curves),
        Route("/api/part", page.show_part),
        Route("/api/stream", page.stream),
        Route("/metrics", page.show_metrics),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    middleware = [Middleware(_Gate, token=token, hosts=hosts), Middleware(GZipMiddleware, minimum_size=1000)]
    return Starlette(routes=routes, middleware=middleware)


async def _index(_: Request) -> Response:
    return Response((STATIC / "index.html").read_bytes(), media_type="text/html")


class _Gate:
    """Lets those in who may look, and adds the headers that keep the page to itself."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: frozenset[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
                ]
            await send(message)

        request = Request(scope)
        answer = self._refusal(request)
        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to who may not look; None: may."""
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only shows", 405)
        if self._token is None:
            if _host_of(request.headers.get("host", "")) in self._hosts:
                return None
            return PlainTextResponse("this page is not asked for by that name: geocomm dashboard --host", 421)
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            answer = RedirectResponse(request.url.path, 303)  # the token leaves the address line
            answer.set_cookie(COOKIE, given, httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer) or self._is_token(request.cookies.get(COOKIE, "")):
            return None
        return PlainTextResponse("open the address that geocomm dashboard has printed, with its token", 401)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())


def _host_of(header: str) -> str:
    """The name of a Host header, without its port."""
    host = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return host.strip("[]").lower()


_STYLES = ("uplot-1.6.32/uPlot.min.css", "app.css")
_SCRIPTS = ("uplot-1.6.32/uPlot.iife.min.js", "format.js", "curves.js", "app.js")


def write_report(store: RunStore, path: Path) -> None:
    """Write the run as it stood at its last report, with the curves of all of it. OSError."""
    span = store.span()
    first, last = span or (0.0, 0.0)
    found = verdicts(LiveDiagnosis().look(store))
    data = {
        "run": page_state(store, LastSteps(store), last + 1) | {"verdicts": found},
        "curves": Curves(store).read(first - 1, last),
    }
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    for name in _STYLES:
        page = page.replace(f'<link rel="stylesheet" href="static/{name}">', f"<style>{_text(name)}</style>")
    for name in _SCRIPTS:
        page = page.replace(f'<script src="static/{name}" defer></script>', "")
    # Not a script: nothing in it is run, whatever sites and hosts are called.
    content = html.escape(json.dumps(data, separators=(",", ":")), quote=False)
    scripts = "".join(f"<script>{_text(name)}</script>" for name in _SCRIPTS)
    path.write_text(page.replace("</body>", f'<template id="data">{content}</template>{scripts}</body>'), "utf-8")


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
