"""torchft's DiLoCo over Gloo, as a peer of geocomm.local_steps: each site is a replica group of one rank."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from geocomm.group.membership.own_address import own_address

_LIGHTHOUSE_PORT = 29700
_TIMEOUT = timedelta(seconds=600)


class TorchftDiloco:
    """Attached to an optimizer; `finish` lets go of it. Collective over two ranks; rank 0 has the lighthouse."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, every: int, overlap: int) -> None:
        import torchft
        from torchft.coordination import LighthouseServer
        from torchft.local_sgd import DiLoCo

        address = own_address()
        self._lighthouse: Any = None
        if dist.get_rank() == 0:
            self._lighthouse = LighthouseServer(bind=f"0.0.0.0:{_LIGHTHOUSE_PORT}", min_replicas=2)
        dist.barrier()
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self._manager = torchft.Manager(
            torchft.ProcessGroupGloo(_TIMEOUT),
            lambda state: None,
            dict,
            min_replica_size=2,
            use_async_quorum=False,
            timeout=_TIMEOUT,
            quorum_timeout=_TIMEOUT,
            connect_timeout=_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=address,
            store_port=self._store.port,
            lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{_LIGHTHOUSE_PORT}",
            replica_id=f"site{dist.get_rank()}",
            hostname=address,
            init_sync=False,  # all sites begin with the same seed
        )
        outer = torch.optim.SGD(model.parameters(), lr=0.6, momentum=0.9, nesterov=True)
        self._method = DiLoCo(
            self._manager,
            [model],
            optimizer,
            outer,
            sync_every=every,
            pin_memory=False,
            fragment_sync_delay=overlap,
            fragment_update_alpha=0.5 if overlap else 0.0,
        )
        self._method.__enter__()

    def stats(self) -> dict[str, Any]:
        """As the report reads those of `geocomm.LocalSteps`."""
        return {"synchronizations": self._manager.current_step()}

    def finish(self) -> None:
        """Detach. Collective."""
        self._method.__exit__(None, None, None)
        dist.barrier()  # a lighthouse that ends, ends the other's manager
        self._manager.shutdown(wait=False)
        if self._lighthouse is not None:
            self._lighthouse.shutdown()
