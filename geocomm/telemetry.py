"""Counters of this process."""

from __future__ import annotations

from typing import Any

_TOTALS = (
    "operations",
    "raw_bytes_sent",
    "wire_bytes_sent",
    "raw_bytes_received",
    "wire_bytes_received",
    "exposed_seconds",
)


def stats() -> dict[str, Any]:
    """Totals of this process since it started, and what its groups and peers have now.

    operations: collectives that crossed sites; raw_bytes_*: tensor bytes that they stood for; wire_bytes_*: bytes of
    the messages that carried them (TCP/IP headers left out); exposed_seconds: time that callers spent in wait().
    groups: one such dict per living process group that spans sites, with its policy (epoch, links, codecs by size; see
    `geocomm.refresh_links`); peers: one dict per peer process (peer, bytes_sent, bytes_received, payload_sent,
    payload_received, retransmitted_segments (TCP's), resumes (connections made again after a loss), resent_segments
    (geocomm's, because of that), acks, rtt_us, streams, congestion_control).
    """
    from geocomm.backend import process

    groups = process.group_stats()
    totals: dict[str, Any] = {name: process.past.get(name, 0) + sum(g[name] for g in groups) for name in _TOTALS}
    totals["exposed_seconds"] = float(totals["exposed_seconds"])
    return totals | {"groups": groups, "peers": process.channel_stats()}


def last_error() -> dict[str, Any] | None:
    """The last failed operation: code, message, peer, op, seq, errno, time (Unix seconds); None if there was none.

    The record of an error whose attributes were lost on its way through autograd's backward.
    """
    from geocomm.native import native

    return native().last_error()
