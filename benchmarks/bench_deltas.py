"""Deltas of weights that training moved: bytes against their entropy, and time, beside what others do.

`python benchmarks/bench_deltas.py [--rates 1e-6 3e-6 1e-4] [--rounds N] [--results FOLDER]`

Pairs of weights are those of a transformers model (Llama's layers, from a config) in bfloat16 before and after one step
of AdamW on float32 weights, at each rate; and made ones, of which a given share changed by one unit in the last place.
The bound of a pair is its own entropy: of which weights changed, and of the steps in the last place of those. What each
way makes is applied first, and compared bit for bit. Then all ways pack and unpack, in turns, in each round. Rates are
raw bytes over the CPU time of the process, so that a way's own threads count; medians.

Peers: `fireworks-delta-compression` (arc_v3) where it is installed; sorted places as int32 and values, gaps of 16 bits
and values, and XOR, each through zstd at level 3.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

import geocomm
from geocomm.core.native import native
from geocomm.lab.bench.bench_report import Conditions, write_pair

HEADINGS = ("weights", "changed", "way", "bytes", "bits a weight", "× the bound", "pack GB/s", "unpack GB/s")


@dataclass(frozen=True)
class Pair:
    """Weights before and after, bfloat16 in one dimension."""

    name: str
    base: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Way:
    """pack(values, base) to something, size(of it) in bytes, unpack(it, base) to the values."""

    name: str
    pack: Callable[[torch.Tensor, torch.Tensor], Any]
    size: Callable[[Any], int]
    unpack: Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One way with one pair."""

    weights: str
    changed: float
    way: str
    size: int
    bits: float
    times_bound: float
    pack_gb_s: float
    unpack_gb_s: float

    def cells(self) -> tuple[str, ...]:
        return (
            self.weights,
            f"{self.changed:.2%}",
            self.way,
            f"{self.size:,}",
            f"{self.bits:.3f}",
            f"{self.times_bound:.3f}",
            f"{self.pack_gb_s:.2f}",
            f"{self.unpack_gb_s:.2f}",
        )


