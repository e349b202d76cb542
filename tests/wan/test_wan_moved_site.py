"""A site's address changes under a running job: its links find each other again, and no bit is lost."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

import pytest

from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, require_wan, warm_program

pytestmark = pytest.mark.timeout(240)

SITES = ("site0", "site1")
ELEMENTS = 4_000_000
OPERATIONS = 6
_SET_ADDRESS, _SET_NETMASK = 0x8916, 0x891C  # SIOCSIFADDR, SIOCSIFNETMASK


@pytest.mark.parametrize("mover", ["dials", pytest.param("waits", marks=pytest.mark.slow)])
def test_site_whose_address_changes_amid_all_reduces_is_found_again(mover: str) -> None:
    require_wan()
    link = EmulatedLink(rate_bps=100e6, delay_s=0.02)
    with site_keys(SITES, None, secure=True) as keys:
        outcome = emulate(
            EmulatedWan.uniform(SITES, link),
            warm_program(__file__, mover),
            timeout_s=200,
            environment=site_environment(os.environ, keys) | {"GEOCOMM_LOG": "info"},
            keys=keys,
        )
    assert outcome.status == 0, outcome.stderr
    digests = outcome.values("sums")
    assert len(digests) == len(SITES)
    assert len(set(digests)) == 1
    assert digests[0] == expected_digest()
    assert outcome.values("later") == ["2000.0"] * len(SITES)
    assert outcome.values("address") == ["10.91.1.2"]
    assert all(int(count) > 0 for count in outcome.values("resumes"))
    found = [json.loads(text) for text in outcome.values("resumed")]
    assert {(event["site"], event["peer_site"], event["peer_rank"]) for event in found} == {
        (SITES[0], SITES[1], 1),
        (SITES[1], SITES[0], 0),
    }
    assert all(event["outages"] > 0 and event["seconds"] > 0 and event["connections"] > 0 for event in found)


def inputs(rank: int, operation: int) -> list[int]:
    """Whole numbers, so that every order of additions gives the same bits."""
    return [(index * 7 + rank * 131 + operation) % 1009 for index in range(1009)]


def expected_digest() -> str:
    """Of the sums of all operations."""
    import torch

    digest = hashlib.sha256()
    for operation in range(OPERATIONS):
        total = sum(torch.tensor(inputs(rank, operation), dtype=torch.float32) for rank in range(len(SITES)))
        digest.update(total.repeat(ELEMENTS // 1009).numpy().tobytes())
    return digest.hexdigest()


def move_to(address: str) -> None:
    """Give this site another address; the old one is gone."""
    name = os.environ["GLOO_SOCKET_IFNAME"].encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((_SET_ADDRESS, address), (_SET_NETMASK, "255.255.0.0")):
            sockaddr = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, request, struct.pack("16s16s8x", name, sockaddr))


def make_group(mover: str, rank: int) -> None:
    """A group in which site 1's process dials, or waits, as `mover` says. Ids are random: until it is so."""
    import torch.distributed as dist

    from geocomm.group.backend.runtime import runtime

    hub = f"geocomm://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    while True:
        dist.init_process_group("geocomm", init_method=hub, rank=rank, world_size=len(SITES))
        ids = [base64.b64decode(info.process_id) for info in runtime.world.infos]
        if (ids[1] > ids[0]) == (mover == "dials"):
            return
        dist.destroy_process_group()


def resumed() -> list[dict[str, Any]]:
    """The events of links that resumed; there is one, once all connections are there again."""
    from geocomm.metrics.events import EventReader, events

    end = time.monotonic() + 60
    while True:
        found = [event.line() for event in EventReader(events).take() if event.kind == "link_resumed"]
        if found or time.monotonic() > end:
            return found
        time.sleep(0.1)


def site_program(mover: str) -> None:
    """At each site: all-reduces, during one of which site 1 moves."""
    import torch
    import torch.distributed as dist

    from geocomm.group.backend.runtime import runtime

    torch.set_num_threads(1)
    rank = int(os.environ["NODE_RANK"])
    make_group(mover, rank)
    digest = hashlib.sha256()
    for operation in range(OPERATIONS):
        values = torch.tensor(inputs(rank, operation), dtype=torch.float32).repeat(ELEMENTS // 1009)
        if operation == 2 and rank == 1:
            # 16 MB take more than a second on this link.
            threading.Timer(0.4, move_to, ("10.91.1.2",)).start()
        begin = time.monotonic()
        dist.all_reduce(values)
        print(f"operation {operation}: {time.monotonic() - begin:.1f} s", flush=True)
        digest.update(values.numpy().tobytes())
    # The store is reached from the new address as well, and a new group publishes it.
    group = dist.new_group(backend="geocomm")
    assert runtime.group_of(group).infos[1].hosts == ["10.91.1.2"]
    total = torch.ones(1000)
    dist.all_reduce(total, group=group)
    print(f"later={total.sum().item()}")
    if rank == 1:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 9))
            print(f"address={probe.getsockname()[0]}")
    for event in resumed():
        print(f"resumed={json.dumps(event)}")
    _, endpoint = runtime._endpoint
    print(f"sums={digest.hexdigest()}", f"resumes={sum(c['resumes'] for c in endpoint.channel_stats())}", sep="\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program(sys.argv[1])
