"""The sequences that the configuration of a run names: of text that is tokenized here, or of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import PackedSequences, Sequences, held_out_every
from geocomm.data.corpus.text_tokenizer import TextTokenizer
from geocomm.data.corpus.token_store import load_tokens
from geocomm.data.dealt_sequences import DealtSequences
from geocomm.data.shard_sequences import Reading, SetName, ShardSequences

if TYPE_CHECKING:
    from geocomm.data.site_deals import SiteDeals


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


def dealt_sequences(config: DataConfig, own: Sequences, deals: SiteDeals, site: str) -> DealtSequences:
    """What an elastic run deals to this site, in place of what the configuration alone names (`own`). Raises BadInput
    where they do not fit."""
    if not isinstance(own, ShardSequences):
        raise BadInput(f"data.source is {config.source}, and the run deals {deals.data.set}: set data.source=catalog")
    every = held_out_every(config.held_out_fraction)
    data = DealtSequences(deals, site)
    for name, here, there in (
        ("data.sequence_length", config.sequence_length, deals.data.sequence_length),
        ("data.held_out_fraction: one sequence of", every, deals.data.held_out_every),
        ("the tokenizer of data.paths", own.version.tokenizer[:16], data.version.tokenizer[:16]),
        ("the dtype of data.paths", own.version.dtype, data.version.dtype),
    ):
        if here != there:
            raise BadInput(f"{name}: {here} here, and {there} in the data that the run deals; they must be equal")
    data.fingerprint = own.fingerprint
    return data
