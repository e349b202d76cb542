"""What the ranks of a group that spans sites have agreed on for one epoch: its links, and the codec of each size.

An epoch begins with the group, and with every `refresh_links()`. Rank 0 decides from what all ranks published, and
publishes the decision; the others follow it, so that all ranks carry out an operation alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from geocomm.codecs.codec_spec import AUTO, collective_codec, collective_form
from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.errors import InvalidArgumentError, VersionMismatchError
from geocomm.core.link_table import Links, NativeLinks
from geocomm.group.membership.rank_record import RankInfo, sites_of
from geocomm.group.membership.roll_call import FirstFailed, decided_by_first
from geocomm.group.planning import codec_choice

if TYPE_CHECKING:
    import torch.distributed as dist

    from geocomm._C import CodecSpec
    from geocomm.core.options import Options


NativePolicy: TypeAlias = "tuple[NativeLinks, list[tuple[int, CodecSpec]], list[tuple[CodecSpec, float, float, float]]]"


class Policy(BaseModel):
    """What the ranks have agreed on for one epoch."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    links: Links
    codecs: tuple[tuple[int, str], ...]
    """(from this many bytes on, codec as the user calls it), ascending."""
    coding: tuple[tuple[str, float, float, float], ...] = ()
    """(codec, seconds to encode, decode and copy a byte of a site's elements on the host of the slowest rank). Given
    where all ranks code on GPUs, and regions would leave it to their hosts."""

    @classmethod
    def decide(cls, epoch: int, links: Links, infos: Sequence[RankInfo], options: Options) -> Policy:
        """Decide from what all ranks know of each other."""
        site_of_rank, names = sites_of(list(infos))
        fewest = min(site_of_rank.count(site) for site in range(len(names)))
        speeds = codec_choice.slowest([info.codec_speeds for info in infos])
        codecs: tuple[tuple[int, str], ...] = ((options.min_compress_bytes, options.codec),)
        if options.codec == AUTO:
            codecs = codec_choice.choose(codec_choice.ReduceTime(links, fewest), speeds, options.min_compress_bytes)
        coding: tuple[tuple[str, float, float, float], ...] = ()
        if links.by_region() and all(info.codes_on_gpu for info in infos):
            copy_s = speeds[codec_choice.UNCOMPRESSED].encode / fewest
            coding = tuple((codec, one.encode / fewest, one.decode / fewest, copy_s) for codec, one in speeds.items())
        return cls(epoch=epoch, links=links, codecs=codecs, coding=coding)

    def for_native(self) -> NativePolicy:
        """What the native module takes of it."""
        codecs = [(size, collective_codec(codec)) for size, codec in self.codecs]
        coding = [(collective_form(codec), encode, decode, copy) for codec, encode, decode, copy in self.coding]
        return self.links.for_native(), codecs, coding

    def describe(self) -> dict[str, Any]:
        """What `geocomm.stats()` shows of it."""
        return {
            "epoch": self.epoch,
            "codecs": [list(one) for one in self.codecs],
            "links": self.links.model_dump(),
            "relays": [list(one) for one in self.links.relays()],
        }


def links_of_group(options: Options) -> Links | None:
    """The table that this rank was given."""
    return Links.from_file(options.links) if options.links else None


def first_policy(store: dist.Store, rank: int, infos: list[RankInfo], options: Options) -> Policy:
    """The policy of a new group. Collective; without a table and with a fixed codec there is nothing to talk about."""
    given = links_of_group(options)
    names = sites_of(infos)[1]
    links = Links.uniform(names) if given is None else given.select(names)
    if given is None and options.codec != AUTO:
        return Policy.decide(0, links, infos, options)
    return agree(store, rank, 0, lambda: Policy.decide(0, links, infos, options))


def agree(store: dist.Store, rank: int, epoch: int, decide: Callable[[], Policy]) -> Policy:
    """Rank 0 decides, all follow. Raises what went wrong at rank 0 on all ranks."""
    try:
        decision = decided_by_first(store, f"geocomm/policy/{epoch}", rank, lambda: decide().model_dump(mode="json"))
        return Policy.model_validate(decision)
    except FirstFailed as error:
        raise InvalidArgumentError(f"rank 0 could not decide: {error}") from None
    except ValidationError as error:
        raise VersionMismatchError(
            f"what rank 0 decided cannot be read here: {problem_text(first_problem(error))}; install the same version "
            "of geocomm on all ranks"
        ) from None
