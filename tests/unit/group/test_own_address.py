"""The address of what listens here, as others ask for it."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest

from geocomm.group.membership.own_address import url_for_others


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("train.example", "train.example:80")]
)
def test_url_has_the_host_that_is_one(host: str, shown: str) -> None:
    assert url_for_others(host, 80) == f"http://{shown}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_url_of_every_address_has_one_that_can_be_dialled(host: str) -> None:
    shown = urlsplit(url_for_others(host, 80)).hostname
    assert shown is not None
    assert not ip_address(shown).is_unspecified
