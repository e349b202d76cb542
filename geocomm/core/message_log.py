"""Messages of the Python part: the logger "geocomm", which applications filter and collect like any other.

The native core writes its own lines to stderr and does not come through here: they are made in threads that must not
wait for Python's lock.

`CalmLog` is for what others can make happen again and again, `printable` for what they have said.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from geocomm.core.environment import LOG_LEVELS, log_is_json, log_level
from geocomm.core.once import Once
from geocomm.core.place import own_rank
from geocomm.core.site import site_name

_PYTHON_LEVELS = {
    LOG_LEVELS["debug"]: logging.DEBUG,
    LOG_LEVELS["info"]: logging.INFO,
    LOG_LEVELS["warning"]: logging.WARNING,
    LOG_LEVELS["error"]: logging.ERROR,
    LOG_LEVELS["off"]: logging.CRITICAL + 1,
}


@Once
def logger() -> logging.Logger:
    """The logger "geocomm". Its level is GEOCOMM_LOG's, unless the application has set one.

    Where the application has no handler that would see a message, it goes to stderr.
    """
    found = logging.getLogger("geocomm")
    if found.level == logging.NOTSET:
        found.setLevel(_level_of_environment())
    found.addHandler(_handler)
    return found


def announce(message: str) -> None:
    """Say, at the level info, what everybody should see: the level warning, which is the default, shows it too."""
    log = logger()
    if log.isEnabledFor(logging.WARNING):
        log.handle(log.makeRecord(log.name, logging.INFO, __file__, 0, message, (), None))


def tell(command: str, message: str) -> None:
    """Say a line on stderr to whoever started `geocomm COMMAND`, whatever GEOCOMM_LOG is."""
    print(f"geocomm {command}: {message}", file=sys.stderr, flush=True)


def log(message: str) -> None:
    """Log a line for those who look after the job, at the level warning."""
    logger().warning(message)


def add_field(name: str, value: Callable[[], Any]) -> None:
    """From now on lines of JSON have what this says at the time, where it is not None."""
    _handler.fields[name] = value


def fields_of_process() -> str:
    """Site and rank, which all lines of JSON of this process have, as text of JSON with a comma behind each."""
    return "".join(f"{json.dumps(name)}:{json.dumps(value)}," for name, value in _of_process().items())


def write_through(log: Callable[[str], None]) -> None:
    """From now on what goes to stderr goes through the native core's log, which makes nobody wait for stderr."""
    _handler.log = log


def _of_process() -> dict[str, Any]:
    fields = {"site": site_name(), "rank": own_rank()}
    return {name: value for name, value in fields.items() if value is not None}


def _is_json() -> bool:
    try:
        return log_is_json()
    except ValueError:  # as below
        return False


def _level_of_environment() -> int:
    try:
        return _PYTHON_LEVELS[log_level()]
    except ValueError:  # native() refuses it, with a better place to say so
        return logging.WARNING


class _StderrHandler(logging.Handler):
    """Writes what nobody else takes, as lines like those of the native core."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Callable[[str], None] | None = None
        self.fields: dict[str, Callable[[], Any]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not self._is_taken(record):
                self._write(record)
        except Exception:  # as in all handlers of logging
            self.handleError(record)

    def _is_taken(self, record: logging.LogRecord) -> bool:
        """Whether the application has a handler of its own: at this logger or above."""
        at: logging.Logger | None = logging.getLogger(record.name)
        while at is not None:
            if any(handler is not self for handler in at.handlers):
                return True
            at = at.parent if at.propagate else None
        return False

    def _write(self, record: logging.LogRecord) -> None:
        # In UTC, since sites have different clocks on their walls.
        stamp, level = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)), record.levelname.lower()
        message = self.format(record)
        line = self._json(stamp, level, message) if _is_json() else f"{stamp} geocomm {level}: {message}"
        if self.log is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self.log(line)

    def _json(self, stamp: str, level: str, message: str) -> str:
        also = {name: said for name, value in self.fields.items() if (said := value()) is not None}
        return json.dumps(
            {"time": stamp, "level": level, "pid": os.getpid()} | _of_process() | also | {"message": message}
        )


_handler = _StderrHandler()


def printable(text: str, keep: str = "") -> str:
    """The text without what a terminal would obey. keep: control characters that stay."""
    return "".join(one if one.isprintable() or one in keep else "?" for one in text)


_MOST_KINDS = 1000


class CalmLog:
    """Logs at most one line of each kind in `interval_s` seconds, with the number of those left out before it."""

    def __init__(self, log: Callable[[str], None], interval_s: float, beginning: int = 0) -> None:
        """beginning: lines whose first characters, this many, are alike are of one kind; 0: all are."""
        self._log, self._interval_s, self._beginning = log, interval_s, beginning
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, message: str) -> None:
        now, kind = time.monotonic(), message[: self._beginning]
        if now - self._last.get(kind, float("-inf")) < self._interval_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        if len(self._last) >= _MOST_KINDS:
            self._last.clear()
        left_out = self._left_out.pop(kind, 0)
        self._last[kind] = now
        self._log(message + (f" (and {left_out} more such events)" if left_out else ""))
