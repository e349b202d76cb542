"""Two sites with a slow link between them, over an emulated WAN: they meet over the third one, with the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from geocomm.core.link_table import Links, table_of
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, require_wan, warm_program

SITES = ("a", "b", "c")
RATE_BPS = 100e6
SLOW_BPS = 5e6
DELAYS_S = {("a", "b"): 0.001, ("a", "c"): 0.04, ("b", "c"): 0.04}
SMALL = 64 * 1024
"""Elements of an all-reduce that broadcasting is best for: a and c are near b, but not each other."""
SHARD = 128 * 1024
CODECS = ("none", "int8")


def rate(src: str, dst: str) -> float:
    return SLOW_BPS if {src, dst} == {"a", "c"} else RATE_BPS


def test_a_slow_pair_meets_over_the_third_site_and_no_bit_changes(tmp_path: Path) -> None:
    require_wan()
    links = {}
    for (a, b), delay_s in DELAYS_S.items():
        links[a, b] = links[b, a] = EmulatedLink(rate_bps=rate(a, b), delay_s=delay_s)
    table = Links(
        SITES,
        table_of(3, lambda i, j: 0.9 * rate(SITES[i], SITES[j])),
        table_of(3, lambda i, j: 2 * links[SITES[i], SITES[j]].delay_s),
    )
    path = tmp_path / "links.json"
    path.write_text(json.dumps(table.to_dict()), encoding="utf-8")
    command = warm_program(__file__, str(path))
    outcome = emulate(EmulatedWan(SITES, links), command, timeout_s=150)
    assert outcome.status == 0, outcome.stderr
    for codec in CODECS:
        # With the table and without it, on all ranks: six times the same sum.
        sums = outcome.values(f"sum_{codec}")
        assert len(sums) == 2 * len(SITES)
        assert len(set(sums)) == 1, codec
        for rank in range(len(SITES)):
            shards = outcome.values(f"shard_{codec}_{rank}")
            assert len(shards) == 2
            assert len(set(shards)) == 1, (codec, rank)
    for name in SITES:
        relayed = [int(value) for value in outcome.values(f"relayed_{name}")]
        assert len(relayed) == 2 * len(CODECS)
        assert (max(relayed) > SMALL) == (name == "b"), (name, relayed)
        for move, times in (("broadcast", 1), ("all_gather", 2)):  # to a; to a and to c
            assert outcome.values(f"straight_{move}_{name}") == ["0"]
            passed_on = times * 4 * SHARD if name == "b" else 0
            assert outcome.values(f"relayed_{move}_{name}") == [str(passed_on)]
    pairs = [json.loads(value) for value in outcome.values("relays")]
    assert pairs.count([["a", "b", "c"], ["c", "b", "a"]]) == len(CODECS) * len(SITES)
    assert pairs.count([]) == len(CODECS) * len(SITES)


def check_moves(group: Any, way: str, rank: int) -> None:
    """At each site: what c broadcasts, and what all gather, is there; b relays it where the table says so."""
    import torch
    import torch.distributed as dist

    import geocomm

    def of(root: int) -> torch.Tensor:
        return torch.arange(SHARD, dtype=torch.int32) * (root + 1)

    for name in ("broadcast", "all_gather"):
        before = geocomm.stats()["groups"][-1]["relayed_bytes"]
        tensor = of(2) if rank == 2 else torch.zeros(SHARD, dtype=torch.int32)
        gathered = torch.empty(len(SITES) * SHARD, dtype=torch.int32)
        dist.barrier()
        begin = time.perf_counter()
        if name == "broadcast":
            dist.broadcast(tensor, 2, group=group)
        else:
            dist.all_gather_into_tensor(gathered, of(rank), group=group)
        print(f"seconds_{way}_{name}={time.perf_counter() - begin:.3f}", flush=True)
        if name == "broadcast":
            assert torch.equal(tensor, of(2))
        else:
            assert torch.equal(gathered, torch.cat([of(root) for root in range(len(SITES))]))
        relayed = geocomm.stats()["groups"][-1]["relayed_bytes"] - before
        print(f"{way}_{name}_{SITES[rank]}={relayed}", flush=True)


def site_program(path: str) -> None:
    """At each site."""
    import torch
    import torch.distributed as dist

    import geocomm

    torch.set_num_threads(1)
    os.environ["GEOCOMM_SECURITY"] = "insecure"  # an emulated WAN hears nobody
    rank = int(os.environ["NODE_RANK"])
    dist.init_process_group("geocomm", rank=rank, world_size=len(SITES))
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(SMALL, generator=generator)
    shards = torch.randn(SHARD * len(SITES), generator=generator)

    def timed(name: str, operation: object) -> None:
        dist.barrier()
        begin = time.perf_counter()
        operation()  # type: ignore[operator]
        print(f"seconds_{name}={time.perf_counter() - begin:.3f}", flush=True)

    for codec in CODECS:
        for table in (None, path):
            group = dist.new_group(pg_options=geocomm.Options(codec=codec, links=table))
            way = "straight" if table is None else "relayed"
            tensor, shard = values.clone(), torch.empty(SHARD)
            dist.all_reduce(tensor.clone(), group=group)  # connects
            timed(f"{way}_all_reduce", lambda group=group, tensor=tensor: dist.all_reduce(tensor, group=group))
            timed(
                f"{way}_reduce_scatter",
                lambda group=group, shard=shard: dist.reduce_scatter_tensor(shard, shards.clone(), group=group),
            )
            print(f"sum_{codec}={hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}", flush=True)
            print(f"shard_{codec}_{rank}={hashlib.sha256(shard.numpy().tobytes()).hexdigest()}", flush=True)
            found = geocomm.stats()["groups"][-1]
            print(f"relayed_{SITES[rank]}={found['relayed_bytes']}", flush=True)
            if codec == CODECS[0]:
                check_moves(group, way, rank)
            print(f"relays={json.dumps(found['policy']['relays'])}", flush=True)
            dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program(sys.argv[1])