def ordered(values: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Neighbours differ by one."""
    bits = values.view(torch.int16).numpy().astype(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFF, bits)


def bound_bytes(pair: Pair) -> float:
    steps = ordered(pair.values) - ordered(pair.base)
    moved = steps[steps != 0]
    share = len(moved) / len(steps)
    places = -sum(part * math.log2(part) for part in (share, 1 - share) if part > 0)
    counts = np.unique(moved, return_counts=True)[1] / max(len(moved), 1)
    of_steps = float(-(counts * np.log2(counts)).sum())
    return len(steps) * (places + share * of_steps) / 8


# ---- the ways


def own() -> Way:
    def unpack(delta: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        geocomm.apply_delta(delta, base, threads=1)
        return base

    return Way("geocomm", lambda values, base: geocomm.make_delta(values, base, threads=1), torch.Tensor.numel, unpack)


def _shorts(values: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int16]]:
    return values.view(torch.int16).numpy()


def places_and_values() -> Way:
    def pack(values: torch.Tensor, base: torch.Tensor) -> tuple[bytes, bytes]:
        new = _shorts(values)
        places = np.flatnonzero(new != _shorts(base)).astype(np.int32)
        packer = zstandard.ZstdCompressor(3)
        return packer.compress(places.tobytes()), packer.compress(new[places].tobytes())

    def unpack(packed: tuple[bytes, bytes], base: torch.Tensor) -> torch.Tensor:
        places, values = map(zstandard.ZstdDecompressor().decompress, packed)
        _shorts(base)[np.frombuffer(places, np.int32)] = np.frombuffer(values, np.int16)
        return base

    return Way("int32 places + values, zstd", pack, lambda packed: sum(map(len, packed)), unpack)


def gaps_and_values() -> Way:
    def pack(values: torch.Tensor, base: torch.Tensor) -> tuple[bytes, bytes]:
        new = _shorts(values)
        places = np.flatnonzero(new != _shorts(base))
        gaps = np.diff(places, prepend=0).astype(np.uint16)  # none is longer here
        packer = zstandard.ZstdCompressor(3)
        return packer.compress(gaps.tobytes()), packer.compress(new[places].tobytes())

    def unpack(packed: tuple[bytes, bytes], base: torch.Tensor) -> torch.Tensor:
        gaps, values = map(zstandard.ZstdDecompressor().decompress, packed)
        _shorts(base)[np.cumsum(np.frombuffer(gaps, np.uint16), dtype=np.int64)] = np.frombuffer(values, np.int16)
        return base

    return Way("16-bit gaps + values, zstd", pack, lambda packed: sum(map(len, packed)), unpack)


def xor() -> Way:
    def pack(values: torch.Tensor, base: torch.Tensor) -> bytes:
        return zstandard.ZstdCompressor(3).compress((_shorts(values) ^ _shorts(base)).tobytes())

    def unpack(packed: bytes, base: torch.Tensor) -> torch.Tensor:
        differ = np.frombuffer(zstandard.ZstdDecompressor().decompress(packed), np.int16)
        np.bitwise_xor(_shorts(base), differ, out=_shorts(base))
        return base

    return Way("XOR, zstd", pack, len, unpack)


def fireworks() -> list[Way]:
    if find_spec("fireworks_delta_compression") is None:
        return []
    from fireworks_delta_compression import compression

    untyped: Any = compression

    def pack(values: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return untyped.delta_compress(src=base, dst=values, compression_format="arc_v3")

    def unpack(packed: tuple[torch.Tensor, Any], base: torch.Tensor) -> torch.Tensor:
        return untyped.delta_decompress(
            src=base, compressed_diff=packed[0], checksum=packed[1], compression_format="arc_v3"
        )

    return [Way("fireworks arc_v3", pack, lambda packed: packed[0].nbytes, unpack)]


# ---- the pairs


def trained_pairs(rates: list[float], warm_up: int, width: int, layers: int) -> list[Pair]:
    """Before and after one step at each rate, of a model that has made some steps at 1e-4."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    tokens = torch.randint(4096, (8, 8, 129), generator=torch.Generator().manual_seed(1))
    tokens[:, :, 1::2] = (tokens[:, :, ::2][..., :64] * 7 + 3) % 4096  # something to learn
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    position = 0

    def step(rate: float) -> None:
        nonlocal position
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = tokens[position % len(tokens)]
        position += 1
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def weights() -> torch.Tensor:
        return torch.cat([value.detach().reshape(-1).bfloat16() for value in model.parameters()])

    for _ in range(warm_up):
        step(1e-4)
    pairs: list[Pair] = []
    for rate in rates:
        base = weights()
        step(rate)
        pairs.append(Pair(f"trained at {rate:g}", base, weights()))
    return pairs


def made_pair(share: float, elements: int) -> Pair:
    generator = torch.Generator().manual_seed(2)
    base = (torch.randn(elements, generator=generator) * 0.02).bfloat16()
    moved = torch.rand(elements, generator=generator) < share
    up = torch.where(torch.rand(elements, generator=generator) < 0.5, 1, -1).short()
    values = torch.where(moved, base.view(torch.int16) + up, base.view(torch.int16)).view(torch.bfloat16)
    return Pair(f"one place, {share:.1%}", base, values)


# ---- the run


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = run()
    return time.process_time() - begin, result


def measure(pair: Pair, ways: list[Way], rounds: int) -> list[Row]:
    bound = bound_bytes(pair)
    raw = pair.base.nbytes
    sizes: dict[str, int] = {}
    for way in ways:
        packed = way.pack(pair.values, pair.base)
        sizes[way.name] = way.size(packed)
        made = way.unpack(packed, pair.base.clone())
        assert torch.equal(made.view(torch.int16), pair.values.view(torch.int16)), way.name
    times: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            pack, packed = seconds(lambda way=way: way.pack(pair.values, pair.base))
            base = pair.base.clone()
            unpack, _ = seconds(lambda way=way, packed=packed, base=base: way.unpack(packed, base))
            times[way.name].append((pack, unpack))
    changed = float((pair.base.view(torch.int16) != pair.values.view(torch.int16)).float().mean())
    rows: list[Row] = []
    for way in ways:
        pack, unpack = (raw / statistics.median(column) / 1e9 for column in zip(*times[way.name], strict=True))
        size = sizes[way.name]
        bits = 8 * size / pair.base.numel()
        rows.append(Row(pair.name, changed, way.name, size, bits, size / bound, pack, unpack))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 3e-6, 1e-4])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.003, 0.01, 0.045])
    parser.add_argument("--elements", type=int, default=64 << 20, help="of made pairs (default 64 Mi)")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=8, help="steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    pairs = trained_pairs(options.rates, options.warm_up, options.width, options.layers)
    pairs += [made_pair(share, options.elements) for share in options.shares]
    torch.set_num_threads(1)
    ways = [own(), *fireworks(), places_and_values(), gaps_and_values(), xor()]
    rows: list[Row] = []
    for pair in pairs:
        rows += measure(pair, ways, options.rounds)
        for row in rows[-len(ways) :]:
            print(" | ".join(row.cells()), flush=True)
    lines = [
        "# Deltas of weights",
        "",
        *conditions.lines(),
        f"- CPU level: {native().cpu_level()}",
        "",
        f"{options.rounds} rounds; rates are raw bytes over CPU time of all threads, medians. The bound is the entropy",
        "of which weights changed and by how much. Trained: one step of AdamW, weights in float32, sent as bfloat16",
        f"({pairs[0].base.numel() / 1e6:.1f} M). Made: {options.elements >> 20} Mi weights, by one unit each.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
    ]
    path = options.results / "deltas.md"
    write_pair(path, "\n".join(lines), {"conditions": asdict(conditions), "rows": [asdict(row) for row in rows]})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
