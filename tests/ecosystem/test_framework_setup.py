"""The programs of docs/how-to/use-trainer-accelerate-lightning.md, for frameworks that refuse geocomm's name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.local_jobs import REPOSITORY, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

HERE = Path(__file__).resolve().parent
MADE_FIRST = re.compile(r'dist.init_process_group\("geocomm"\).*\n')
SITES = """
import os, sys
sys.path += {paths!r}
os.environ |= {{"GEOCOMM_SITE": "ab"[int(os.environ["RANK"])], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}}
"""
ACCELERATE = """
from torch import optim
from torch.utils.data import DataLoader
from framework_cases import Batches, Regression
from training_cases import digest_of
net = Regression()
model, optimizer, loader = accelerator.prepare(net, optim.AdamW(net.parameters()), DataLoader(Batches(), batch_size=8))
for x, y in loader:
    accelerator.backward(model(x, y)["loss"])
    optimizer.step()
    optimizer.zero_grad()
processes = accelerator.num_processes
"""
TRAINER = """
import torch
from framework_cases import Batches, Regression
from training_cases import digest_of
def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}
arguments.report_to, arguments.save_strategy, arguments.disable_tqdm = [], "no", True
net = Regression()
Trainer(model=net, args=arguments, train_dataset=Batches(), data_collator=collate).train()
processes = arguments.world_size
"""
LIGHTNING = """
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader
from framework_cases import Batches, Regression
from training_cases import digest_of
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Regression()
    def training_step(self, rows, number):
        return self.net(*rows)["loss"]
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
net = Module()
trainer.fit(net, DataLoader(Batches(), batch_size=8))
processes = trainer.world_size
"""
REPORT = """
import torch.distributed as dist
sent = 0
if dist.get_backend() == "geocomm":
    import geocomm
    sent = sum(peer["payload_sent"] for peer in geocomm.stats()["peers"])
with open(f"rank{os.environ['RANK']}", "w") as report:
    print(dist.get_backend(), processes, sent > 0, digest_of(net.parameters()), file=report)
"""


def snippets() -> list[str]:
    """The Python programs of the page."""
    text = (REPOSITORY / "docs/how-to/use-trainer-accelerate-lightning.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def snippet(word: str) -> str:
    """The one with `word`; those with local steps are in test_framework_local_steps.py."""
    (found,) = [each for each in snippets() if word in each and "local_steps" not in each]
    return found


def run(folder: Path, program: str) -> set[str]:
    """What the two ranks of `program` report under torchrun."""
    folder.mkdir()
    (folder / "train.py").write_text(SITES.format(paths=[str(HERE), str(HERE.parent)]) + program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, "train.py"], env=environment(), cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return {(folder / f"rank{rank}").read_text().strip() for rank in range(2)}


def split(reports: set[str]) -> tuple[str, str]:
    """Backend with the rest, and the digest, the same on all ranks."""
    (report,) = reports
    head, _, digest = report.rpartition(" ")
    return head, digest


@pytest.mark.parametrize(("library", "training"), [("accelerate", ACCELERATE), ("transformers", TRAINER)])
def test_framework_trains_over_a_process_group_that_is_made_first(tmp_path: Path, library: str, training: str) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip(library)
    program = snippet(f"from {library} import") + training + REPORT
    over_sites, digest = split(run(tmp_path / "sites", program))
    unchanged, removed = MADE_FIRST.subn("", program)
    assert removed == 1
    over_gloo, gloo_digest = split(run(tmp_path / "gloo", unchanged))
    assert (over_sites, over_gloo) == ("geocomm 2 True", "gloo 2 False")
    assert digest == gloo_digest


def test_lightning_makes_the_process_group_of_its_strategy(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    program = snippet("from lightning") + LIGHTNING + REPORT
    over_sites, digest = split(run(tmp_path / "sites", program))
    over_gloo, gloo_digest = split(run(tmp_path / "gloo", program.replace('="geocomm"', '="gloo"')))
    assert (over_sites, over_gloo) == ("geocomm 2 True", "gloo 2 False")
    assert digest == gloo_digest


@pytest.mark.parametrize(
    ("library", "setting"),
    [
        ("accelerate", "Accelerator(cpu=True, kwargs_handlers=[utils.InitProcessGroupKwargs(backend='geocomm')])"),
        ("transformers", "TrainingArguments(output_dir='unused', use_cpu=True, ddp_backend='geocomm')"),
    ],
)
def test_framework_refuses_the_name_on_cpus(tmp_path: Path, library: str, setting: str) -> None:
    """Once this fails, the page can say something simpler."""
    pytest.importorskip("accelerate")
    pytest.importorskip(library)
    variables = environment(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")
    command = [sys.executable, "-c", f"from {library} import *; from {library} import utils; {setting}"]
    ended = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert "ValueError: Your assigned backend geocomm is not available, please use gloo" in ended.stderr
