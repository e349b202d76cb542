"""The hub's process: stores that somebody uses stay, whatever is asked for, and signals reach whom they are for."""

from __future__ import annotations

import asyncio
import os
import signal

from geocomm.group.rendezvous.run_at_hub import MAX_STORES, _passed_on, _Stores


def test_store_that_is_in_use_outlives_any_number_of_rounds() -> None:
    async def run() -> None:
        stores = _Stores()
        stores.in_use = lambda name: name == "round-1"
        living = await stores.port("round-1")
        for number in range(2, 2 + 2 * MAX_STORES):
            assert await stores.port(f"round-{number}") is not None
        assert await stores.port("round-1") == living
        assert await stores.port("other") is None

    asyncio.run(run())


def test_no_store_is_made_where_all_are_in_use() -> None:
    async def run() -> None:
        stores = _Stores()
        stores.in_use = lambda name: True
        made = [await stores.port(f"round-{number}") for number in range(MAX_STORES + 3)]
        assert None not in made[:MAX_STORES]
        assert made[MAX_STORES:] == [None] * 3

    asyncio.run(run())


def test_signal_goes_to_torchrun_also_where_it_came_before_that_and_later_ends_the_hubs_last_wait() -> None:
    to_torchrun, to_hub = list[int](), list[int]()

    async def heard(by: list[int]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while not by:
            await asyncio.sleep(0)

    async def run() -> None:
        with _passed_on() as pass_on_to:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
            pass_on_to(to_torchrun.append)
            assert to_torchrun == [signal.SIGTERM]
            to_torchrun.clear()
            await heard(to_torchrun)
            pass_on_to(to_hub.append)
            await heard(to_hub)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert (to_torchrun, to_hub) == ([signal.SIGINT], [signal.SIGINT])
