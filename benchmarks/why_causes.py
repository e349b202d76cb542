"""The causes that `bench_why.py` injects, and what `geocomm why` has to say of each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NARROW_WINDOWS = "sysctl -qw net.ipv4.tcp_rmem='4096 16384 32768' && "
# The kernel of a site without BBR, as many are.
RENO_ONLY = 'sysctl -qw net.ipv4.tcp_congestion_control=reno && LD_PRELOAD="$WITHOUT_BBR" '


@dataclass(frozen=True)
class Scenario:
    """A run, what is wrong with it, and what `geocomm why` has to say."""

    name: str
    verdict: str
    rtt_ms: float = 20
    mbit: float = 400
    loss: float = 0
    queue: int = 0
    """Bytes; 0: the emulator's default."""
    reorder: float = 0
    reset: float = 0
    sites: int = 2
    between: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of site0 and site1 alone, instead: `mbit`, `rtt_ms`."""
    one_way: bool = False
    """`between` is of what site0 sends to site1 alone."""
    where: str | None = None
    """The site or the two that have to be named; None: any."""
    or_else: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Other verdicts that are true of the run, each with the place as in `where`."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the worker (`bench_why_worker.py`)."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """GEOCOMM_..."""
    before: str = ""
    """Shell words before the program."""
    elastic: bool = False
    fix: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What takes the cause away; empty: the run is not repeated."""
    group: str = "single"


