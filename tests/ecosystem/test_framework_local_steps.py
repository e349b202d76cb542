"""The programs with local steps of docs/how-to/use-trainer-accelerate-lightning.md, with one rank per site and two."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.local_jobs import REPOSITORY, environment
from support.local_models import adamw, loss_of, make_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

HERE = Path(__file__).resolve().parent
SETUP = """
import os, sys
sys.path += {paths!r}
rank, inside = int(os.environ["RANK"]), {inside}
os.environ |= {{"GEOCOMM_SITE": "ab"[rank // inside], "LOCAL_RANK": str(rank % inside)}}
os.environ |= {{"LOCAL_WORLD_SIZE": str(inside), "GROUP_RANK": str(rank // inside), "NODE_RANK": str(rank // inside)}}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from framework_cases import Regression
from training_cases import digest_of

torch.manual_seed(3)
x = torch.randn(24 * 4 * 2 * inside, 40)
data = TensorDataset(x, x[:, :8].sin())
model = Regression()
loader = DataLoader(data, batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
TRAINER = """
def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}
"""
LIGHTNING = """
import lightning.pytorch as pl
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, rows, number):
        return self.net(*rows)["loss"]
    def configure_optimizers(self):
        return optimizer
module = Module()
"""
REPORT = """
import json
outer = steps.outer if "steps" in globals() else outer
peers = geocomm.stats()["peers"]
report = {
    "weights": digest_of(model.parameters()),
    "steps": outer.stats()["steps"],
    "rounds": outer.stats()["rounds"],
    "elements": outer.stats()["elements"],
    "sent": sum(peer["payload_sent"] for peer in peers if peer["site"] != os.environ["GEOCOMM_SITE"]),
}
with open(f"rank{os.environ['RANK']}", "w") as file:
    json.dump(report, file)
dist.destroy_process_group()
"""


def programs() -> dict[str, str]:
    """Those of the page that have local steps, by the word in their section's heading."""
    text = (REPOSITORY / "docs/how-to/use-trainer-accelerate-lightning.md").read_text(encoding="utf-8")
    found = re.findall(r"## Local steps with (?:the )?(\w+)\n.*?```python\n(.*?)```", text, re.DOTALL)
    return dict(found)


def run(folder: Path, program: str, inside: int) -> list[dict[str, Any]]:
    """What the ranks of two sites report under torchrun."""
    setup = SETUP.format(paths=[str(HERE), str(HERE.parent)], inside=inside)
    (folder / "train.py").write_text(setup + program + REPORT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(2 * inside)]
    ended = subprocess.run(
        [*torchrun, "train.py"],
        env=environment(OMP_NUM_THREADS="1"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(2 * inside)]


@pytest.mark.parametrize("inside", [1, 2])
@pytest.mark.parametrize("name", ["Accelerate", "Trainer", "Lightning"])
def test_framework_trains_with_local_steps(tmp_path: Path, name: str, inside: int) -> None:
    pytest.importorskip("lightning" if name == "Lightning" else "accelerate")
    program = programs()[name]
    if name == "Trainer":
        pytest.importorskip("transformers")
        (handler,) = re.findall(r"^from accelerate.utils.*?(?=^dist)", programs()["Accelerate"], re.DOTALL | re.M)
        program = TRAINER + handler + program.replace('output_dir="out",', 'output_dir="out", report_to=[], ')
        program = program.replace("num_train_epochs=1", "num_train_epochs=1, per_device_train_batch_size=4")
        program = "import geocomm\n" + program
    elif name == "Lightning":
        program = LIGHTNING + program.replace("devices=1", f"devices={inside}, logger=False")
    found = run(tmp_path, program, inside)
    assert len({report["weights"] for report in found}) == 1
    for report in found:
        assert report["steps"] == 24
        assert report["rounds"] > 0
    # Of a rank that owns no fragment little crosses; gradients would be 4 bytes an element in each of 24 steps.
    assert all(report["sent"] < 24 * 4 * report["elements"] / 4 for report in found)


def test_steps_that_accelerate_accumulates_or_its_scaler_skips_do_not_count() -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.optimizer import AcceleratedOptimizer

    def run(rounds: Rounds) -> tuple[int, int]:
        model = make_model()
        optimizer = accelerator.prepare(adamw(model))
        handle = local_steps(model, optimizer, LocalSettings(every=2), rounds=rounds)
        for step in range(8):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, rounds.site, step))
                optimizer.step()
                optimizer.zero_grad()
        accumulated = handle.stats()["steps"]
        handle.finish()
        optimizer = AcceleratedOptimizer(adamw(model), scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
        handle = local_steps(model, optimizer, LocalSettings(every=2), rounds=rounds)
        accelerator.gradient_state._set_sync_gradients(True)
        for step in range(4):
            optimizer.zero_grad()
            optimizer.scaler.scale(loss_of(model, rounds.site, step)).backward()
            if step == 1:
                model[2].weight.grad[0] = torch.inf
            optimizer.step()
        return accumulated, handle.stats()["steps"]

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert SimulatedSites(["a"]).run(run) == [(4, 3)]
