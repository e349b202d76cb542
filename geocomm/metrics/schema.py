"""Every number and word of `geocomm.stats()`: its name, kind and meaning, each said once.

Names say the unit: `_us` microseconds, `_seconds`, `_bytes`, a `_rate` bytes per second; the others count. `stats()`
and its help, the Prometheus endpoint, the steps in metrics.jsonl and docs/reference/metrics.md are made from these
tables. A test compares them with what the native module reports. Names are stable: dashboards are made of them.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast


class MetricKind(enum.Enum):
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
class MetricScope:
    """What metrics are about: the process, a link, a gradient hook, a run with local steps."""

    prefix: str
    """How the Prometheus names of its metrics begin."""
    labels: tuple[str, ...]
    """The Prometheus labels of each of them."""


PROCESS = MetricScope("geocomm", ("site", "rank"))
LINK = MetricScope("geocomm_link", (*PROCESS.labels, "peer", "peer_site"))
HOOK = MetricScope("geocomm_gradient", (*PROCESS.labels, "hook"))
LOCAL = MetricScope("geocomm_local", (*PROCESS.labels, "run"))


@dataclass(frozen=True)
class Metric:
    """One number or word."""

    name: str
    """Its key in stats()."""
    kind: MetricKind
    help: str
    """What it is, as a phrase that begins in lower case."""
    scope: MetricScope
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
        if self.kind is MetricKind.TEXT:
            return info_family(self.scope)
        return self.family + ("_total" if self.kind is MetricKind.COUNTER else "")

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


def info_family(scope: MetricScope) -> str:
    """The Prometheus family that is always 1 and whose labels are the texts of a scope."""
    return f"{scope.prefix}_info"


def _table(scope: MetricScope, text: str) -> tuple[Metric, ...]:
    """The metrics of a scope, from a line `kind name: help` each; an indented line goes on with the help.

    A name in parentheses is not at the Prometheus endpoint.
    """
    found: list[Metric] = []
    for line in re.sub(r"\n +", " ", inspect.cleandoc(text)).splitlines():
        kind, name, meaning = re.split(r":? ", line, maxsplit=2)
        found.append(Metric(name.strip("()"), MetricKind(kind), meaning, scope, in_prometheus=not name.startswith("(")))
    return tuple(found)


COUNTERS = _table(
    PROCESS,
    """
    counter operations: collectives that crossed sites
    counter raw_bytes_sent: tensor bytes sent to other sites, before compression
    counter wire_bytes_sent: bytes sent to other sites for tensors, relayed ones included, without TCP/IP headers
    counter raw_bytes_received: tensor bytes received from other sites, after decompression
    counter wire_bytes_received: bytes received from other sites for tensors, without TCP/IP headers
    counter relayed_bytes: bytes passed on between other sites, among the bytes sent
    counter encode_seconds: host threads' time for encoding reductions
    counter decode_seconds: host threads' time for decoding and summing reductions
    counter exposed_seconds: time that threads waited for collectives, in wait() or for a Future of theirs
    """,
)
"""What each process group counts; of the process: since it started, ended groups included."""

TOTALS = COUNTERS + _table(
    PROCESS,
    """
    gauge (ratio): raw bytes by wire bytes, both ways together; None before the first
    rows (groups): a row per living process group that spans sites: its counters, and policy
    rows (peers): a row per peer process: its link
    rows (memory): memory of messages on the host that are not acknowledged or reduced; {} before the first group over
        sites
    rows (data): the data set that the process reads; {} where it reads none from a catalog
    rows (gradients): a row per living gradient hook: its stats() as of the last step that it has settled
    rows (local_steps): a row per living handle of local_steps(): what it had after the last optimizer step
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
    text (rank): global rank of the peer, or its rank at its site in an elastic run; None: not known
    text (site): site of the peer
    counter bytes_sent: bytes sent to the peer, without TCP/IP headers
    counter bytes_received: bytes received from the peer
    counter payload_sent: bytes of collectives sent to the peer, as encoded
    counter payload_received: bytes of collectives received from the peer, as encoded
    counter retransmitted_segments: segments that TCP sent again
    counter retransmitted_bytes: bytes that TCP sent again; 0 also if unknown
    counter tcp_bytes_sent: bytes that TCP sent, repeats included, without headers; 0 also if unknown
    counter resumes: connections made again after a loss
    counter outages: times that connections were lost until all were back
    counter outage_us: time from the last contact to the last new connection, over all outages
    counter resent_segments: pieces that geocomm sent again because of lost connections
    counter acks: acknowledgements received
    gauge (early_bytes_held): bytes kept that came before an operation asked for them
    gauge (early_bytes_sent): bytes sent to the peer before it asked, at most 64 MiB
    counter busy_us: time in which TCP had unacknowledged data; 0 also if unknown
    counter stalled_by_receiver_us: time in which the peer's receive window held back data; 0 also if unknown
    counter stalled_by_send_buffer_us: time in which the send buffers here held back data
    gauge rtt_us: round trip of the last heartbeat
    gauge min_rtt_us: the least round trip of a heartbeat; 0: none came back
    gauge delivery_rate: rate at which the peer got data recently, over busy streams
    gauge pacing_rate: rate at which TCP paces; 0 also if it does not
    gauge window_bytes: congestion windows of the connections
    gauge unsent_bytes: bytes in the send buffers
    gauge clock_offset_us: the peer's monotonic clock less this machine's, from heartbeats; None: not known
    gauge clock_error_us: how wrong the clock offset may be; None: not known
    gauge streams: connected data streams
    text congestion_control: congestion control of the connections
    text (cipher): cipher of TLS; empty: plaintext
    text (transport): carrier of the data, such as "tcp" or "rdma (rc_mlx5)", which cipher does not cover
    """,
)
"""What stats()["peers"] holds of a peer process, since this process first met it."""

MEMORY = _table(
    PROCESS,
    """
    gauge (asked_bytes): memory that the messages need
    gauge (held_bytes): memory that the pool has for messages, idle or not
    gauge (most_asked_bytes): the most memory that messages ever needed
    gauge (most_held_bytes): the most memory that the pool ever had
    """,
)
"""What stats()["memory"] holds."""

DATA = _table(
    PROCESS,
    """
    counter (waited_seconds): time that the reader waited for shards
    counter (fetched_bytes): bytes of shards that were fetched
    counter (fetched_dollars): price of the shards that were fetched, by their store
    """,
)
"""What stats()["data"] holds."""

GRADIENTS = _table(
    HOOK,
    """
    text (kind): kind of the hook: ddp, fsdp or driver
    counter steps: steps begun
    text codec: codec of the next step
    counter skipped_steps: steps that did not count: a gradient was not finite, or an operation failed
    counter fallbacks: changes to a finer codec; in stats() a list with step, codec and reason
    rows (buckets): a row per bucket that was compressed in the last step
    """,
)
"""What stats()["gradients"] holds of a hook."""

BUCKETS = _table(
    HOOK,
    """
    text (index): number of the bucket
    text (parameters): names of the parameters in it
    gauge (elements): elements of the bucket's residual on this rank
    gauge (ef_norm): L2 norm of the bucket's residual
    gauge nmse: share of the squares (0 to 1) that the codec lost in the last step; Prometheus has the worst bucket's
    gauge (wire_bytes): bytes that this rank sent of the bucket
    """,
)
"""What a row of buckets of a hook holds; the last three only where the step counted."""

LOCAL_STEPS = _table(
    LOCAL,
    """
    counter steps: optimizer steps
    counter tokens: tokens of the site, as count_tokens says
    gauge every: steps between two rounds of a fragment
    counter rounds: rounds whose result was merged
    counter rounds_not_finite: rounds that left this site's weights out: NaN or Inf
    counter rounds_void: rounds in which no site counted
    counter wire_bytes: compressed bytes of this rank's deltas, counted once
    counter waited_seconds: time for which steps waited for results
    counter held_back: steps for which a round waited for its fragment's last result
    gauge in_flight: rounds whose result is not merged yet
    gauge oldest_in_flight: steps since the oldest round in flight began
    gauge delta_norm: L2 norm of this rank's last finite delta; None before the first
    gauge mean_norm: L2 norm of the sites' last average here; None before the first
    gauge agreement: |mean delta|^2 / mean |delta|^2 of the last round: 1: equal deltas; 1 / sites: noise; None where
        the average is no mean
    gauge outer_step: how far the anchor moved last, in multiples of mean_norm: lr without momentum, more with it; None
        before the first
    gauge residual_norm: L2 norm of what the codec has lost of the last delta; None without error feedback
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
    """The keys of metrics in stats(), in order."""
    return [metric.name for metric in metrics]


