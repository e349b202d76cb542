"""The sequences that the configuration of a run names: of text that is tokenized here, or of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import PackedSequences, Sequences, held_out_every
from geocomm.data.corpus.text_tokenizer import TextTokenizer
from geocomm.data.corpus.token_store import load_tokens
from geocomm.data.deal_sequences import DealtSequences
from geocomm.data.fixed_deals import ReadSoFar
from geocomm.data.shard_sequences import SetName, ShardSequences

if TYPE_CHECKING:
    from geocomm.data.site_deals import SiteDeals


def run_sequences(
    config: DataConfig,
    tokenizer: TextTokenizer,
    seed: int,
    site: str,
    order: str = "",
    version: int | None = None,
) -> Sequences:
    """site: which reads, for the rules of a catalog. order: names another order of the same. version: of a catalog, in
    place of what the configuration says. Raises BadInput."""
    length, held_out = config.sequence_length, config.held_out_fraction
    if config.source != "catalog":
        return PackedSequences(load_tokens(config, tokenizer), length, held_out, seed, order)
    name = SetName.parse(str(config.paths[0]))
    data = ShardSequences(SetName(name.url, version or name.number), site, length, held_out, seed, order)
    if data.version.tokenizer != tokenizer.identity:
        raise BadInput(
            f"{name.url} has tokenizer {data.version.tokenizer[:16]} of {data.version.vocabulary} tokens, and "
            f"data.tokenizer is {tokenizer.identity[:16]} of {tokenizer.vocab_size}: they must be equal"
        )
    return data


def held_out_sequences(
    config: DataConfig, tokenizer: TextTokenizer, seed: int, sites: Sequence[str], state: Mapping[str, Any]
) -> Sequences:
    """What a job of these sites evaluates on, whose checkpoint has this state of `Sequences`. Raises BadInput."""
    version = max(ReadSoFar.of_plain(state).versions) if state else None
    data = run_sequences(config, tokenizer, seed, sites[0], version=version)
    if isinstance(data, ShardSequences):
        data.evaluate_for(sites)
    return data


def version_text(data: Sequences) -> str:
    """What must be equal at all ranks of a job, beside the fingerprint."""
    return data.version_text if isinstance(data, ShardSequences) else ""


def share_sequences(
    data: Sequences,
    batches: Mapping[str, int],
    before: Mapping[str, Any],
    of_all: Callable[[Any], Sequence[Any]],
    consumed: int,
) -> None:
    """Deal what is dealt to the sites of a job: see `ShardSequences.deal`. Text is in one line for all."""
    if isinstance(data, ShardSequences):
        data.deal(batches, before, of_all, consumed)


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
