"""Every number and word of `geocomm.stats()`: its name, unit, kind and meaning, each said once.

`stats()` and its help, the Prometheus endpoint, the steps in metrics.jsonl and docs/reference/metrics.md are made from
these tables. A test compares them with what the native module reports. Names and units are stable: dashboards are made
of them.
"""

from __future__ import annotations

import enum
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

_MICROSECONDS = "microseconds"
_SECONDS = "seconds"
_RATE = "bytes per second"


@dataclass(frozen=True)
class Metric:
    """One number or word."""

    name: str
    """Its key in stats()."""
    unit: str
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
        name = self.name
        if self.unit == _MICROSECONDS:
            name = name.removesuffix("_us") + "_seconds"
        if self.unit == _RATE:
            name += "_bytes_per_second"
        return f"{self.scope.prefix}_{name}"

    @property
    def factor(self) -> float:
        """The factor from its unit to that of the Prometheus family."""
        return 1e-6 if self.unit == _MICROSECONDS else 1

    @property
    def is_time(self) -> bool:
        """Whether it is a duration."""
        return self.unit in (_MICROSECONDS, _SECONDS)


def info_family(scope: Scope) -> str:
    """The Prometheus family that is always 1 and whose labels are the texts of a scope."""
    return f"{scope.prefix}_info"


COUNTERS = (
    Metric("operations", "operations", Kind.COUNTER, "collectives that crossed sites", PROCESS),
    Metric("raw_bytes_sent", "bytes", Kind.COUNTER, "tensor bytes sent to other sites, before compression", PROCESS),
    Metric(
        "wire_bytes_sent",
        "bytes",
        Kind.COUNTER,
        "bytes sent for these, without TCP/IP headers; with relayed ones",
        PROCESS,
    ),
    Metric(
        "raw_bytes_received",
        "bytes",
        Kind.COUNTER,
        "tensor bytes received from other sites, after decompression",
        PROCESS,
    ),
    Metric(
        "wire_bytes_received",
        "bytes",
        Kind.COUNTER,
        "bytes received for these, without TCP/IP headers",
        PROCESS,
    ),
    Metric(
        "relayed_bytes",
        "bytes",
        Kind.COUNTER,
        "of the bytes sent, those passed on between other sites",
        PROCESS,
    ),
    Metric(
        "encode_seconds",
        _SECONDS,
        Kind.COUNTER,
        "host threads' time for encoding reductions",
        PROCESS,
    ),
    Metric("decode_seconds", _SECONDS, Kind.COUNTER, "host threads' time for decoding and summing them", PROCESS),
    Metric(
        "exposed_seconds",
        _SECONDS,
        Kind.COUNTER,
        "time that threads waited for collectives, in wait() or for a Future of theirs",
        PROCESS,
    ),
)
"""What each process group counts; of the process: since it started, ended groups included."""

TOTALS = (
    *COUNTERS,
    Metric(
        "ratio",
        "",
        Kind.GAUGE,
        "raw by wire bytes, both ways together; None before the first",
        PROCESS,
        in_prometheus=False,
    ),
    Metric(
        "groups",
        "",
        Kind.ROWS,
        "per living process group that spans sites: the same counters, and policy",
        PROCESS,
        in_prometheus=False,
    ),
    Metric("peers", "", Kind.ROWS, "per peer process: its link", LINK, in_prometheus=False),
    Metric(
        "memory",
        "",
        Kind.ROWS,
        "of messages on the host that are not acknowledged or reduced; {} before the first group over sites",
        PROCESS,
        in_prometheus=False,
    ),
    Metric(
        "data",
        "",
        Kind.ROWS,
        "of the data set that it reads; {} where it reads none from a catalog",
        PROCESS,
        in_prometheus=False,
    ),
    Metric(
        "gradients",
        "",
        Kind.ROWS,
        "per living gradient hook: its stats() as of the last step that it has settled",
        HOOK,
        in_prometheus=False,
    ),
    Metric(
        "local_steps",
        "",
        Kind.ROWS,
        "per living handle of local_steps(): what it had after the last optimizer step",
        LOCAL,
        in_prometheus=False,
    ),
)
"""What stats() holds of the process."""

GROUPS = (
    *COUNTERS,
    Metric(
        "policy",
        "",
        Kind.ROWS,
        "epoch, links, codecs by size, relays (lists of from, over, to)",
        PROCESS,
        in_prometheus=False,
    ),
)
"""What stats()["groups"] holds of a process group."""

