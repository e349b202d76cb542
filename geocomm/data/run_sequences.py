"""The sequences that the configuration of a run names: of text that is tokenized here, or of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from geocomm.core.bad_input import BadInput
from geocomm.corpus.data_settings import DataConfig
from geocomm.corpus.packing import PackedSequences, Sequences
from geocomm.corpus.text_tokenizer import TextTokenizer
from geocomm.corpus.token_store import load_tokens
from geocomm.data.shard_sequences import Reading, SetName, ShardSequences


def run_sequences(
    config: DataConfig,
    tokenizer: TextTokenizer,
    seed: int,
    site: str,
    order: str = "",
    readings: Sequence[Reading] = (),
) -> Sequences:
    """site: which reads, for the rules of a catalog. order, readings: see `ShardSequences`. Raises BadInput."""
    length, held_out = config.sequence_length, config.held_out_fraction
    if config.source != "catalog":
        return PackedSequences(load_tokens(config, tokenizer), length, held_out, seed, order)
    name = SetName.parse(str(config.paths[0]))
    data = ShardSequences(name, site, length, held_out, seed, order, readings)
    if data.version.tokenizer != tokenizer.identity:
        raise BadInput(
            f"{name.url} has tokenizer {data.version.tokenizer[:16]} of {data.version.vocabulary} tokens, and "
            f"data.tokenizer is {tokenizer.identity[:16]} of {tokenizer.vocab_size}: they must be equal"
        )
    return data


def readings_of(data: Sequences) -> list[list[int | str]]:
    """The versions of a catalog that a run has read, as plain values; empty for text."""
    return [list(one) for one in data.readings] if isinstance(data, ShardSequences) else []


def version_text(data: Sequences) -> str:
    """What must be equal at all ranks of a job, beside the fingerprint: which shards their sites may read."""
    return f"{data.version.number} {data.pool_sha256}" if isinstance(data, ShardSequences) else ""


def renewed(data: Sequences, manifest: Mapping[str, Any]) -> Sequences:
    """The same for a run that goes on from a checkpoint with this manifest. Raises BadInput where it cannot."""
    readings = [Reading(*one) for one in manifest.get("readings", [])]
    return data.renewed(readings, manifest["consumed"]) if isinstance(data, ShardSequences) and readings else data
