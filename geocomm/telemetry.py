"""Counters of this process."""

from __future__ import annotations

from typing import Any

_TOTALS = (
    "operations",
    "raw_bytes_sent",
    "wire_bytes_sent",
    "raw_bytes_received",
    "wire_bytes_received",
    "relayed_bytes",
    "exposed_seconds",
)


def stats() -> dict[str, Any]:
    """Totals of this process since it started, and what its groups and peers have now. Names and units are stable.

    operations: collectives that crossed sites; raw_bytes_sent, raw_bytes_received: tensor bytes that they stood for;
    wire_bytes_sent, wire_bytes_received: bytes of the messages that carried them (TCP/IP headers left out), what is
    passed on between other sites included; relayed_bytes: that part of those sent; ratio: raw by wire bytes, both ways
    together (None before the first); exposed_seconds: time that callers spent in wait().

    groups: one such dict, without ratio, per living process group that spans sites, with its policy (epoch, links,
    codecs by size, relays: lists of from, over, to; see `geocomm.refresh_links`).

    peers: one dict per peer process, since this process first met it:
    - peer: description; rank, site: its global rank and site, None where no living group has it
    - bytes_sent, bytes_received; payload_sent, payload_received: of these, what collectives sent, as encoded
    - retransmitted_segments: TCP's, which loss on the way causes
    - resumes: connections made again after a loss; resent_segments: geocomm's, because of that; acks: received
    - early_bytes_held: received from the peer and kept now, since no operation here has asked for it yet;
      early_bytes_sent: sent to the peer before it asked, as far as is known now (at most 64 MiB at a time)
    - stalled_by_receiver_us: time in which the peer's receive window held back data; stalled_by_send_buffer_us: this
      side's send buffers; streams counted together, zeros where the kernel does not tell
    - rtt_us: round trip of the last heartbeat; streams: data streams that are connected; congestion_control
    - cipher: of TLS (empty: plaintext); transport: of the data, "tcp" or "rdma (rc_mlx5)", which cipher does not cover

    memory: of messages on the host that were not acknowledged or not reduced yet ({} before there is a group that
    spans sites): asked_bytes: what they need; held_bytes: what the pool has for them, idle memory included;
    most_asked_bytes, most_held_bytes: the most there ever was

    gradients: per living hook of `geocomm.gradients` its stats() as of the last step that it has settled, and kind:
    "ddp", "dgc", "fsdp" or "driver".
    """
    from geocomm.backend import process
    from geocomm.live_handles import handle_stats

    groups = process.group_stats()
    totals: dict[str, Any] = {name: process.past.get(name, 0) + sum(g[name] for g in groups) for name in _TOTALS}
    totals["exposed_seconds"] = float(totals["exposed_seconds"])
    wire_bytes = totals["wire_bytes_sent"] + totals["wire_bytes_received"]
    raw_bytes = totals["raw_bytes_sent"] + totals["raw_bytes_received"]
    totals["ratio"] = raw_bytes / wire_bytes if wire_bytes else None
    return totals | {
        "groups": groups,
        "peers": process.channel_stats(),
        "memory": process.buffer_usage(),
        "gradients": handle_stats(),
    }


def last_error() -> dict[str, Any] | None:
    """The last failed operation: code, message, peer, op, seq, errno, time (Unix seconds); None if there was none.

    The record of an error whose attributes were lost on its way through autograd's backward.
    """
    from geocomm.native import native

    return native().last_error()
