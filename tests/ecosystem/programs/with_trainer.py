"""Hugging Face's Trainer with evaluation, metrics and `ddp_backend`, on a small Llama."""

from __future__ import annotations

import os

import torch
from outcome import leave
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Rows(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(16).mul(3).add(7 * row).remainder(97)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    arguments = TrainingArguments(
        output_dir=os.environ["OUTCOME"],
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    set_seed(6)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    run = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Rows(128), eval_dataset=Rows(16))
    run.train()
    log = run.state.log_history
    losses = [entry[name] for entry in log for name in ("loss", "eval_loss", "grad_norm") if name in entry]
    leave(losses, run.accelerator.unwrap_model(run.model).parameters())


main()
