"""Every number and word of `geocomm.stats()`: its name, kind and meaning, each said once.

Names say the unit: `_us` microseconds, `_seconds`, `_bytes`, a `_rate` bytes per second; the others count. `stats()` and
its help, the Prometheus endpoint, the steps in metrics.jsonl and docs/reference/metrics.md are made from these tables.
A test compares them with what the native module reports. Names are stable: dashboards are made of them.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Kind(enum.Enum):
    """How the values of a metric follow each other."""

    COUNTER = "counter"
    """A total that never falls."""
    GAUGE = "gauge"
    """The value of now."""
    TEXT = "text"
    """A word, or a number that names something; None where it is not known."""
    ROWS = "rows"
    """A list of dicts, or a dict, with metrics of its own."""


@dataclass(frozen=True)
class Scope:
    """What metrics are about: the process, a link, a gradient hook, a run with local steps."""

    prefix: str
    """How the Prometheus names of its metrics begin."""
    labels: tuple[str, ...]
    """The Prometheus labels of each of them."""


PROCESS = Scope("geocomm", ("site", "rank"))
LINK = Scope("geocomm_link", (*PROCESS.labels, "peer", "peer_site"))
HOOK = Scope("geocomm_gradient", (*PROCESS.labels, "hook"))
LOCAL = Scope("geocomm_local", (*PROCESS.labels, "run"))


@dataclass(frozen=True)
class Metric:
    """One number or word."""

    name: str
    """Its key in stats()."""
    kind: Kind
    help: str
    """What it is, as a phrase that begins in lower case."""
    scope: Scope
    in_prometheus: bool = True
    """Whether the endpoint shows it: a number as a family of its own, a text as a label of the scope's info family."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The Prometheus labels of each of its samples."""
        return self.scope.labels

    @property
    def prometheus(self) -> str | None:
        """The name of its samples at the Prometheus endpoint; None where they are not there."""
        if not self.in_prometheus:
            return None
        if self.kind is Kind.TEXT:
            return info_family(self.scope)
        return self.family + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def family(self) -> str:
        """The name of its Prometheus family, which times in seconds."""
        name = re.sub("_us$", "_seconds", re.sub("_rate$", "_rate_bytes_per_second", self.name))
        return f"{self.scope.prefix}_{name}"

    @property
    def factor(self) -> float:
        """The factor from its unit, which its name says, to that of the Prometheus family."""
        return 1e-6 if self.name.endswith("_us") else 1

    @property
    def is_time(self) -> bool:
        """Whether it is a duration."""
        return self.name.endswith(("_us", "_seconds"))


def info_family(scope: Scope) -> str:
    """The Prometheus family that is always 1 and whose labels are the texts of a scope."""
    return f"{scope.prefix}_info"


def _table(scope: Scope, text: str) -> tuple[Metric, ...]:
    """The metrics of a scope, from a line `kind name: help` each; an indented line goes on with the help.

    A name in parentheses is not at the Prometheus endpoint.
    """
    found: list[Metric] = []
    for line in re.sub(r"\n +", " ", inspect.cleandoc(text)).splitlines():
        kind, name, meaning = re.split(r":? ", line, maxsplit=2)
        found.append(Metric(name.strip("()"), Kind(kind), meaning, scope, in_prometheus=not name.startswith("(")))
    return tuple(found)


COUNTERS = _table(
    PROCESS,
    """
    counter operations: collectives that crossed sites
    counter raw_bytes_sent: tensor bytes sent to other sites, before compression
    counter wire_bytes_sent: bytes sent for these, without TCP/IP headers; with relayed ones
    counter raw_bytes_received: tensor bytes received from other sites, after decompression
    counter wire_bytes_received: bytes received for these, without TCP/IP headers
    counter relayed_bytes: of the bytes sent, those passed on between other sites
    counter encode_seconds: host threads' time for encoding reductions
    counter decode_seconds: host threads' time for decoding and summing them
    counter exposed_seconds: time that threads waited for collectives, in wait() or for a Future of theirs
    """,
)
"""What each process group counts; of the process: since it started, ended groups included."""

TOTALS = COUNTERS + _table(
    PROCESS,
    """
    gauge (ratio): raw by wire bytes, both ways together; None before the first
    rows (groups): per living process group that spans sites: the same counters, and policy
    rows (peers): per peer process: its link
    rows (memory): of messages on the host that are not acknowledged or reduced; {} before the first group over
        sites
    rows (data): of the data set that it reads; {} where it reads none from a catalog
    rows (gradients): per living gradient hook: its stats() as of the last step that it has settled
    rows (local_steps): per living handle of local_steps(): what it had after the last optimizer step
    """,
)
"""What stats() holds of the process."""

GROUPS = COUNTERS + _table(
    PROCESS,
    """
    rows (policy): epoch, links, codecs by size, relays (lists of from, over, to)
    """,
)
"""What stats()["groups"] holds of a process group."""

