"""The programs of docs/how-to/use-trl-and-peft.md and of Ignite over two sites learn what they learn over Gloo."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from geocomm.security.job_ca import JobCa
from support.local_jobs import REPOSITORY, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

HERE = Path(__file__).resolve().parent
MAKES_GROUP = 'dist.init_process_group("geocomm")'
SETUP = """
import os, sys
sys.path += {paths!r}
site = "ab"[int(os.environ["RANK"])]
os.environ |= {{"GEOCOMM_SITE": site, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}}
keys = {keys!r}
if keys:
    os.environ["GEOCOMM_KEYS"] = os.path.join(keys, site)
"""
MODEL = """
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
words = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(97))])}
whole = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
whole.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=whole, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
torch.manual_seed(7)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1,
))
data = Dataset.from_list(
    [{"text": " ".join(f"w{(7 * row + 3 * place) % 97}" for place in range(24))} for row in range(48)]
)
"""
TRAIN_ADAPTERS = """
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
net = trainer.accelerator.unwrap_model(trainer.model)
"""
IGNITE = """
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss, MeanSquaredError
losses = []
optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=1e-2))
trainer = create_supervised_trainer(model, optimizer, torch.nn.MSELoss(), device=idist.device())
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
trainer.run(loader, max_epochs=2)
metrics = {"mse": MeanSquaredError(), "loss": Loss(torch.nn.MSELoss())}
evaluator = create_supervised_evaluator(model, metrics=metrics, device=idist.device())
evaluator.run(loader)
losses += [evaluator.state.metrics[name] for name in sorted(metrics)]
losses += [idist.all_reduce(1.5 * idist.get_rank()), len(idist.all_gather(f"of {idist.get_rank()}"))]
losses += [idist.get_world_size(), idist.get_nproc_per_node(), idist.get_nnodes()]
assert idist.broadcast(f"of {idist.get_rank()}", src=0, safe_mode=True) == "of 0"
idist.barrier()
net = model
"""
REPORT = """
import json
import torch.distributed as dist
from training_cases import digest_of
import geocomm
sent = sum(peer["payload_sent"] for peer in geocomm.stats()["peers"])
parameters = list(net.parameters())
report = {
    "losses": losses,
    "digest": digest_of(parameters),
    "sent": sent,
    "trained_bytes": sum(4 * one.numel() for one in parameters if one.requires_grad),
    "whole_bytes": sum(4 * one.numel() for one in parameters),
}
with open(f"rank{os.environ['RANK']}", "w") as file:
    json.dump(report, file)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Report:
    """Of a rank: its losses, the SHA-256 of its weights, and what it sent to the other site."""

    losses: list[float]
    digest: str
    sent: int
    trained_bytes: int
    whole_bytes: int

    @property
    def learned(self) -> tuple[list[float], str]:
        return self.losses, self.digest


def snippets(page: str) -> list[str]:
    """The Python programs of the page."""
    text = (REPOSITORY / "docs/how-to" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(folder: Path, program: str, *, keys: Path | None = None, **variables: str) -> list[Report]:
    """What the two ranks of `program` report under torchrun."""
    folder.mkdir()
    setup = SETUP.format(paths=[str(HERE), str(HERE.parent)], keys=str(keys or ""))
    (folder / "train.py").write_text(setup + program + REPORT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, "train.py"],
        env=environment(HF_HUB_OFFLINE="1", **variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return [Report(**json.loads((folder / f"rank{rank}").read_text())) for rank in range(2)]


def test_adapters_learn_what_they_learn_over_gloo_and_their_base_model_need_not_travel(tmp_path: Path) -> None:
    for package in ("peft", "trl", "datasets"):
        pytest.importorskip(package)
    begin, leave_out, own_metrics = snippets("use-trl-and-peft.md")
    changed, count = re.subn(r"num_train_epochs=1", "num_train_epochs=1, logging_steps=1, report_to=[]", begin)
    assert count == 1
    assert changed.count(MAKES_GROUP) == 1
    of_gloo = changed.replace(MAKES_GROUP, 'dist.init_process_group("gloo")')
    over_gloo = run(tmp_path / "gloo", MODEL + of_gloo + TRAIN_ADAPTERS)
    over_sites = run(tmp_path / "sites", MODEL + changed + TRAIN_ADAPTERS)
    spared = run(tmp_path / "spared", MODEL + changed + leave_out + own_metrics + TRAIN_ADAPTERS)
    steps = len(over_gloo[0].losses)
    assert steps >= 3
    assert [one.learned for one in over_sites] == [one.learned for one in over_gloo]
    assert [one.digest for one in spared] == [one.digest for one in over_gloo]
    whole, trained = over_sites[0].whole_bytes, over_sites[0].trained_bytes
    assert steps * trained < spared[0].sent < whole < over_sites[0].sent
    assert over_sites[1].sent < whole, "a step sends more than the gradients of adapters and metrics"


def ignite(extra: str) -> str:
    """The program of the page, with what it needs and does not say."""
    pytest.importorskip("ignite")
    (page,) = snippets("run-scripts-as-they-are.md")
    return "from framework_cases import Batches\nfrom training_cases import Net\ndata, model = Batches(), Net()\n" + (
        "del model.other_head\n" + page + extra
    )


@pytest.mark.parametrize("with_keys", [False, True], ids=["plaintext", "keys"])
def test_ignite_learns_what_it_learns_over_gloo(tmp_path: Path, with_keys: bool) -> None:
    if with_keys:
        JobCa.create(tmp_path / "keys", "run", ["a", "b"], 30)
    over_gloo = run(tmp_path / "gloo", ignite(IGNITE))
    keys = tmp_path / "keys" if with_keys else None
    over_sites = run(tmp_path / "sites", ignite(IGNITE), keys=keys, GEOCOMM_BACKEND="geocomm")
    assert [one.learned for one in over_sites] == [one.learned for one in over_gloo]
    assert over_sites[0].digest == over_sites[1].digest
    assert min(one.sent for one in over_sites) > over_sites[0].trained_bytes


def test_ignite_wraps_no_model_where_it_is_told_a_name_that_it_does_not_know(tmp_path: Path) -> None:
    """Once this fails, docs/how-to/run-scripts-as-they-are.md can say something simpler."""
    program = ignite("\nassert type(model) is Net\nnet, losses = model, [0.0]\n")
    in_place = {"GEOCOMM_BACKEND": "geocomm", "GEOCOMM_BACKEND_NAME": "geocomm"}
    assert len(run(tmp_path / "sites", program, **in_place)) == 2
