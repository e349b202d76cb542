"""What a site says of its ranks, which is whatever it likes, ends no rank of another."""

from __future__ import annotations

import time

import pytest
import torch

from geocomm.core.native import native
from geocomm.elastic.journal.messages import Offer, Open, Owner, Peer
from geocomm.sync.local_steps.elastic.frame_mail import Expected, FrameMail

HONEST = Owner(id="0" * 32, host="127.0.0.1", port=9)
OFFER = Offer(
    fragment=0,
    version=0,
    attempt=0,
    frame="0" * 64,
    coded_bytes=4,
    exact_bytes=0,
    weight=1,
    step=1,
    squared_norm=1,
    lr=0,
    every=0,
)


def test_ranks_that_meet_are_connected_before_any_frame_and_who_has_gone_is_forgotten() -> None:
    endpoints = [native().Endpoint(bind_address="127.0.0.1", insecure=True) for _ in "ab"]
    mails = [native().Mail(endpoint=endpoint, token=bytes(16), max_bytes=100) for endpoint in endpoints]
    peers = [
        Peer(site=site, owners=(Owner(id=mail.id.hex(), host="127.0.0.1", port=mail.port),), fetch="")
        for site, mail in zip("ab", mails, strict=True)
    ]
    frames = [FrameMail(mail, site, 1, lambda *_: None) for site, mail in zip("ab", mails, strict=True)]
    for one in frames:
        one.meet(peers, [0])
    until = time.monotonic() + 30
    while not all(row["state"] == "connected" for mail in mails for row in mail.stats()):
        assert time.monotonic() < until
        time.sleep(0.01)
    frames[0].meet([Peer(site="b", owners=(HONEST,), fetch="")], [0])
    assert [row["id"].hex() for row in mails[0].stats()] == [HONEST.id]
    for mail in mails:
        mail.close(0.0)


def expects(frames: FrameMail, site: str) -> bool:
    """Whether the first frame of a site may come."""
    return Expected(0, 0, 0, site) in frames._expected


@pytest.mark.parametrize("lie", ["no port", "the id of this rank", "the id of another site's rank", "no host"])
def test_rank_that_no_mail_can_reach_is_passed_over(lie: str) -> None:
    endpoint = native().Endpoint(bind_address="127.0.0.1", insecure=True)
    mail = native().Mail(endpoint=endpoint, token=bytes(16), max_bytes=100)
    arrived: list[Expected] = []
    frames = FrameMail(mail, "a", 1, lambda expected, content, why: arrived.append(expected))
    owner = {
        "no port": Owner(id="0" * 31 + "1", host="127.0.0.1", port=0),
        "the id of this rank": Owner(id=mail.id.hex(), host="127.0.0.1", port=9),
        "the id of another site's rank": Owner(id=HONEST.id, host="127.0.0.2", port=9),
        "no host": Owner(id="0" * 31 + "2", host="..", port=9),
    }[lie]
    own = Peer(site="a", owners=(), fetch="")
    honest, liar = Peer(site="b", owners=(HONEST,), fetch=""), Peer(site="c", owners=(owner,), fetch="")
    frames.expect(Open(fragment=0, version=0, attempt=0, peers=(own, honest, liar)))
    frames.send(OFFER, [honest, liar], torch.zeros(4, dtype=torch.uint8))
    assert expects(frames, "b")
    assert expects(frames, "c") == (lie == "no host")  # a name that is not found yet may be found later
    assert not arrived
    mail.close(0.0)


def test_no_mail_is_expected_of_a_round_that_the_site_is_not_in() -> None:
    endpoint = native().Endpoint(bind_address="127.0.0.1", insecure=True)
    mail = native().Mail(endpoint=endpoint, token=bytes(16), max_bytes=100)
    arrived: list[Expected] = []
    frames = FrameMail(mail, "a", 1, lambda expected, content, why: arrived.append(expected))
    own, other = Peer(site="a", owners=(), fetch=""), Peer(site="b", owners=(HONEST,), fetch="")
    frames.expect(Open(fragment=0, version=0, attempt=0, peers=(other,)))
    assert not expects(frames, "b")  # it came after the others sent their frames to each other
    frames.expect(Open(fragment=0, version=0, attempt=0, peers=(own, other)))
    assert expects(frames, "b")
    mail.close(0.0)
