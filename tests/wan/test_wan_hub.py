"""`geocomm run` over an emulated WAN: one port open beyond loopback, and a store that outlives an outage."""

from __future__ import annotations

import ipaddress
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from geocomm.core.addresses import listeners
from geocomm.group.rendezvous.store_session import SILENCE_LIMIT_S
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from support.wan_support import emulate, require_wan, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

SITES = 2
OPERATIONS = 20
START = (
    'GEOCOMM_KEYS="$KEYS/$GEOCOMM_SITE" exec "$PYTHON" -m geocomm run --hub "$MASTER_ADDR:$MASTER_PORT" -- '
    '--nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node 1 "$PROGRAM" "$FOLDER"'
)


def test_job_meets_through_one_port_and_its_store_outlives_an_outage(tmp_path: Path) -> None:
    require_wan()
    from geocomm.security.job_ca import JobCa

    JobCa.create(tmp_path / "keys", "wan", [f"site{n}" for n in range(SITES)], 2)
    environment = os.environ | {
        "KEYS": str(tmp_path / "keys"),
        "PYTHON": sys.executable,
        "PROGRAM": __file__,
        "FOLDER": str(tmp_path),
        "GEOCOMM_SECURITY": "insecure",
        "OMP_NUM_THREADS": "1",
    }

    def cut(run: WanRun) -> None:
        wait_until((tmp_path / "ready").exists, "the ranks have a store", 120)
        run.control.set_link("site0", "site1", up=False)
        (tmp_path / "cut").touch()
        time.sleep(SILENCE_LIMIT_S + 5)  # long enough for both ends to give their connections up
        run.control.set_link("site0", "site1", up=True)

    link = EmulatedLink(rate_bps=200e6, delay_s=0.04, loss=0.001)
    command = ["/bin/sh", "-c", START]
    outcome = emulate(EmulatedWan.uniform(SITES, link), command, cut, timeout_s=240, environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert outcome.values("sum") == [str(float(SITES * (SITES + 1) // 2))] * SITES
    assert outcome.values("store") == [str(OPERATIONS * SITES)] * SITES
    assert "no connection to the hub" in outcome.stderr  # the outage was one
    hub, channels = outcome.values("hub")[0], set(outcome.values("channel"))
    beyond = {line.split()[0]: set(line.split()[1:]) - channels for line in outcome.values("listens")}
    assert beyond == {"site0": {hub}, "site1": set()}


def listening_ports_beyond_loopback() -> set[str]:
    """Of this network namespace, which holds nothing but the site's job."""
    return {str(one.port) for one in listeners() if not ipaddress.ip_address(one.host).is_loopback}


def rank_program(folder: Path) -> None:
    """One rank: counts with the others in the store, before, during and after the outage; then trains a little."""
    import torch
    import torch.distributed as dist

    from geocomm.group.backend.runtime import runtime

    site, rank = os.environ["GEOCOMM_SITE"], int(os.environ["RANK"])
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=120))
    store.set(f"here{rank}", "1")
    store.wait([f"here{other}" for other in range(SITES)])
    if rank == 0:
        (folder / "ready").touch()
    end = time.monotonic() + 120
    while not (folder / "cut").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    for _ in range(OPERATIONS):
        store.add("count", 1)
    store.set(f"done{rank}", "1")
    store.wait([f"done{other}" for other in range(SITES)])
    dist.init_process_group("geocomm", timeout=timedelta(seconds=120))
    values = torch.full((200_000,), rank + 1.0)
    dist.all_reduce(values)
    assert bool((values == values[0]).all())
    hub = os.environ["GEOCOMM_HUB"].rpartition(":")[2]
    print(f"store={store.add('count', 0)}", f"sum={values[0].item()}", f"hub={hub}", sep="\n")
    print(
        f"channel={runtime.world.infos[rank].port}",
        "listens=" + " ".join([site, *listening_ports_beyond_loopback()]),
        sep="\n",
    )
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_program(Path(sys.argv[1]))
