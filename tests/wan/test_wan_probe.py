"""The probe tells a link's loss from the overflow of its queue, which the probe itself fills."""

from __future__ import annotations

import json
import os

import pytest

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, require_wan, warm_program

SITES = ("a", "b")
OVERFLOWING = EmulatedLink(rate_bps=50e6, delay_s=0.02, queue_bytes=64 << 10)
LOSSY = EmulatedLink(rate_bps=50e6, delay_s=0.02, loss=0.03)


@pytest.mark.parametrize("link", [OVERFLOWING, LOSSY], ids=["overflow", "loss"])
def test_only_what_the_link_loses_is_written_as_loss(link: EmulatedLink) -> None:
    require_wan()
    topology = EmulatedWan(SITES, {("a", "b"): link, ("b", "a"): link})
    outcome = emulate(topology, warm_program(__file__), timeout_s=280)
    assert outcome.status == 0, outcome.stderr
    probed = outcome.values("probe")
    assert len(set(probed)) == 1  # on every rank alike
    loss, overflow = json.loads(probed[0])
    assert outcome.report is not None
    if link is OVERFLOWING:
        assert all(each.dropped_queue > 0 for each in outcome.report.links)
        assert max(loss) < 0.1 * min(overflow)
    else:
        assert 0.01 < min(loss) <= max(loss) < 0.1


def site_program() -> None:
    """At each site."""
    import torch.distributed as dist

    from geocomm.lab.bench.link_probe import LinkProbe

    os.environ["GEOCOMM_SECURITY"] = "insecure"  # an emulated WAN hears nobody
    dist.init_process_group("geocomm", rank=int(os.environ["NODE_RANK"]), world_size=len(SITES))
    probe = LinkProbe()
    links = probe.run()
    assert links.loss is not None
    pairs = [(0, 1), (1, 0)]
    found = [[links.loss[a][b] for a, b in pairs], [probe.overflow[pair] for pair in pairs]]
    print(f"probe={json.dumps(found)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program()
