"""A thread that does calls: in which order, and what becomes of one that fails."""

from __future__ import annotations

import queue
import time
from types import SimpleNamespace

import pytest

from geocomm.sync.local_steps.outer import call_thread
from geocomm.sync.local_steps.outer.call_thread import CallThread

LIMIT_S = 60.0


def test_calls_are_done_in_their_order_and_one_that_fails_ends_none_of_the_others() -> None:
    done, failed = queue.SimpleQueue[str](), list[str]()
    thread = CallThread("test", lambda error: failed.append(str(error)))
    first = OSError("first")

    def fail(error: Exception) -> None:
        done.put(str(error))
        raise error

    thread.post(lambda: fail(first))
    thread.post(lambda: fail(ValueError("second")))
    thread.post_later(0.0, lambda: fail(ValueError("due at the start")))
    assert thread.failure is None
    thread.start()
    thread.post(lambda: done.put("third"))
    assert [done.get(timeout=LIMIT_S) for _ in range(4)] == ["due at the start", "first", "second", "third"]
    assert isinstance(thread.failure, ValueError)
    assert str(thread.failure) == "due at the start"
    assert failed == ["due at the start", "first", "second"]
    thread.stop()


def test_of_later_calls_the_one_that_is_due_first_is_done_first(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, done = CallThread("test"), queue.SimpleQueue[str]()
    asked = list[float]()
    clock = SimpleNamespace(monotonic=lambda: asked[0] if len(asked) == 1 else time.monotonic())
    monkeypatch.setattr(call_thread, "time", clock)

    def ask() -> None:
        asked.append(time.monotonic())  # from now on at one moment, however long it takes
        thread.post_later(0.2, lambda: done.put("late"))
        for name in ("soon", "and then"):
            thread.post_later(0.0, lambda name=name: done.put(name))
        asked.append(time.monotonic())

    thread.post(ask)
    thread.start()
    thread.post(lambda: None)
    assert [done.get(timeout=LIMIT_S) for _ in range(3)] == ["soon", "and then", "late"]
    thread.stop()
