"""What crosses between two regions of an elastic run in a round: `python benchmarks/bench_elastic_regions.py`.

Over the emulated WAN with TLS, with and without regions in the leader's links file, and with and without an aggregator.
All sites had equal states of equal versions, and each round that is measured lists all of them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench_elastic import CROWD_LIMIT_S, CROWD_STEP_S, EVERY, REPOSITORY, START, Failed, training

from geocomm.elastic.journal.entries import AnyRound
from geocomm.lab.bench.bench_report import Conditions, page, table_lines
from geocomm.lab.demo.elastic_run import members
from geocomm.lab.emulator.emulated_links import EmulatedLink

RESULT = REPOSITORY / "benchmarks" / "results" / "elastic-regions.md"
REGIONS = {"one": ("site0", "site1", "site2"), "other": ("site3", "site4", "site5")}
REGION_LINK = EmulatedLink(rate_bps=33e6, delay_s=0.05)
REGION_WIDTH, REGION_ROUNDS = 1024, 12


def crossed(folder: Path, reduce: str, links: Path | None) -> tuple[float, int]:
    """Bytes of a round that go from one region to another one, and those of a frame. links: names the regions."""
    variables = {"REDUCE": reduce} | ({} if links is None else {"GEOCOMM_LINKS": str(links)})
    region = {site: name for name, sites in REGIONS.items() for site in sites}
    command = ["/bin/sh", "-c", START, sys.executable]
    with training(
        folder, len(region), REGION_LINK, REGION_WIDTH, command, step_s=CROWD_STEP_S, variables=variables
    ) as run:

        def rounds() -> list[AnyRound]:
            run.watch.look()
            return [one.entry for one in run.watch.seen if isinstance(one.entry, AnyRound)]

        def all_count() -> bool:
            return [*members(rounds()[-1])] == sorted(region) if rounds() else False

        def sent() -> int:
            return sum(size for (here, there), size in run.bytes_between().items() if region[here] != region[there])

        run.wait(all_count, "a round of all sites", CROWD_LIMIT_S)
        had = len(rounds()) + REGION_ROUNDS // 2
        run.wait(lambda: len(rounds()) >= had, "rounds", CROWD_LIMIT_S)
        begun, before = len(rounds()), sent()
        run.wait(lambda: len(rounds()) >= begun + REGION_ROUNDS, "rounds", CROWD_LIMIT_S)
        after, measured_rounds = sent(), rounds()[begun:]
    if few := [one for one in measured_rounds if [*members(one)] != sorted(region)]:
        raise Failed(f"{len(few)} of {len(measured_rounds)} rounds are not of all sites")
    frame = statistics.median_high(one.frames[0].size for one in measured_rounds)
    return (after - before) / len(measured_rounds), frame


def main() -> None:
    """See the module."""
    conditions = Conditions.here("python benchmarks/bench_elastic_regions.py")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="geocomm-regions-") as made:
        links = Path(made) / "links.toml"
        sites = [site for region in REGIONS.values() for site in region]
        named = [f"{name} = {[*region]!r}" for name, region in REGIONS.items()]
        links.write_text("\n".join([f"sites = {sites!r}", "[regions]", *named]) + "\n")
        for title, named_by in (("none", None), ("two of three sites", links)):
            for reduce in ("all", "aggregator"):
                took, frame = crossed(Path(made) / f"{reduce} {title}".replace(" ", "-"), reduce, named_by)
                rows.append([title, reduce, f"{took / 1e6:.2f}", f"{took / frame:.1f}"])
                print(*rows[-1], flush=True)
    text = (
        f"Six sites train a model of {2 * REGION_WIDTH**2 / 1e6:.1f} M parameters (steps of {CROWD_STEP_S * 1e3:g} "
        f"ms, a round of each fragment every {EVERY}); {REGION_LINK.rate_bps / 1e6:g} Mbit/s and "
        f"{REGION_LINK.delay_s * 2e3:g} ms between each two, TLS. {REGION_ROUNDS} rounds, each of all sites. What "
        "crosses has headers, acknowledgements, the journal and telemetry in it."
    )
    table = table_lines(
        ("regions", "reduce", "MB of a round between the threes", "the same, in frames"), rows, ["reduce"]
    )
    RESULT.write_text(page("What crosses between regions of an elastic run", conditions, text, *table) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"bench_elastic_regions: {error}")