def described() -> str:
    """Every table in words, for the help of stats()."""
    return "\n\n".join("\n".join(_lines(place, metrics)) for place, metrics in TABLES.items())


def _lines(place: str, metrics: Sequence[Metric]) -> Iterator[str]:
    yield f"    {place}:"
    for metric in metrics:
        if metrics is not GROUPS or metric not in COUNTERS:
            yield f"    - {metric.name}: {metric.help}"


@dataclass(frozen=True)
class MetricRow:
    """One metric with its values by label, of a process or of all sites (`observe.telemetry.run_numbers`)."""

    name: str
    """Without `_total`."""
    help: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float | None]]
    """Of each its labels' values; None: not known."""
    counter: bool = False


def rows_of_stats(stats: Mapping[str, Any], own: tuple[str, str]) -> Iterator[MetricRow]:
    """own: site and rank. Names are a contract: dashboards are made of them."""
    yield from _rows(COUNTERS, {own: [stats]})
    yield from _rows(PEERS, {(*own, *peer): rows for peer, rows in _by_peer(stats["peers"]).items()})
    hooks = {(*own, f"{row['kind']}{index}"): [row] for index, row in enumerate(stats["gradients"])}
    yield from _rows(GRADIENTS, hooks)
    # Of a step that did not count, buckets have no NMSE.
    buckets = {labels: [row for row in hook["buckets"] if "nmse" in row] for labels, (hook,) in hooks.items()}
    yield from _rows(BUCKETS, buckets)
    runs = {(*own, str(index)): [row] for index, row in enumerate(stats["local_steps"])}
    yield from _rows(LOCAL_STEPS, runs)


