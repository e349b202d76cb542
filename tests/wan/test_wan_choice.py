"""Unequal links over an emulated WAN: measured, followed, and replicas that stay identical whatever is chosen."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, require_wan, warm_program

SITES = ("a", "b", "c")
RATES = {("a", "b"): 100e6, ("a", "c"): 20e6, ("b", "c"): 40e6}
DELAYS = {("a", "b"): 0.01, ("a", "c"): 0.03, ("b", "c"): 0.02}
ELEMENTS = 1_200_007
PRESETS = ("none", "int8", "balanced")


def topology() -> EmulatedWan:
    """The third site is far, on slow lines."""
    links = {}
    for (a, b), rate in RATES.items():
        links[a, b] = links[b, a] = EmulatedLink(rate_bps=rate, delay_s=DELAYS[a, b])
    return EmulatedWan(SITES, links)


def test_probe_measures_unequal_links_and_all_that_follows_leaves_replicas_identical(tmp_path: Path) -> None:
    require_wan()
    command = warm_program(__file__, str(tmp_path))
    outcome = emulate(topology(), command, timeout_s=280)
    assert outcome.status == 0, outcome.stderr
    # What the probe says, on every rank alike.
    probed = outcome.values("probe")
    assert len(set(probed)) == 1
    found = json.loads(probed[0])
    # Late packets void times, and rates with them: then only the order of magnitude counts.
    assert outcome.report is not None
    low, high = (0.6, 1.15) if outcome.report.reliable else (0.3, 2.0)
    assert found["sites"] == list(SITES)
    for (a, b), rate in RATES.items():
        for src, dst in ((SITES.index(a), SITES.index(b)), (SITES.index(b), SITES.index(a))):
            assert low * rate < found["rate_bps"][src][dst] < high * rate, (a, b)
            assert 2 * DELAYS[a, b] <= found["rtt_s"][src][dst] < 2 * DELAYS[a, b] + 0.2, (a, b)
    # Shares that follow from it: the slow site owns nothing of what is large.
    assert set(outcome.values("slow_share")) == {"0.0"}
    for codec in (*PRESETS, "auto"):
        hashes = outcome.values(f"sum_{codec}")
        assert len(hashes) == len(SITES)
        assert len(set(hashes)) == 1, f"{codec}: {hashes}"
    # On such lines anything is faster than float32.
    policies = outcome.values("policy")
    assert len(policies) == len(SITES)
    assert len(set(policies)) == 1
    assert json.loads(policies[0])[-1][1] == "int8"
    # Read off the operations, roughly: what is counted begins and ends with whole chunks.
    refreshed = outcome.values("refreshed")
    assert len(set(refreshed)) == 1
    rates = json.loads(refreshed[0])
    for (a, b), rate in RATES.items():
        assert 0.4 * low * rate < rates[SITES.index(a)][SITES.index(b)] < 2.2 * high * rate, (a, b, rates)


def site_program(folder: str) -> None:
    """At each site."""
    import torch
    import torch.distributed as dist

    import geocomm
    from geocomm.core.native import native
    from geocomm.lab.bench.link_probe import LinkProbe

    torch.set_num_threads(1)
    os.environ["GEOCOMM_SECURITY"] = "insecure"  # an emulated WAN hears nobody
    rank = int(os.environ["NODE_RANK"])
    dist.init_process_group("geocomm", rank=rank, world_size=len(SITES))
    links = LinkProbe().run()
    print(f"probe={json.dumps(links.to_dict())}", flush=True)
    path = Path(folder) / f"links-{rank}.json"
    path.write_text(json.dumps(links.to_dict()), encoding="utf-8")
    shares = native().CostModel(len(SITES), links.for_native()).choice(1e9)["shares"]
    print(f"slow_share={shares[2]}", flush=True)

    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
    for codec in (*PRESETS, "auto"):
        group = dist.new_group(pg_options=geocomm.Options(codec=codec, links=str(path)))
        tensor = values.clone()
        dist.all_reduce(tensor, group=group)
        print(f"sum_{codec}={hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}", flush=True)
        if codec == "auto":
            policy = geocomm.stats()["groups"][-1]["policy"]
            print(f"policy={json.dumps(policy['codecs'])}", flush=True)
        dist.destroy_process_group(group)

    # The default group assumes its links until it looks at what its operations saw.
    for _ in range(2):
        dist.all_reduce(values.clone())
    refreshed = geocomm.refresh_links()
    assert refreshed is not None
    print(f"refreshed={json.dumps(refreshed.rate_bps)}", flush=True)
    tensor = values.clone()
    dist.all_reduce(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program(sys.argv[1])
