"""Where Python's own messages go: to stderr once, unless the application takes or filters them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from support.harness import Ranks

MESSAGE = "no more statistics"
WARN = f"""
from geocomm.core.message_log import logger
logger().warning({MESSAGE!r})
logger().info("a detail")
"""
ANNOUNCE = """
from geocomm.core.message_log import announce
announce("all are here")
"""
NATIVE = """
from geocomm.core.native import native
native()
"""


def told(program: str, level: str | None = None, **variables: str) -> list[str]:
    """What `program` writes to stderr, by line, without the times."""
    return [without_time(line) for line in written(program, level, **variables)]


def written(program: str, level: str | None = None, **variables: str) -> list[str]:
    """What `program` writes to stderr, by line, in a process that has not used geocomm."""
    with Ranks([None], environment=variables | ({} if level is None else {"GEOCOMM_LOG": level})) as alone:
        alone.run(_execute, program)
        return alone.output(0).splitlines()


def _execute(program: str) -> None:
    exec(program, {})


def without_time(line: str) -> str:
    """The rest of a line that begins with the time, of now, in UTC."""
    stamp, _, rest = line.partition(" ")
    age = datetime.now(UTC) - datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S%z")
    assert timedelta(0) <= age < timedelta(hours=1)
    return rest


def test_warning_is_one_line_on_stderr() -> None:
    assert told(WARN) == [f"geocomm warning: {MESSAGE}"]


@pytest.mark.parametrize("before", ["", NATIVE])
@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("off", []),
        ("error", []),
        (None, ["geocomm warning: " + MESSAGE, "geocomm info: all are here"]),
        ("info", ["geocomm warning: " + MESSAGE, "geocomm info: a detail", "geocomm info: all are here"]),
    ],
)
def test_level_of_the_environment_applies(before: str, level: str | None, lines: list[str]) -> None:
    """What is announced is seen at the default level, though it is no warning."""
    assert told(before + WARN + ANNOUNCE, level) == lines


def test_handler_of_the_application_takes_messages_instead_of_stderr() -> None:
    own = 'import logging\nlogging.basicConfig(format="app %(name)s: %(message)s")\n'
    assert written(own + WARN) == [f"app geocomm: {MESSAGE}"]


def test_handler_at_the_logger_itself_takes_messages_too() -> None:
    own = 'import logging\nlogging.getLogger("geocomm").addHandler(logging.NullHandler())\n'
    assert told(own + WARN) == []


@pytest.mark.parametrize("later", ["", WARN])
def test_level_that_the_application_sets_stays(later: str) -> None:
    own = 'import logging\nlogging.getLogger("geocomm").setLevel("ERROR")\n'
    before = told(later)
    assert told(later + own + WARN, "warning") == before


def test_level_that_cannot_be_is_left_to_the_loader_of_the_native_module() -> None:
    assert told(WARN, "loud") == [f"geocomm warning: {MESSAGE}"]


@pytest.mark.parametrize("before", ["", NATIVE])
def test_lines_of_json_have_what_the_process_is_and_what_is_told_at_the_time(before: str) -> None:
    add = """
from geocomm.core.message_log import add_field
told = {"step": None}
add_field("step", lambda: told["step"])
"""
    text = 'ä "\n" all are here'
    program = before + WARN + add + "told['step'] = 7\n" + ANNOUNCE.replace('"all are here"', repr(text))
    lines = written(program, GEOCOMM_LOG_FORMAT="json", GEOCOMM_SITE="paris", RANK="3")
    first, second = (json.loads(line) for line in lines)
    pid = first.pop("pid")
    without_time(first.pop("time") + " ")
    assert first == {"level": "warning", "site": "paris", "rank": 3, "message": MESSAGE}
    assert second.pop("pid") == pid
    without_time(second.pop("time") + " ")
    assert second == {"level": "info", "site": "paris", "rank": 3, "step": 7, "message": text}


def test_format_that_cannot_be_is_left_to_the_loader_of_the_native_module() -> None:
    assert told(WARN, GEOCOMM_LOG_FORMAT="xml") == [f"geocomm warning: {MESSAGE}"]
    with Ranks([None], environment={"GEOCOMM_LOG_FORMAT": "xml"}) as alone:
        (outcome,) = alone.outcomes(_execute, NATIVE)
    assert "GEOCOMM_LOG_FORMAT is 'xml'; it must be one of text, json" in outcome.require("ValueError").message
