"""hivemind's averager at one site, as a peer of geocomm's averages: `python hivemind_peer.py ORDER`.

Runs under a Python that has hivemind, and imports nothing of geocomm. ORDER is JSON: rank, sites, elements, address and
codecs. Answers each line of stdin with a line of JSON: `join` with the addresses of the others' DHT, then for each
average `match CODEC ROUND` (find the others) and `average` (send, receive, check). Clocks are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import torch

MATCHING_S = 5.0
"""hivemind's own default of what it waits for others; with all there it begins at once."""
LIMIT_S = 120.0


def brought(rank: int, number: int, elements: int) -> torch.Tensor:
    """The fp32 tensor that a site brings to a round: normal, and known to all."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(1_000_003 * number + rank))


def wanted(sites: int, number: int, elements: int) -> torch.Tensor:
    """The mean of what all bring."""
    total = torch.zeros(elements)
    for rank in range(sites):
        total += brought(rank, number, elements)
    return total / sites


def nmse(found: torch.Tensor, mean: torch.Tensor) -> float:
    """Squared error over squared norm."""
    return float((found - mean).double().square().sum() / mean.double().square().sum())


class Peer:
    """One site's averagers, one for each codec."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._hivemind: Any = importlib.import_module("hivemind")  # types are checked where there is none
        compression = self._hivemind.compression
        self._codecs = {"none": compression.NoCompression, "8 bits": compression.Uniform8BitQuantization}
        self._dht: Any = None
        self._averagers: dict[str, Any] = {}
        self._step: Any = None
        self._at = ("", 0)

    def join(self, others: list[str]) -> dict[str, Any]:
        """Begin, at those DHT peers; none: as the first."""
        here = [f"/ip4/{self._order['address']}/tcp/0"]
        self._dht = self._hivemind.DHT(initial_peers=others, start=True, host_maddrs=here)
        for codec in self._order["codecs"]:
            self._averagers[codec] = self._hivemind.DecentralizedAverager(
                [torch.zeros(self._order["elements"])],
                self._dht,
                start=True,
                prefix=f"average-{codec.replace(' ', '-')}",
                target_group_size=self._order["sites"],
                min_group_size=self._order["sites"],
                min_matchmaking_time=MATCHING_S,
                compression=self._codecs[codec](),
            )
        return {"addresses": [str(one) for one in self._dht.get_visible_maddrs()]}

    def match(self, codec: str, number: int) -> dict[str, Any]:
        """Find the others of a round."""
        own = brought(self._order["rank"], number, self._order["elements"])
        averager = self._averagers[codec]
        with averager.get_tensors() as tensors:
            tensors[0].copy_(own)
        self._at = codec, number
        begun = time.monotonic()
        self._step = averager.step(wait=False, require_trigger=True, timeout=LIMIT_S)
        while self._step.stage.name in ("LOOKING_FOR_GROUP", "IDLE"):
            if self._step.done() or time.monotonic() > begun + LIMIT_S:
                break
            time.sleep(0.002)
        return {"start": begun, "end": time.monotonic()}

    def average(self) -> dict[str, Any]:
        """Of those that were found."""
        codec, number = self._at
        begun = time.monotonic()
        try:
            self._step.allow_allreduce()
            group = self._step.result(LIMIT_S)
        except Exception as error:  # of its own, of asyncio, of gRPC
            self._step.cancel()
            return {"start": begun, "end": time.monotonic(), "failed": repr(error)}
        end = time.monotonic()
        if group is None or len(group) != self._order["sites"]:
            return {"start": begun, "end": end, "failed": f"a group of {0 if group is None else len(group)}"}
        with self._averagers[codec].get_tensors() as tensors:
            error = nmse(tensors[0], wanted(self._order["sites"], number, self._order["elements"]))
        return {"start": begun, "end": end, "nmse": error}

    def close(self) -> None:
        """Leave."""
        for averager in self._averagers.values():
            averager.shutdown()
        self._dht.shutdown()


def main() -> None:
    """Until stdin ends."""
    torch.set_num_threads(1)
    peer = Peer(json.loads(sys.argv[1]))
    for line in sys.stdin:
        words = json.loads(line)
        print(json.dumps(getattr(peer, words[0])(*words[1:])), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
