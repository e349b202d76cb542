"""Scripts that name another backend under `geocomm run`: with keys refused at both sites before a tensor crosses.

A sniffer at the first site counts the packets that show the parameters, which every framework sends at its start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.security.job_ca import JobCa
from support.harness import meet
from support.sniffer import VALUE, Sniffer
from support.wan_support import Outcome, emulate, require_wan

pytestmark = pytest.mark.timeout(280)

LINK = EmulatedLink(rate_bps=400e6, delay_s=0.005)
# tests/multiprocess/group/test_other_backends.py has the refusal of a backend that is named.
NAMED = [pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "accelerate", "deepspeed", "lightning")]


def run(tmp_path: Path, *runs: str) -> Outcome:
    """`script/security` each, in turn."""
    require_wan()
    JobCa.create(tmp_path / "keys", "run", ["site0", "site1"], 2)
    command = [sys.executable, __file__, "site", str(tmp_path), *runs]
    outcome = emulate(EmulatedWan.uniform(2, LINK), command, timeout_s=260, keys=tmp_path / "keys")
    assert outcome.status == 0, outcome.stderr
    return outcome


def logs(tmp_path: Path, number: int) -> list[str]:
    return [(tmp_path / f"log{number}-{node}").read_text() for node in range(2)]


@pytest.mark.parametrize("script", ["nothing_named", *NAMED])
def test_script_of_another_backend_sends_no_tensor_under_keys_and_is_warned_where_insecure(
    tmp_path: Path, script: str
) -> None:
    if script == "lightning" and find_spec(script) is None:
        pytest.skip(f"{script} is not installed")
    outcome = run(tmp_path, f"{script}/required", f"{script}/insecure")
    refused, let_through = logs(tmp_path, 0), logs(tmp_path, 1)
    for log in refused:
        assert "a process group of gloo over the sites site0, site1 sends PLAINTEXT" in log, log
        assert 'init_process_group("geocomm")' in log
    assert outcome.values("0/status") == ["1", "1"], "".join(refused)
    assert outcome.values("0/seen") == ["0"]
    assert outcome.values("1/status") == ["0", "0"], "".join(let_through)
    assert int(*outcome.values("1/seen")) > 0
    assert "".join(let_through).count("PLAINTEXT") == 1


def test_script_of_geocomm_sends_no_tensor_in_plaintext_and_gets_no_group_of_gloo_over_the_sites(
    tmp_path: Path,
) -> None:
    outcome = run(tmp_path, "geocomm/required")
    assert outcome.values("0/status") == ["0", "0"], "".join(logs(tmp_path, 0))
    assert outcome.values("0/seen") == ["0"]


def site(folder: str, *runs: str) -> None:
    """At each site: every run, with a hub of its own at the first one."""
    node = os.environ["NODE_RANK"]
    for number, (script, security) in enumerate(run.split("/") for run in runs):
        command = [
            *(sys.executable, "-m", "geocomm", "run", "--hub", f"{os.environ['MASTER_ADDR']}:{29600 + number}", "--"),
            *("--nnodes", "2", "--node-rank", node, "--nproc-per-node", "1", __file__, script),
        ]
        with Sniffer() as sniffer, Path(folder, f"log{number}-{node}").open("w") as log:
            environment = os.environ | {"GEOCOMM_SECURITY": security, "DS_ACCELERATOR": "cpu"}
            status = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode
            print(f"{number}/status={status}", flush=True)
            if node == "0":
                print(f"{number}/seen={sniffer.seen}", flush=True)


def net() -> nn.Module:
    found = nn.Linear(64, 64)
    for parameter in found.parameters():
        nn.init.constant_(parameter, VALUE)
    return found


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    # By the store: who destroys its group of Gloo first may fail others in a barrier of Gloo (pytorch/gloo issue 155).
    meet("trained", dist.get_world_size())


def ddp(backend: str | None = "gloo") -> None:
    dist.init_process_group(backend)
    train(nn.parallel.DistributedDataParallel(net()))
    dist.destroy_process_group()


def nothing_named() -> None:
    ddp(None)


def geocomm() -> None:
    dist.init_process_group("geocomm")
    train(nn.parallel.DistributedDataParallel(net()))
    with pytest.raises(ValueError, match="over the sites site0, site1 sends PLAINTEXT"):
        dist.new_group(backend="gloo")
    dist.destroy_process_group()


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    train(accelerator.prepare(net()))
    accelerator.end_training()


def deepspeed() -> None:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    optimizer = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": optimizer}
    engine, *_ = deepspeed.initialize(model=net(), config=config)
    engine.backward(engine(torch.ones(4, 64)).sum())
    engine.step()


def lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, rows: torch.Tensor) -> torch.Tensor:
            return self.net(rows).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.ones(8, 64), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(accelerator="cpu", num_nodes=2, devices=1, strategy="ddp", max_steps=1, **quiet).fit(Module(), loader)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