PEERS = _table(
    LINK,
    """
    text (peer): description of the peer
    text (rank): its global rank; in an elastic run that at its site; None: not known
    text (site): its site
    counter bytes_sent: bytes sent to the peer, without those of TCP and IP
    counter bytes_received: bytes received from the peer
    counter payload_sent: of the bytes sent, those of collectives, as encoded
    counter payload_received: of the bytes received, those of collectives
    counter retransmitted_segments: segments that TCP sent again
    counter retransmitted_bytes: bytes that TCP sent again; 0 also if unknown
    counter tcp_bytes_sent: bytes that TCP sent, repeats included, without headers; 0 also if unknown
    counter resumes: connections made again after a loss
    counter outages: times that connections were lost until all were back
    counter outage_us: from the last contact to the last new connection, over all outages
    counter resent_segments: pieces that geocomm sent again because of lost connections
    counter acks: acknowledgements received
    gauge (early_bytes_held): kept now: received before an operation here asked for it
    gauge (early_bytes_sent): sent to the peer before it asked, at most 64 MiB
    counter busy_us: time in which TCP had unacknowledged data; 0 also if unknown
    counter stalled_by_receiver_us: time in which the peer's receive window held back data; 0 also if unknown
    counter stalled_by_send_buffer_us: time in which the send buffers here held back data
    gauge rtt_us: round trip of the last heartbeat
    gauge min_rtt_us: the least round trip of a heartbeat; 0: none came back
    gauge delivery_rate: what the peer got recently, over streams that had enough to send
    gauge pacing_rate: at which TCP paces; 0 also if it does not
    gauge window_bytes: congestion windows
    gauge unsent_bytes: in the send buffers
    gauge clock_offset_us: the peer's monotonic clock less this machine's, from heartbeats; None: not known
    gauge clock_error_us: how wrong the offset may be; None: not known
    gauge streams: connected data streams
    text congestion_control: of the connections
    text (cipher): of TLS; empty: plaintext
    text (transport): of the data: "tcp", or for example "rdma (rc_mlx5)", which cipher does not cover
    """,
)
"""What stats()["peers"] holds of a peer process, since this process first met it."""

MEMORY = _table(
    PROCESS,
    """
    gauge (asked_bytes): what the messages need
    gauge (held_bytes): what the pool has for them, idle memory included
    gauge (most_asked_bytes): the most that they ever needed
    gauge (most_held_bytes): the most that the pool ever had
    """,
)
"""What stats()["memory"] holds."""

DATA = _table(
    PROCESS,
    """
    counter (waited_seconds): that its reader waited for shards
    counter (fetched_bytes): of shards that it fetched
    counter (fetched_dollars): what these cost, by the price of their store
    """,
)
"""What stats()["data"] holds."""

GRADIENTS = _table(
    HOOK,
    """
    text (kind): ddp, dgc, fsdp or driver
    counter steps: steps begun
    text codec: codec of the next step
    counter skipped_steps: steps that did not count: a gradient was not finite, or an operation failed
    counter fallbacks: changes to a finer codec; in stats() a list with step, codec and reason
    rows (buckets): per bucket that was compressed in that step
    """,
)
"""What stats()["gradients"] holds of a hook."""

BUCKETS = _table(
    HOOK,
    """
    text (index): number of the bucket
    text (parameters): names of the parameters in it
    gauge (elements): elements of its residual on this rank
    gauge (ef_norm): L2 norm of its residual
    gauge nmse: what the codec lost in the last step, of the squares (0 to 1); Prometheus has the worst bucket's
    gauge (wire_bytes): bytes that this rank sent of it
    """,
)
"""What a row of buckets of a hook holds; the last three only where the step counted."""

LOCAL_STEPS = _table(
    LOCAL,
    """
    counter steps: optimizer steps
    counter tokens: tokens of the site that count_tokens told of
    gauge every: steps between two rounds of a fragment
    counter rounds: rounds whose result was merged
    counter rounds_not_finite: rounds that left this site's weights out: NaN or Inf
    counter rounds_void: rounds in which no site counted
    counter wire_bytes: compressed bytes of this rank's deltas, counted once
    counter waited_seconds: time for which steps waited for results
    counter held_back: steps for which a round waited for its fragment's last result
    gauge in_flight: rounds whose result is not merged yet
    gauge oldest_in_flight: steps since the oldest of these began
    gauge delta_norm: L2 norm of this rank's last finite delta
    gauge mean_norm: L2 norm of the sites' last average here
    gauge agreement: |mean delta|^2 / mean |delta|^2 of that round: 1: equal deltas; 1 / sites: noise; None where
        the average is no mean
    gauge outer_step: how far the anchor moved last, in multiples of mean_norm: lr without momentum, more with it
    gauge residual_norm: L2 norm of what the codec has lost of that fragment; None without error feedback
    """,
)
"""What stats()["local_steps"] holds of a run, and `LocalSteps.stats()` among its settings."""

TABLES: dict[str, tuple[Metric, ...]] = {
    "stats()": TOTALS,
    'stats()["groups"]': GROUPS,
    'stats()["peers"]': PEERS,
    'stats()["memory"]': MEMORY,
    'stats()["data"]': DATA,
    'stats()["gradients"]': GRADIENTS,
    'stats()["gradients"][…]["buckets"]': BUCKETS,
    'stats()["local_steps"]': LOCAL_STEPS,
}
"""All metrics, by where stats() has them."""


def names(metrics: Sequence[Metric]) -> list[str]:
    """Their keys in stats(), in order."""
    return [metric.name for metric in metrics]


def described() -> str:
    """Every table in words, for the help of stats()."""
    return "\n\n".join("\n".join(_lines(place, metrics)) for place, metrics in TABLES.items())


def _lines(place: str, metrics: Sequence[Metric]) -> Iterator[str]:
    yield f"    {place}:"
    for metric in metrics:
        if metrics is not GROUPS or metric not in COUNTERS:
            yield f"    - {metric.name}: {metric.help}"
