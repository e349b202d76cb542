"""A single file that trains a small GPT, as many do: torchrun's variables say whether it is one of several processes;
gradients are reduced in the last micro-batch alone; the first rank evaluates and logs."""

from __future__ import annotations

import math
import os

import torch
from outcome import leave
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

backend = "nccl" if torch.cuda.is_available() else "gloo"
block_size, width, heads, layers, words = 16, 32, 4, 2, 64
accumulated, batch_size, steps, warmup = 4, 4, 6, 2

ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group(backend=backend)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}" if backend == "nccl" else "cpu"
    assert accumulated % world_size == 0
    accumulated //= world_size
else:
    rank, world_size, device = 0, 1, "cpu"
master = rank == 0
torch.manual_seed(1337 + rank)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        parts = self.attention(self.first(x)).view(rows, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(rows, length, width)
        x = x + self.project(seen)
        return x + self.net(self.second(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, words), targets.reshape(-1))


text = torch.arange(4096).mul(7).remainder(61) % words


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.randint(len(text) - block_size - 1, (batch_size,))
    rows = torch.stack([text[place : place + block_size + 1] for place in at.tolist()]).to(device)
    return rows[:, :-1], rows[:, 1:]


def rate(step: int) -> float:
    if step < warmup:
        return 1e-2 * (step + 1) / warmup
    return 1e-2 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


raw = GPT().to(device)
optimizer = torch.optim.AdamW(raw.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
model = DDP(raw, device_ids=[torch.cuda.current_device()] if backend == "nccl" else None) if ddp else raw
losses = []
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    if master and step % 3 == 0:
        raw.eval()
        with torch.no_grad():
            print(f"step {step}: loss {raw(*get_batch()).item():.4f}", flush=True)
        raw.train()
    for micro in range(accumulated):
        if ddp:
            model.require_backward_grad_sync = micro == accumulated - 1
        loss = model(*get_batch()) / accumulated
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * accumulated)
leave(losses, raw.parameters())
if ddp:
    destroy_process_group()
