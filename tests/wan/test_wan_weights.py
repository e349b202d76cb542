"""A reader of weights over an emulated line that goes dead: it goes on from where it was."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.security.job_ca import JobCa
from geocomm.weights.publisher import WeightPublisher
from support.wan_support import IMPORTS, require_wan, wait_until
from support.weight_streams import equal

LINK = EmulatedLink(rate_bps=40e6, delay_s=0.03)
_SITES = ("site0", "site1")
_BLACKOUT_S = 30.0
# Its $0 is Python: a relay at the first site, until the other one has the weights; a reader there.
_PROGRAM = """
follow() { "$0" -m geocomm subscribe "$@"; }
if [ "$NODE_RANK" = 0 ]; then
    follow "$FOLDER/stream" --into "$FOLDER/relayed" --listen :29700 &
    while [ ! -e "$FOLDER/done" ]; do sleep 0.1; done
    kill $!
    wait
else
    while [ ! -e "$FOLDER/relayed" ]; do sleep 0.1; done
    follow "tls://$MASTER_ADDR:29700" --into "$FOLDER/model" --once
    status=$?
    touch "$FOLDER/done"
    exit $status
fi
"""


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_reader_goes_on_after_a_blackout_and_fetches_nothing_twice(tmp_path: Path) -> None:
    require_wan()
    ca = JobCa.create(tmp_path / "keys", "run7", ["site0"], 30)
    ca.add("site1", 30, reader=True)
    made = torch.Generator().manual_seed(1)
    # Any bits at all: nothing can be saved of them. Of several parts, as a larger model has.
    tensors = {
        f"w{at}": torch.randint(-(2**15), 2**15, (3 << 20,), generator=made).short().view(torch.bfloat16)
        for at in range(5)
    }
    with WeightPublisher(tmp_path / "stream", tensors, keys=ca.folder / "site0") as publisher:
        publisher.publish(wait=True)
    size = sum(path.stat().st_size for path in (tmp_path / "stream/frames").rglob("?" * 64))
    environment = site_environment(os.environ, ca.folder) | {"FOLDER": str(tmp_path), "PYTHONPATH": IMPORTS}
    with (
        (tmp_path / "log").open("w") as log,
        WanRun(
            EmulatedWan.uniform(_SITES, LINK),
            ["/bin/sh", "-c", _PROGRAM, sys.executable],
            environment=environment,
            keys=ca.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as run,
    ):

        def arrived() -> int:
            return run.control.stats().link(*_SITES).bytes

        wait_until(lambda: arrived() > 0.4 * size, "the reader fetches", 100)
        run.control.set_link(*_SITES, up=False)
        time.sleep(_BLACKOUT_S)
        before = arrived()
        assert before < 0.9 * size
        run.control.set_link(*_SITES, up=True)
        begun = time.monotonic()
        assert run.wait(150) == 0, (tmp_path / "log").read_text()
        took_s = time.monotonic() - begun
        report = run.report()
    assert equal(load_file(tmp_path / "model/model.safetensors"), tensors)
    assert report is not None
    total = report.link(*_SITES).bytes
    rest_s = (size - before) * 8 / LINK.rate_bps
    print(
        f"\n{size:,} bytes of frames, {total / size:.3f} times as many crossed, with headers. Dead for "
        f"{_BLACKOUT_S:g} s at {before / size:.0%}; the rest takes {rest_s:.1f} s at the line's rate, and took "
        f"{took_s:.1f} s to the end"
    )
    # Headers of IP, TCP and TLS take 5 %: a range that was fetched twice would be 3 % more.
    assert total < 1.08 * size
