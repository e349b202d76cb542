"""Ranks of test_torchft: replica groups of one rank, trained under torchft's Manager, which they import late."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from training_cases import Net, Trained, batch, digest_of

TIMEOUT = timedelta(seconds=30)
_alive: list[Any] = []  # stores and managers of this process, which others may still need when a case ends


def _net() -> Net:
    net = Net()
    del net.other_head
    return net


def _group(backend: str) -> Any:
    if backend == "gloo":
        import torchft

        return torchft.ProcessGroupGloo(TIMEOUT)
    if backend == "reconfigure":
        dist.init_process_group(
            "geocomm", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT, enable_reconfigure=True
        )
        return dist.group.WORLD
    from geocomm.integrations.torchft import ProcessGroupGeocomm

    return ProcessGroupGeocomm(TIMEOUT)


def _manager(backend: str, lighthouse: str, net: nn.Module, optimizer: Any, **arguments: Any) -> Any:
    """torchft's, with which this process is a replica group."""
    import torchft

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        _group(backend),
        load,
        lambda: {"net": net.state_dict(), "optimizer": optimizer.state_dict()},
        timeout=TIMEOUT,
        quorum_timeout=timedelta(seconds=60),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica{os.environ['RANK']}",
        hostname="127.0.0.1",
        init_sync=False,  # all begin with the same seed
        **arguments,
    )
    _alive.append((store, manager))
    return manager


def _wire_bytes() -> int:
    import geocomm

    return geocomm.stats()["wire_bytes_sent"]


def ddp(backend: str, lighthouse: str, steps: int) -> Trained:
    """torchft's DistributedDataParallel and optimizer, each replica group with data of its own."""
    import torchft

    net = _net()
    inner = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    manager = _manager(backend, lighthouse, net, inner, min_replica_size=2)
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = torchft.Optimizer(manager, inner)
    while manager.current_step() < steps:
        x, y = batch(manager.current_step(), int(os.environ["RANK"]))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, digest_of(net.parameters()), _wire_bytes())


def local_steps(backend: str, lighthouse: str, steps: int, diloco: bool) -> Trained:
    """torchft's LocalSGD, or its DiLoCo in two fragments; `steps` synchronizations."""
    from torchft.local_sgd import DiLoCo, LocalSGD

    net = _net()
    inner = torch.optim.AdamW(net.parameters(), lr=1e-2)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    losses = []
    manager = _manager(backend, lighthouse, net, inner, min_replica_size=2, use_async_quorum=False)
    method = (
        DiLoCo(manager, [net.body, net.head], inner, outer, sync_every=4)
        if diloco
        else LocalSGD(manager, net, inner, sync_every=2)
    )
    with method:
        for step in range(2 * steps):
            x, y = batch(step, int(os.environ["RANK"]))
            inner.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            inner.step()
            losses.append(loss.item())
    assert manager.current_step() == steps, "a synchronization failed"
    return Trained(losses, digest_of(net.parameters()), _wire_bytes())


@dataclass
class Survived:
    """What a replica group saw: of each step that counted, by how many it was made; and the steps that did not."""

    participants: list[int] = field(default_factory=list)
    discarded: int = 0
    steps: int = 0
    digest: str = ""
    wire_bytes: int = 0
    lost: str = ""  # the peer of the last error


_replica: tuple[Net, torch.optim.Optimizer, Any] | None = None  # of this process


def join(lighthouse: str, backend: str) -> None:
    """From now on, until it is killed, this process is a replica group that others wait for."""
    global _replica
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    _replica = (net, optimizer, _manager(backend, lighthouse, net, optimizer, min_replica_size=1))


def train_while(participants: int, steps: int, dies_in: int = -1) -> Survived:
    """Trains until `steps` steps have counted that were made by so many together.

    All use the same data, so that the mean of their gradients is any one's, bit for bit, whoever is there. dies_in: the
    step in which this one kills itself, when the others count on it (-1: never).
    """
    import geocomm

    net, optimizer, manager = _replica
    seen = Survived()
    while seen.participants.count(participants) < steps:
        manager.start_quorum()
        optimizer.zero_grad()
        x, y = batch(manager.current_step(), rank=0)
        (net(x) - y).square().mean().backward()
        if manager.current_step() == dies_in:
            manager.wait_quorum()
            os.kill(os.getpid(), signal.SIGKILL)
        works = [manager.allreduce(parameter.grad) for parameter in net.parameters()]
        for work in works:
            work.wait()
        if not manager.should_commit():
            seen.discarded += 1
            continue
        optimizer.step()
        seen.participants.append(manager.num_participants())
    seen.steps = manager.current_step()
    seen.digest = digest_of(net.parameters())
    seen.wire_bytes = _wire_bytes()
    seen.lost = (geocomm.last_error() or {"peer": ""})["peer"]
    return seen


def abort_and_configure_again(path: str) -> tuple[str, str, float]:
    """What an operation that rank 0 aborts has raised, what the group then says of itself, and a sum after it."""
    rank = int(os.environ["RANK"])
    group, store, options = _group("geocomm"), dist.FileStore(path), dist.AllreduceOptions()

    def configure(name: str) -> None:  # as torchft does
        group.abort(errored=False)
        group._pg = group._create_pg(dist.PrefixStore(name, store), rank, 2)

    configure("first")
    raised = ""
    if rank == 0:
        threading.Timer(0.3, group.abort).start()
        try:
            group.allreduce([torch.ones(1000)], options).wait()
        except Exception as error:
            raised = type(error).__name__
        store.set("aborted", "")
    store.wait(["aborted"])
    errored = type(group.errored()).__name__
    configure("second")
    assert group.errored() is None
    tensor = torch.ones(1000)
    group.allreduce([tensor], options).wait()
    return raised, errored, tensor[0].item()


def undisturbed(steps: int) -> str:
    """The parameters after as many steps of one process alone."""
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(step, rank=0)
        (net(x) - y).square().mean().backward()
        optimizer.step()
    return digest_of(net.parameters())
