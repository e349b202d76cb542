"""What it costs to send bytes out of a site."""

from __future__ import annotations

_HEADERS = 1.04
"""Bytes of a packet by those of its content: Ethernet, IP and TCP."""


def egress_dollars(price: float, content: float, sent_again: float = 0.0) -> float:
    """In dollars. price: dollars per GB. content: bytes that TCP sent, or a rate of them. sent_again: bytes that TCP
    sent once more, with their headers, where `content` does not have them."""
    return price / 1e9 * (_HEADERS * content + sent_again)