PEERS = (
    Metric("peer", "", Kind.TEXT, "description of the peer", LINK, in_prometheus=False),
    Metric(
        "rank",
        "",
        Kind.TEXT,
        "its global rank; in an elastic run that at its site; None: not known",
        LINK,
        in_prometheus=False,
    ),
    Metric("site", "", Kind.TEXT, "its site", LINK, in_prometheus=False),
    Metric("bytes_sent", "bytes", Kind.COUNTER, "bytes sent to the peer, without those of TCP and IP", LINK),
    Metric("bytes_received", "bytes", Kind.COUNTER, "bytes received from the peer", LINK),
    Metric("payload_sent", "bytes", Kind.COUNTER, "of the bytes sent, those of collectives, as encoded", LINK),
    Metric("payload_received", "bytes", Kind.COUNTER, "of the bytes received, those of collectives", LINK),
    Metric("retransmitted_segments", "segments", Kind.COUNTER, "segments that TCP sent again", LINK),
    Metric("retransmitted_bytes", "bytes", Kind.COUNTER, "bytes that TCP sent again; 0 also if unknown", LINK),
    Metric(
        "tcp_bytes_sent",
        "bytes",
        Kind.COUNTER,
        "bytes that TCP sent, repeats included, without headers; 0 also if unknown",
        LINK,
    ),
    Metric("resumes", "connections", Kind.COUNTER, "connections made again after a loss", LINK),
    Metric("outages", "outages", Kind.COUNTER, "times that connections were lost until all were back", LINK),
    Metric(
        "outage_us",
        _MICROSECONDS,
        Kind.COUNTER,
        "from the last contact to the last new connection, over all outages",
        LINK,
    ),
    Metric(
        "resent_segments",
        "segments",
        Kind.COUNTER,
        "pieces that geocomm sent again because of lost connections",
        LINK,
    ),
    Metric("acks", "messages", Kind.COUNTER, "acknowledgements received", LINK),
    Metric(
        "early_bytes_held",
        "bytes",
        Kind.GAUGE,
        "kept now: received before an operation here asked for it",
        LINK,
        in_prometheus=False,
    ),
    Metric(
        "early_bytes_sent",
        "bytes",
        Kind.GAUGE,
        "sent to the peer before it asked, at most 64 MiB",
        LINK,
        in_prometheus=False,
    ),
    Metric(
        "busy_us",
        _MICROSECONDS,
        Kind.COUNTER,
        "time in which TCP had unacknowledged data; 0 also if unknown",
        LINK,
    ),
    Metric(
        "stalled_by_receiver_us",
        _MICROSECONDS,
        Kind.COUNTER,
        "time in which the peer's receive window held back data; 0 also if unknown",
        LINK,
    ),
    Metric(
        "stalled_by_send_buffer_us",
        _MICROSECONDS,
        Kind.COUNTER,
        "time in which the send buffers here held back data",
        LINK,
    ),
    Metric("rtt_us", _MICROSECONDS, Kind.GAUGE, "round trip of the last heartbeat", LINK),
    Metric("min_rtt_us", _MICROSECONDS, Kind.GAUGE, "the least round trip of a heartbeat; 0: none came back", LINK),
    Metric(
        "delivery_rate",
        _RATE,
        Kind.GAUGE,
        "what the peer got recently, over streams that had enough to send",
        LINK,
    ),
    Metric("pacing_rate", _RATE, Kind.GAUGE, "at which TCP paces; 0 also if it does not", LINK),
    Metric("window_bytes", "bytes", Kind.GAUGE, "congestion windows", LINK),
    Metric("unsent_bytes", "bytes", Kind.GAUGE, "in the send buffers", LINK),
    Metric(
        "clock_offset_us",
        _MICROSECONDS,
        Kind.GAUGE,
        "the peer's monotonic clock less this machine's, from heartbeats; None: not known",
        LINK,
    ),
    Metric("clock_error_us", _MICROSECONDS, Kind.GAUGE, "how wrong the offset may be; None: not known", LINK),
    Metric("streams", "streams", Kind.GAUGE, "connected data streams", LINK),
    Metric("congestion_control", "", Kind.TEXT, "of the connections", LINK),
    Metric("cipher", "", Kind.TEXT, "of TLS; empty: plaintext", LINK, in_prometheus=False),
    Metric(
        "transport",
        "",
        Kind.TEXT,
        'of the data: "tcp", or for example "rdma (rc_mlx5)", which cipher does not cover',
        LINK,
        in_prometheus=False,
    ),
)
"""What stats()["peers"] holds of a peer process, since this process first met it."""

MEMORY = (
    Metric("asked_bytes", "bytes", Kind.GAUGE, "what the messages need", PROCESS, in_prometheus=False),
    Metric(
        "held_bytes",
        "bytes",
        Kind.GAUGE,
        "what the pool has for them, idle memory included",
        PROCESS,
        in_prometheus=False,
    ),
    Metric("most_asked_bytes", "bytes", Kind.GAUGE, "the most that they ever needed", PROCESS, in_prometheus=False),
    Metric("most_held_bytes", "bytes", Kind.GAUGE, "the most that the pool ever had", PROCESS, in_prometheus=False),
)
"""What stats()["memory"] holds."""

