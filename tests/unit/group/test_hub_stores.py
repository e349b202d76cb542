"""The stores of a hub: those that somebody uses stay, whatever is asked for."""

from __future__ import annotations

import asyncio

from geocomm.group.rendezvous.run_at_hub import MAX_STORES, _Stores


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
