"""How the hub's address is written, and what a greeting has to be."""

from __future__ import annotations

import random

import pytest

from geocomm.core.addresses import HubAddress, HubAddressError
from geocomm.group.rendezvous.store_session import Greeting, ProtocolError


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:99999", "0.0.0.0:5", "[::]:5", "[::1:5"])
def test_bad_hub_address_is_refused(text: str) -> None:
    with pytest.raises(HubAddressError):
        HubAddress.parse(text)


@pytest.mark.parametrize("text", ["h.example:29400", "[::1]:29400", "geocomm://10.0.0.1:29400?listen=0.0.0.0:1"])
def test_hub_address_is_read(text: str) -> None:
    assert HubAddress.parse(text).port == 29400
    assert HubAddress.parse(str(HubAddress.parse(text))) == HubAddress.parse(text)


def test_random_greetings_are_refused() -> None:
    for seed in range(2000):
        content = random.Random(seed).randbytes(Greeting.LAYOUT.size)
        if seed % 2:
            content = b"GCHB\x01" + content[5:]
        with pytest.raises(ProtocolError):
            Greeting.unpack(content)