DATA = (
    Metric(
        "waited_seconds", "seconds", Kind.COUNTER, "that its reader waited for shards", PROCESS, in_prometheus=False
    ),
    Metric("fetched_bytes", "bytes", Kind.COUNTER, "of shards that it fetched", PROCESS, in_prometheus=False),
    Metric(
        "fetched_dollars",
        "",
        Kind.COUNTER,
        "what these cost, by the price of their store",
        PROCESS,
        in_prometheus=False,
    ),
)
"""What stats()["data"] holds."""

GRADIENTS = (
    Metric("kind", "", Kind.TEXT, "ddp, dgc, fsdp or driver", HOOK, in_prometheus=False),
    Metric("steps", "steps", Kind.COUNTER, "steps begun", HOOK),
    Metric("codec", "", Kind.TEXT, "codec of the next step", HOOK),
    Metric(
        "skipped_steps",
        "steps",
        Kind.COUNTER,
        "steps that did not count: a gradient was not finite, or an operation failed",
        HOOK,
    ),
    Metric(
        "fallbacks",
        "changes",
        Kind.COUNTER,
        "changes to a finer codec; in stats() a list with step, codec and reason",
        HOOK,
    ),
    Metric("buckets", "", Kind.ROWS, "per bucket that was compressed in that step", HOOK, in_prometheus=False),
)
"""What stats()["gradients"] holds of a hook."""

BUCKETS = (
    Metric("index", "", Kind.TEXT, "number of the bucket", HOOK, in_prometheus=False),
    Metric("parameters", "", Kind.TEXT, "names of the parameters in it", HOOK, in_prometheus=False),
    Metric("elements", "elements", Kind.GAUGE, "elements of its residual on this rank", HOOK, in_prometheus=False),
    Metric("ef_norm", "", Kind.GAUGE, "L2 norm of its residual", HOOK, in_prometheus=False),
    Metric(
        "nmse",
        "",
        Kind.GAUGE,
        "what the codec lost in the last step, of the squares (0 to 1); Prometheus has the worst bucket's",
        HOOK,
    ),
    Metric("wire_bytes", "bytes", Kind.GAUGE, "bytes that this rank sent of it", HOOK, in_prometheus=False),
)
"""What a row of buckets of a hook holds; the last three only where the step counted."""

LOCAL_STEPS = (
    Metric("steps", "steps", Kind.COUNTER, "optimizer steps", LOCAL),
    Metric("tokens", "tokens", Kind.COUNTER, "tokens of the site that count_tokens told of", LOCAL),
    Metric("every", "steps", Kind.GAUGE, "steps between two rounds of a fragment", LOCAL),
    Metric("rounds", "rounds", Kind.COUNTER, "rounds whose result was merged", LOCAL),
    Metric(
        "rounds_not_finite",
        "rounds",
        Kind.COUNTER,
        "rounds that left this site's weights out: NaN or Inf",
        LOCAL,
    ),
    Metric("rounds_void", "rounds", Kind.COUNTER, "rounds in which no site counted", LOCAL),
    Metric("wire_bytes", "bytes", Kind.COUNTER, "compressed bytes of this rank's deltas, counted once", LOCAL),
    Metric("waited_seconds", _SECONDS, Kind.COUNTER, "time for which steps waited for results", LOCAL),
    Metric(
        "held_back",
        "steps",
        Kind.COUNTER,
        "steps for which a round waited for its fragment's last result",
        LOCAL,
    ),
    Metric("in_flight", "rounds", Kind.GAUGE, "rounds whose result is not merged yet", LOCAL),
    Metric("oldest_in_flight", "steps", Kind.GAUGE, "steps since the oldest of these began", LOCAL),
    Metric("delta_norm", "", Kind.GAUGE, "L2 norm of this rank's last finite delta", LOCAL),
    Metric("mean_norm", "", Kind.GAUGE, "L2 norm of the sites' last average here", LOCAL),
    Metric(
        "agreement",
        "",
        Kind.GAUGE,
        "|mean delta|^2 / mean |delta|^2 of that round: 1: equal deltas; 1 / sites: noise; None where the average is "
        "no mean",
        LOCAL,
    ),
    Metric(
        "outer_step",
        "",
        Kind.GAUGE,
        "how far the anchor moved last, in multiples of mean_norm: lr without momentum, more with it",
        LOCAL,
    ),
    Metric(
        "residual_norm",
        "",
        Kind.GAUGE,
        "L2 norm of what the codec has lost of that fragment; None without error feedback",
        LOCAL,
    ),
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