_Told = Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]]
"""By the values of a scope's labels, the rows of stats() that they stand for."""


def _rows(metrics: Sequence[Metric], told: _Told) -> Iterator[MetricRow]:
    """A row for each number that the schema shows there, and one for all of its texts."""
    shown = [metric for metric in metrics if metric.in_prometheus]
    for metric in shown:
        if metric.kind is not MetricKind.TEXT:
            values = [(labels, _value(metric, [row[metric.name] for row in rows])) for labels, rows in told.items()]
            counter = metric.kind is MetricKind.COUNTER
            yield MetricRow(metric.family, _sentence(metric.help), metric.labels, values, counter)
    texts = [metric for metric in shown if metric.kind is MetricKind.TEXT]
    if texts:
        scope = texts[0].scope
        meanings = "; ".join(f"{metric.name}: {metric.help}" for metric in texts)
        yield MetricRow(
            info_family(scope),
            f"Always 1; its labels tell {meanings}",
            (*scope.labels, *names(texts)),
            [((*labels, *(rows[-1][metric.name] for metric in texts)), 1) for labels, rows in told.items()],
        )


def _value(metric: Metric, values: Sequence[Any]) -> float | None:
    """One number for all rows of the same labels: two links to a peer that restarted, the buckets of a hook."""
    if metric in BUCKETS:
        value = max(values, default=None)
    elif metric.kind is MetricKind.GAUGE and metric.is_time:
        value = values[-1]
    else:
        value = None if values == [None] else sum(map(_number, values))
    return None if value is None else value * metric.factor


def _number(value: Any) -> float:
    """The value, or of a list its length."""
    return len(cast("list[Any]", value)) if isinstance(value, list) else value


def _sentence(phrase: str) -> str:
    return phrase[0].upper() + phrase[1:]


def _by_peer(peers: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each peer, by its labels: two while a restarted peer takes the place of the old one."""
    links: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in peers:
        name = row["peer"] if row["rank"] is None else str(row["rank"])
        links.setdefault((name, row["site"] or ""), []).append(row)
    return links