NOT_KNOWN = "not known"
SINGLE = (
    Scenario("healthy", "computation", rtt_ms=2, settings={"KIB": "16", "COMPUTE": "0.2"}),
    Scenario("rate", "bandwidth", mbit=60, where="site0 - site1", settings={"KIB": "1024"}, fix={"mbit": 600}),
    Scenario(
        *("rate one way", "bandwidth"),
        between={"mbit": 40},
        one_way=True,
        where="site0 -> site1",
        settings={"KIB": "1024"},
        fix={"between": {}},
    ),
    Scenario("rtt", "latency", rtt_ms=80, settings={"KIB": "16", "OPERATIONS": "8"}, fix={"rtt_ms": 1}),
    Scenario("loss", "packet loss", rtt_ms=40, loss=0.02, settings={"KIB": "384"}, before=RENO_ONLY),
    Scenario("windows", "TCP windows", rtt_ms=40, settings={"KIB": "1024"}, before=NARROW_WINDOWS),
    Scenario("slow site", "straggler site", settings={"SLOW_SITE": "site1", "SLOW": "0.15", "KIB": "64"}),
    Scenario(
        "codec",
        "codec",
        rtt_ms=2,
        mbit=1000,
        settings={"KIB": "24576", "OPERATIONS": "1"},
        options={"CODEC": "int4+zstd", "THREADS": "1", "CPU": "scalar"},
        fix={"options": {"CODEC": "int4"}},
    ),
    Scenario("loader", "input", settings={"INPUT": "0.15", "KIB": "64"}),
    Scenario(
        *("loss under BBR", "packet loss"), rtt_ms=40, mbit=100, loss=0.05, settings={"KIB": "384"}, fix={"loss": 0}
    ),
    # Reordered packets are sent again, as lost ones are, but cost next to nothing: the line's rate and delay are left.
    Scenario("reordering", "bandwidth", mbit=200, reorder=0.05, settings={"KIB": "512"}, or_else={"latency": None}),
    Scenario(
        *("three sites: slow link", "bandwidth"),
        sites=3,
        between={"mbit": 40},
        where="site0 - site1",
        settings={"KIB": "1024"},
        fix={"between": {}},
    ),
    Scenario(
        *("three sites: slow link one way", "bandwidth"),
        sites=3,
        between={"mbit": 40},
        one_way=True,
        where="site0 -> site1",
        settings={"KIB": "1024"},
    ),
    Scenario(
        *("three sites: far link", "latency"),
        sites=3,
        between={"rtt_ms": 120},
        where="site0 - site1",
        settings={"KIB": "16", "OPERATIONS": "4"},
        fix={"between": {}},
    ),
    Scenario(
        *("three sites: slow site", "straggler site"),
        sites=3,
        where="site1",
        settings={"SLOW_SITE": "site1", "SLOW": "0.15", "KIB": "64"},
    ),
)
_STEPS = {"STEPS": "50"}
CHANGING = tuple(
    replace(one, group="changing")
    for one in (
        Scenario(
            *("pauses", "pauses"),
            where="site1",
            settings={**_STEPS, "PAUSE_SITE": "site1", "PAUSE": "1.5", "PAUSE_EVERY": "10", "KIB": "256"},
        ),
        Scenario(
            *("pauses, three sites", "pauses"),
            sites=3,
            where="site1",
            settings={**_STEPS, "PAUSE_SITE": "site1", "PAUSE": "0.6", "PAUSE_EVERY": "4", "KIB": "64"},
        ),
        Scenario(
            *("untold checkpoint", "pauses"),
            where="site0",
            settings={**_STEPS, "PAUSE_SITE": "site0", "PAUSE": "4", "PAUSE_EVERY": "25", "KIB": "256"},
        ),
        Scenario(
            *("told checkpoint", "checkpoint"),
            settings={**_STEPS, "CHECKPOINT": "1.5", "CHECKPOINT_EVERY": "10", "KIB": "256"},
        ),
        Scenario(
            *("stopped process", "pauses"),
            where="site1",
            settings={**_STEPS, "PAUSE_SITE": "site1", "STOP": "2", "PAUSE_EVERY": "8", "KIB": "256"},
        ),
        Scenario(
            *("rate falls", "bandwidth"),
            where="site0 - site1",
            settings={"STEPS": "45", "AT": "30", "CHANGE": "rate=15mbit", "KIB": "512"},
        ),
        Scenario(
            *("shallow queue", "bandwidth"),
            mbit=20,
            queue=24_000,
            settings={"KIB": "512"},
        ),
        Scenario(
            "uneven steps", "uneven steps", settings={**_STEPS, "TURNS": "0.3", "KIB": "64"}, or_else={"pauses": None}
        ),
        Scenario(
            *("outage", "outage"),
            where="site0 - site1",
            settings={**_STEPS, "AT": "20", "DOWN": "10", "KIB": "256"},
        ),
    )
)
LOCAL = tuple(
    replace(
        one,
        group="local steps",
        settings={"LOCAL": "1", "EVERY": "12", "SECONDS": "20", "STEPS": "1000", **one.settings},
    )
    for one in (
        Scenario("local: healthy", "computation", settings={"KIB": "64"}),
        Scenario(
            *("local: slow site", "straggler site"),
            where="site1",
            settings={"KIB": "64", "SLOW_SITE": "site1", "SLOW": "0.15"},
        ),
        Scenario("local: line", "line of local steps", mbit=1.5, settings={"KIB": "4096"}),
        Scenario("local: loader", "input", settings={"KIB": "64", "INPUT": "0.08"}),
        Scenario(
            *("local: checkpoint", "checkpoint"),
            settings={"KIB": "64", "CHECKPOINT": "1.5", "CHECKPOINT_EVERY": "20"},
        ),
        Scenario(
            *("local: pauses", "pauses"),
            where="site1",
            settings={"KIB": "64", "PAUSE_SITE": "site1", "PAUSE": "1.5", "PAUSE_EVERY": "20"},
        ),
    )
)
ELASTIC = tuple(replace(one, name=one.name.replace("local", "elastic"), group="elastic", elastic=True) for one in LOCAL)
UNKNOWN = tuple(
    replace(one, verdict=NOT_KNOWN, group="no rule")
    for one in (
        Scenario(
            *("delays that jump", ""),
            settings={**_STEPS, "JUMPS": "rtt=500ms,rtt=20ms", "KIB": "64"},
            or_else={"latency": None},
        ),
        # All packets of these times are lost.
        Scenario(
            *("line that stops", ""),
            settings={**_STEPS, "FREEZE": "0.3", "KIB": "64"},
            or_else={"outage": None, "packet loss": None},
        ),
        Scenario("resets", "", reset=0.0005, settings={**_STEPS, "KIB": "512"}, or_else={"outage": None}),
        Scenario(
            *("lock", ""),
            settings={**_STEPS, "LOCK": "0.3", "KIB": "64"},
            or_else={"pauses": "site0", "straggler site": "site0"},
        ),
        Scenario(
            *("jumps of the rate", ""),
            settings={**_STEPS, "JUMPS": "rate=15mbit,rate=300mbit", "KIB": "256"},
            or_else={"bandwidth": None},
        ),
    )
)
"""The right verdict is `not known`. What `or_else` has is true of these runs, too, and is counted apart."""
_ATOMS = tuple(
    replace(one, settings={**_STEPS, "KIB": "512", **one.settings})
    for one in (
        Scenario("rate", "bandwidth", mbit=60),
        Scenario("rtt", "latency", rtt_ms=120),
        Scenario("loss", "packet loss", loss=0.04, mbit=100),
        Scenario("slow site", "straggler site", where="site1", settings={"SLOW_SITE": "site1", "SLOW": "0.15"}),
        Scenario("loader", "input", settings={"INPUT": "0.15"}),
        Scenario(
            *("pauses", "pauses"),
            where="site1",
            settings={"PAUSE_SITE": "site1", "PAUSE": "1.5", "PAUSE_EVERY": "10"},
        ),
        Scenario(
            *("stops", "pauses"), where="site0", settings={"PAUSE_SITE": "site0", "STOP": "2", "PAUSE_EVERY": "8"}
        ),
        Scenario("checkpoint", "checkpoint", settings={"CHECKPOINT": "1.5", "CHECKPOINT_EVERY": "10"}),
        Scenario("outage", "outage", settings={"AT": "20", "DOWN": "10"}),
    )
)
_PAIRS = 10
_ALIKE = ({"pauses", "stops"}, {"rate", "loss"})


def scenarios(draws: Sequence[str]) -> tuple[Scenario, ...]:
    """All, with pairs drawn at random with these seeds."""
    possible = [two for two in itertools.combinations(_ATOMS, 2) if {one.name for one in two} not in _ALIKE]
    pairs = [_together(*two) for draw in draws for two in random.Random(draw).sample(possible, _PAIRS)]
    drawn = {pair.name: pair for pair in pairs}
    return (*SINGLE, *CHANGING, *LOCAL, *ELASTIC, *drawn.values(), *UNKNOWN)


def _together(one: Scenario, other: Scenario) -> Scenario:
    plain = Scenario("", "")
    return replace(
        one,
        name=f"{one.name} + {other.name}",
        or_else={other.verdict: other.where},
        group="pair",
        settings={**one.settings, **other.settings},
        **{
            name: getattr(other, name)
            for name in ("rtt_ms", "mbit", "loss")
            if getattr(other, name) != getattr(plain, name)
        },
    )
