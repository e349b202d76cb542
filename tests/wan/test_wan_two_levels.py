"""Two regions of two sites over an emulated WAN: half of the bytes cross between them, with equal bits everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.core.link_table import Links, table_of
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun
from support.wan_support import emulate, require_wan, wait_until, warm_program

if TYPE_CHECKING:
    from geocomm.core.options import Options

SITES = ("paris", "berlin", "oregon", "virginia")
REGIONS = ("europe", "europe", "america", "america")
NEAR, FAR = EmulatedLink(rate_bps=500e6, delay_s=0.001), EmulatedLink(rate_bps=50e6, delay_s=0.02)
ELEMENTS = 1_000_003
CODECS = ("none", "int8")


def _is_near(src: int, dst: int) -> bool:
    return REGIONS[src] == REGIONS[dst]


def _links() -> Links:
    return Links(
        SITES,
        table_of(4, lambda src, dst: 0.9 * (NEAR if _is_near(src, dst) else FAR).rate_bps),
        table_of(4, lambda src, dst: 2 * (NEAR if _is_near(src, dst) else FAR).delay_s),
        regions=REGIONS,
    )


def _crossed(report: WanReport) -> int:
    """Bytes of IP between the regions, headers included."""
    region = dict(zip(SITES, REGIONS, strict=True))
    return sum(link.bytes for link in report.links if region[link.src] != region[link.dst])


def test_half_of_the_bytes_cross_between_two_regions_of_two_sites(tmp_path: Path) -> None:
    require_wan()
    pairs = {
        (src, dst): NEAR if _is_near(SITES.index(src), SITES.index(dst)) else FAR
        for src in SITES
        for dst in SITES
        if src != dst
    }
    (tmp_path / "regions.json").write_text(json.dumps(_links().to_dict()), encoding="utf-8")
    plain = _links().model_copy(update={"regions": None})
    (tmp_path / "plain.json").write_text(json.dumps(plain.to_dict()), encoding="utf-8")
    crossed: dict[str, int] = {}

    def count(run: WanRun) -> None:
        for codec in CODECS:
            for way in ("regions", "plain"):
                name = f"{codec}-{way}"
                wait_until(
                    lambda name=name: all((tmp_path / f"ready-{name}-{rank}").exists() for rank in range(4)),
                    f"all sites have connected for {name}",
                    120,
                )
                before = _crossed(run.control.stats())
                (tmp_path / f"go-{name}").touch()
                wait_until(
                    lambda name=name: all((tmp_path / f"done-{name}-{rank}").exists() for rank in range(4)),
                    f"all sites have reduced for {name}",
                    120,
                )
                crossed[name] = _crossed(run.control.stats()) - before
                (tmp_path / f"on-{name}").touch()

    outcome = emulate(EmulatedWan(SITES, pairs), warm_program(__file__, str(tmp_path)), during=count, timeout_s=280)
    assert outcome.status == 0, outcome.stderr
    for codec in CODECS:
        for way in ("regions", "plain"):
            assert len(set(outcome.values(f"sum_{codec}_{way}"))) == 1
            relayed = [int(value) for value in outcome.values(f"relayed_{codec}_{way}")]
            assert any(relayed) == (way == "regions")
        # A sum and a result, in place of two contributions and two results; acknowledgements and the like beside.
        assert 0.4 < crossed[f"{codec}-regions"] / crossed[f"{codec}-plain"] < 0.62, crossed
        wire = ELEMENTS * (4 if codec == "none" else 1)
        assert crossed[f"{codec}-regions"] > 1.9 * wire


def _meet(folder: Path, said: str, heard: str) -> None:
    (folder / f"{said}-{os.environ['NODE_RANK']}").touch()
    while not (folder / heard).exists():
        time.sleep(0.01)


def site_program(folder: Path) -> None:
    """At each site."""
    import torch
    import torch.distributed as dist

    import geocomm

    torch.set_num_threads(1)
    os.environ["GEOCOMM_SECURITY"] = "insecure"  # an emulated WAN hears nobody
    rank = int(os.environ["NODE_RANK"])
    dist.init_process_group("geocomm", rank=rank, world_size=len(SITES))
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))

    def options(codec: str, way: str) -> Options:
        return geocomm.Options(codec=codec, links=str(folder / f"{way}.json"))

    for codec in CODECS:
        for way in ("regions", "plain"):
            group = dist.new_group(pg_options=options(codec, way))
            dist.all_reduce(values.clone(), group=group)  # connects
            _meet(folder, f"ready-{codec}-{way}", f"go-{codec}-{way}")
            tensor = values.clone()
            dist.all_reduce(tensor, group=group)
            _meet(folder, f"done-{codec}-{way}", f"on-{codec}-{way}")
            print(f"sum_{codec}_{way}={hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}", flush=True)
            print(f"relayed_{codec}_{way}={geocomm.stats()['groups'][-1]['relayed_bytes']}", flush=True)
            dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program(Path(sys.argv[1]))
