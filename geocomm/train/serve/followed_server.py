"""transformers' own server, with weights that follow a stream: what `geocomm serve --follow` starts.

All that a model generates waits in one line, and so does each swap of its weights. A request that stands in the line
before a swap keeps the weights before it; and each answer says by a header which version it is of.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from transformers.cli import transformers as transformers_cli
from transformers.cli.serving import server
from transformers.cli.serving.utils import GenerateManager
from typing_extensions import override

from geocomm.core.errors import DataError
from geocomm.core.message_log import CalmLog, tell
from geocomm.train.serve.engines import FollowSettings
from geocomm.weights.reader import WeightReader

_LOOK_S = 1.0
_AFTER_FAILURE_S = 10.0
_CALM_S = 60.0
_CLOSED = ("/load_model", "/reset")
"""Paths that would put other weights in place of those that follow."""
VERSION_HEADER = b"x-geocomm-weights"
"""Of each answer: the number of the version that it is of; 0: the weights of the model's folder."""
_answer_of: ContextVar[list[int]] = ContextVar("_answer_of")
"""The versions that the request under way has met, the last one is that of its answer."""


class OneLine(GenerateManager):
    """Generates for one request after the other, and swaps weights in between."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.version = 0
        """Of the weights at the end of the line; 0: those that the model was loaded with."""

    @override
    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        line: Any = super()
        with self._lock:
            self._note()
            return line.submit(fn, *args, **kwargs)

    @override
    def async_submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        line: Any = super()
        with self._lock:
            self._note()
            return line.async_submit(fn, *args, **kwargs)

    def swap(self, number: int, copy: Callable[[], None]) -> None:
        """Copy a version into the model, once all that stands in the line has been generated."""
        line: Any = super()
        with self._lock:
            copied = line.submit(copy)
            self.version = number
        try:
            copied.result()
        except BaseException as error:  # half a version must answer nobody
            tell("serve", f"the weights of version {number} could not be copied: {error!r}")
            os._exit(1)

    def _note(self) -> None:
        if (met := _answer_of.get(None)) is not None:
            met.append(self.version)


class ToldVersion:
    """A layer of the server: says in each answer which version of the weights it is of."""

    def __init__(self, app: Any, line: OneLine) -> None:
        self._app, self._line = app, line

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        met = [self._line.version]
        _answer_of.set(met)

        async def send_told(message: Any) -> None:
            if message["type"] == "http.response.start":
                told = (VERSION_HEADER, str(met[-1]).encode())
                message = {**message, "headers": [*message.get("headers", ()), told]}
            await send(message)

        if scope["path"] in _CLOSED:
            await send_told({"type": "http.response.start", "status": 404})
            await send_told({"type": "http.response.body", "body": b"closed, since the weights follow a stream\n"})
            return
        await self._app(scope, receive, send_told)


class FollowedModel:
    """Keeps a model at the newest version of a stream. What cannot be had is said, and the model stays as it is."""

    def __init__(self, model: Any, settings: FollowSettings, line: OneLine) -> None:
        """InvalidArgumentError: the settings cannot be used."""
        self._complain = CalmLog(lambda text: tell("serve", text), _CALM_S)
        self._reader = WeightReader(
            settings.sources,
            model,
            keys=settings.keys or None,
            publisher=settings.publisher or None,
            cache="frames",  # in the folder that `geocomm serve` removes, however this process ends
            swap=line.swap,
        )

    def look(self) -> bool:
        """Get to the newest version; whether that could be had."""
        before, begun = self._reader.version, time.monotonic()
        try:
            if self._reader.update() > before:
                step = "" if self._reader.step is None else f" (step {self._reader.step})"
                seconds = time.monotonic() - begun
                tell("serve", f"answers by version {self._reader.version}{step} of the weights, {seconds:.1f} s")
        except Exception as error:  # of whatever kind: that nothing is followed any more would be noticed by nobody
            why = " ".join(str(error).split()) if isinstance(error, DataError) else repr(error)
            self._complain(f"answers by version {before} of the weights on: {why}")
            return False
        return True

    def keep(self) -> None:
        """Do so for ever, in a thread that ends with the process."""

        def look() -> None:
            while True:
                time.sleep(_LOOK_S if self.look() else _AFTER_FAILURE_S)

        threading.Thread(target=look, name="geocomm-follow", daemon=True).start()


def main() -> None:
    """The command line is the settings, and then that of transformers."""
    settings = FollowSettings.model_validate_json(sys.argv.pop(1))
    build = server.build_server

    def build_following(model_manager: Any, *handlers: Any, generation_state: Any, **named: Any) -> Any:
        line = OneLine()

        def one_line(*_model: object, **_named: object) -> OneLine:  # there is one model
            return line

        generation_state.get_manager = one_line
        (loaded,) = model_manager.loaded_models.values()
        followed = FollowedModel(loaded.model, settings, line)
        followed.look()  # nobody is answered by older weights than there are
        followed.keep()
        app = build(model_manager, *handlers, generation_state=generation_state, **named)
        app.add_middleware(ToldVersion, line=line)
        return app

    server.build_server = build_following
    transformers_cli.main()


if __name__ == "__main__":
    main()
