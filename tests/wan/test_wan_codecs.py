"""All-reduces with every preset over an emulated WAN: replicas end with the same bits."""

from __future__ import annotations

import hashlib
import os

from geocomm.codecs.codec_spec import codec_spec
from geocomm.codecs.tensor_codec import codec_names, codec_presets
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, require_wan, warm_program

SITES = 3
ELEMENTS = 1_200_007  # several chunks, and enough for chunks to have owners


def codecs() -> list[str]:
    """Every preset and codec that the backend takes."""
    names = dict.fromkeys([*codec_presets(), *codec_names(), "int8+huffman", "int4+zstd"])
    return [name for name in names if not codec_spec(name).needs_feedback]


def test_all_reduce_with_every_preset_over_the_wan_leaves_replicas_identical() -> None:
    require_wan()
    link = EmulatedLink(rate_bps=500e6, delay_s=0.01, loss=0.0005)
    outcome = emulate(EmulatedWan.uniform(SITES, link), warm_program(__file__), timeout_s=240)
    assert outcome.status == 0, outcome.stderr
    for codec in codecs():
        hashes = outcome.values(codec)
        assert len(hashes) == SITES
        assert len(set(hashes)) == 1, f"{codec}: {hashes}"


def site_program() -> None:
    """At each site: one line codec=hash for each codec."""
    import torch
    import torch.distributed as dist

    import geocomm

    torch.set_num_threads(1)
    os.environ["GEOCOMM_SECURITY"] = "insecure"  # an emulated WAN hears nobody
    rank = int(os.environ["NODE_RANK"])
    dist.init_process_group("geocomm", rank=rank, world_size=SITES)
    values = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
    for codec in codecs():
        group = dist.new_group(pg_options=geocomm.Options(codec=codec))
        tensor = values.clone()
        dist.all_reduce(tensor, group=group)
        print(f"{codec}={hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}", flush=True)
        dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program()
