"""A function that is called by many threads at once."""

from __future__ import annotations

import threading
import time

import pytest

from geocomm.core.once import Once


def test_threads_that_call_at_once_wait_for_the_one_result() -> None:
    made: list[object] = []
    begin = threading.Barrier(8)

    @Once
    def thing() -> object:
        time.sleep(0.05)  # long enough for the others to come in
        made.append(object())
        return made[-1]

    got: list[object] = []

    def call() -> None:
        begin.wait()
        got.append(thing())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert got == made * 8


def test_each_argument_has_a_result_of_its_own_until_it_is_forgotten() -> None:
    calls: list[int] = []

    @Once
    def double(value: int) -> int:
        calls.append(value)
        return 2 * value

    assert [double(1), double(2), double(1)] == [2, 4, 2]
    assert calls == [1, 2]
    double.forget()
    assert double(1) == 2
    assert calls == [1, 2, 1]


def test_after_an_error_the_next_call_tries_again() -> None:
    answers = iter([ValueError("not yet"), None])

    @Once
    def load() -> str:
        if error := next(answers):
            raise error
        return "there"

    with pytest.raises(ValueError, match="not yet"):
        load()
    assert load() == "there"
    assert load() == "there"


def test_a_function_may_come_back_to_itself() -> None:
    @Once
    def depth(level: int) -> int:
        return 0 if level == 0 else depth(level - 1) + 1

    assert depth(3) == 3
