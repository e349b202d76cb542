"""Programs of others over two sites with keys, without a changed line: `geocomm run --backend geocomm`. What each
leaves equals what it leaves under torchrun over Gloo, bit for bit.

tests/ecosystem/programs has those that frameworks leave to their users to write; the others are run as they were
installed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from geocomm.security.job_ca import JobCa
from support.hub_jobs import job_in
from support.hub_support import HUB_HOST
from support.local_jobs import REPOSITORY, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1250)]

LIMIT_S = 600
PROGRAMS = Path(__file__).resolve().parent / "programs"
# Of no GPU: the programs would take NCCL there, and Accelerate and DeepSpeed as well.
ON_CPUS = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}


def outcomes(folder: Path) -> Any:
    """What both ranks left (programs/outcome.py)."""
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert any(one["losses"] for one in found)
    return found


def saved_model(folder: Path) -> Any:
    """The weights and the losses that a Trainer of Hugging Face saved."""
    weights = sorted(folder.glob("*.safetensors"))
    assert weights
    (state,) = folder.glob("checkpoint-*/trainer_state.json")
    losses = [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    assert losses
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in weights], losses


def nothing(_: Path) -> None:
    """It looks at its results itself, and exits with 0 where they are right."""


@dataclass(frozen=True)
class Program:
    """A program as torchrun takes it; `{folder}`: where it leaves what it has learned, empty at its start."""

    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    left: Callable[[Path], Any] = outcomes
    before: Callable[[Path], None] = field(default=lambda folder: None)


def written(name: str, *needs: str) -> Program:
    return Program((str(PROGRAMS / f"{name}.py"),), needs)


def model_and_data(folder: Path) -> None:
    """What `trl sft` trains, beside `folder`: a small Llama with its tokenizer, and texts."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(97))])}
    whole = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "data").mkdir()
    rows = [{"text": " ".join(f"w{(7 * row + 3 * place) % 97}" for place in range(24))} for row in range(48)]
    (folder / "data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


SFT = (
    *("-m", "trl.scripts.sft", "--model_name_or_path", "{folder}/model", "--dataset_name", "{folder}/data"),
    *("--output_dir", "{folder}", "--use_cpu", "--bf16", "false", "--max_steps", "4", "--logging_steps", "1"),
    *("--per_device_train_batch_size", "4", "--report_to", "none", "--learning_rate", "1e-2", "--dtype", "float32"),
)

CASES = {
    "DDP with snapshots": written("ddp_with_snapshots"),
    "FSDP2 with checkpoints": written("fsdp_with_checkpoints"),
    "tensor parallel": written("tensor_parallel"),
    "pipeline": written("pipeline"),
    "small GPT": written("small_gpt"),
    "Accelerate": written("with_accelerate", "accelerate"),
    "Trainer": written("with_trainer", "accelerate", "transformers"),
    "Lightning": written("with_lightning", "lightning"),
    "Ignite": written("with_ignite", "ignite"),
    "DeepSpeed": written("with_deepspeed", "deepspeed"),
    "TRL's sft": Program(SFT, ("trl",), saved_model, model_and_data),
    "PEFT by TRL's sft": Program(
        (*SFT, "--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj"),
        ("trl", "peft"),
        saved_model,
        model_and_data,
    ),
    "Accelerate's test of operations": Program(
        ("-m", "accelerate.test_utils.scripts.test_ops"), ("accelerate",), nothing
    ),
    "Accelerate's test of gradients": Program(
        ("-m", "accelerate.test_utils.scripts.test_sync"), ("accelerate",), nothing
    ),
}


def run(folder: Path, program: Program, keys: Path | None) -> Any:
    """What the program leaves in `folder`, on two nodes of one rank each. keys: over two sites; None: over Gloo."""
    left = folder / "left"
    left.mkdir(parents=True)
    program.before(left)
    words = [word.format(folder=left) for word in program.words]
    variables = {**ON_CPUS, "OUTCOME": str(left), "PYTHONPATH": f"{REPOSITORY}:{PROGRAMS}"}
    port = free_port(HUB_HOST)
    with job_in(folder / "job") as job:
        for node in range(2):
            nodes = ("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1")
            if keys is None:
                meet = ("--master-addr", HUB_HOST, "--master-port", str(port))
                job.start(*("-m", "torch.distributed.run", *nodes, *meet, *words), **variables)
            else:
                option = ("--hub", f"{HUB_HOST}:{port}", "--backend", "geocomm", "--")
                given = {**variables, "GEOCOMM_KEYS": str(keys / "ab"[node])}
                job.start(*("-m", "geocomm", "run", *option, *nodes, *words), **given)
        assert job.end(LIMIT_S) == [0, 0], job.output()
        output = job.output()
    assert ("2 sites (a 1 rank, b 1 rank), TLS 1.3" in output) == (keys is not None), output
    return program.left(left)


@pytest.mark.parametrize("name", CASES)
def test_program_of_others_runs_over_two_sites_as_it_is_and_equals_gloo(tmp_path: Path, name: str) -> None:
    program = CASES[name]
    for library in program.needs:
        pytest.importorskip(library)
    JobCa.create(tmp_path / "keys", "run", ["a", "b"], 30)
    over_sites = run(tmp_path / "sites", program, tmp_path / "keys")
    assert over_sites == run(tmp_path / "gloo", program, None)
