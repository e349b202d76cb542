"""Buffers that are borrowed and given back."""

from __future__ import annotations

import threading

import torch

from geocomm.local_sgd.host_memory import Scratch


def test_memory_that_was_given_back_is_borrowed_again() -> None:
    """Also for fewer elements; for more there is a new buffer, and the smaller one is gone."""
    scratch = Scratch()
    with scratch.borrowed(2, 100) as first:
        places = {buffer.data_ptr() for buffer in first}
        assert len(places) == 2
        assert all(buffer.shape == (100,) and buffer.dtype == torch.float32 for buffer in first)
    with scratch.borrowed(2, 60) as smaller:
        assert {buffer.data_ptr() for buffer in smaller} == places
        assert all(buffer.shape == (60,) for buffer in smaller)
    with scratch.borrowed(1, 1000) as (larger,):
        assert larger.shape == (1000,)


def test_what_is_borrowed_is_nobody_elses_even_after_an_error() -> None:
    """A block inside of a block, and threads, have memory of their own; a block that raises gives its memory back."""
    scratch = Scratch()
    try:
        with scratch.borrowed(1, 10) as (lost,):
            place = lost.data_ptr()
            raise ValueError
    except ValueError:
        pass
    with scratch.borrowed(1, 10) as (outer,), scratch.borrowed(1, 10) as (inner,):
        assert outer.data_ptr() == place != inner.data_ptr()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            with scratch.borrowed(3, 50) as buffers:
                for buffer in buffers:
                    buffer.fill_(number)
                wrong.extend(number for buffer in buffers if not bool((buffer == number).all()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
