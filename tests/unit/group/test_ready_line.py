"""The line of a new group."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.core.options import Options
from geocomm.group.backend.group_creation import ready_line
from geocomm.group.membership.rank_record import RankInfo
from geocomm.security.key_exchange import key_exchange

SITES = ("frankfurt", "frankfurt", "virginia")
INFOS = [RankInfo(rank, rank, site=site) for rank, site in enumerate(SITES)]
WHERE = "group ready: 2 sites (frankfurt 2 ranks, virginia 1 rank)"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "plaintext, codec none, streams as the link needs"),
        ({"codec": "int8", "streams": 8}, "plaintext, codec int8, 8 streams a peer"),
        (
            {"transport": "rdma", "security": "insecure"},
            "plaintext, codec none, streams as the link needs, transport rdma",
        ),
    ],
)
def test_line_says_who_is_there_and_how_they_send(options: dict[str, object], text: str) -> None:
    assert ready_line(INFOS, Options(**options)) == f"{WHERE}, {text}"  # type: ignore[arg-type]


def test_keys_are_tls_unless_plaintext_is_asked_for(tmp_path: Path) -> None:
    assert f"TLS 1.3 ({key_exchange()}), " in ready_line(INFOS, Options(keys=str(tmp_path)))
    assert "plaintext" in ready_line(INFOS, Options(keys=str(tmp_path), security="insecure"))
