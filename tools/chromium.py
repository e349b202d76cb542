"""A headless Chromium for checks of pages: over the pipe of its DevTools protocol, which needs no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_S = 60.0
_OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_OF_THE_BROWSER = ("file:", "data:", "blob:", "about:", "chrome:")
_READS_COMMANDS, _WRITES_REPLIES = 3, 4  # the file descriptors of the protocol


class ChromiumError(RuntimeError):
    """The browser ended, refused a command, or did not answer in time."""


def chromium_path() -> str | None:
    """The browser of this machine; None: there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab, and what went wrong in it: console errors, exceptions, files not found, requests to other hosts."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol, and wait for its result."""
        return self._browser.command(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        """Give the window a size in CSS pixels; narrow ones are those of a phone."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, url: str) -> None:
        """Load a page, and wait until its scripts and pictures have loaded. Forgets the problems of the last page."""
        self.problems.clear()
        loaded = self._browser.loads
        if error := self.command("Page.navigate", url=url).get("errorText"):
            raise ChromiumError(f"{url}: {error}")
        self._browser.pump(lambda: self._browser.loads > loaded, f"{url} to load")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise ChromiumError(f"{expression}: {_exception_text(result['exceptionDetails'])}")
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float) -> bool:
        """Whether a JavaScript expression becomes true in time."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def count_in_shadows(self, host_class: str, element: str) -> int:
        """How many shadow roots of elements of a class hold an element; closed ones too, which scripts cannot open."""
        root = self.command("DOM.getDocument", depth=-1, pierce=True)["root"]
        hosts = (node for node in _nodes(root) if host_class in _classes(node))
        return sum(
            any(
                inner["nodeName"].lower() == element
                for shadow in host.get("shadowRoots", ())
                for inner in _nodes(shadow)
            )
            for host in hosts
        )

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def take(self, method: str, event: dict[str, Any]) -> None:
        """Note an event of the tab."""
        if method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {_exception_text(event['exceptionDetails'])}")
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            words = (str(each.get("value", each.get("description", ""))) for each in event["args"])
            self.problems.append(f"console: {' '.join(words)}")
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.problems.append(f"log: {event['entry']['text']} {event['entry'].get('url', '')}".strip())
        elif method == "Network.requestWillBeSent" and not event["request"]["url"].startswith(self._browser.allowed):
            self.problems.append(f"request to another host: {event['request']['url']}")


class Chromium:
    """A browser that runs as long as the context. It resolves no host name, so nothing comes over the network but from
    this machine's own servers."""

    def __init__(self, path: str, *, served: str = "file:") -> None:
        """served: how addresses of this machine begin that pages may ask for, besides files."""
        self._path = path
        self.allowed = (*_OF_THE_BROWSER, served)
        self._number = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self._unread = b""
        self.loads = 0

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="docs-check-", ignore_cleanup_errors=True)
        commands, self._commands = _pipe()
        self._messages, messages = _pipe()
        sandbox = () if os.geteuid() else ("--no-sandbox",)  # which root cannot have
        arguments = [self._path, *_OPTIONS, *sandbox, f"--user-data-dir={self._profile.name}", "about:blank"]
        silence = os.open(os.devnull, os.O_RDWR)
        self._pid = os.posix_spawn(
            self._path,
            arguments,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, silence, 2),  # first: it may have a number of the others
                (os.POSIX_SPAWN_DUP2, commands, _READS_COMMANDS),
                (os.POSIX_SPAWN_DUP2, messages, _WRITES_REPLIES),
            ],
            setsid=True,
        )
        for end in (commands, messages, silence):
            os.close(end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._messages)
        self._profile.cleanup()

    def page(self) -> Page:
        """Open a tab."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        return page

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command, and wait for its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        unsent = json.dumps(message).encode() + b"\0"
        while unsent:
            unsent = unsent[os.write(self._commands, unsent) :]
        self.pump(lambda: number in self._replies, f"the reply to {method}")
        reply = self._replies.pop(number)
        if "error" in reply:
            raise ChromiumError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def pump(self, is_done: Callable[[], bool], awaited: str) -> None:
        """Read messages until `is_done`."""
        deadline = time.monotonic() + _PATIENCE_S
        while not is_done():
            if not select.select([self._messages], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ChromiumError(f"waited {_PATIENCE_S:g} s for {awaited}")
            read = os.read(self._messages, 1 << 20)
            if not read:
                raise ChromiumError(f"{self._path} ended while waiting for {awaited}")
            *messages, self._unread = (self._unread + read).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._replies[message["id"]] = message
            return
        self.loads += message["method"] == "Page.loadEventFired"
        if page := self._pages.get(message.get("sessionId", "")):
            page.take(message["method"], message["params"])


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are no file descriptors of the protocol, and are not inherited."""
    ends = os.pipe()
    try:
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
        return read, write
    finally:
        for end in ends:
            os.close(end)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of the document, and those below it."""
    yield node
    for child in node.get("children", ()):
        yield from _nodes(child)


def _classes(node: dict[str, Any]) -> list[str]:
    attributes: list[str] = node.get("attributes", [])
    return dict(zip(attributes[::2], attributes[1::2], strict=True)).get("class", "").split()


def _exception_text(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description", details["text"]))
