"""What every rank finds out by itself before the job starts, and the decision that all ranks take from it together.

`decide` is a function of the records alone, so every rank reaches the same verdict and none is left waiting.
`Agreed` is what they have found equal or settled before their process group.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from geocomm._version import __version__
from geocomm.core.bad_input import BadInput
from geocomm.core.place import Place
from geocomm.core.settings import flat_fields
from geocomm.core.units import count_text, named_text
from geocomm.data.corpus.packing import Sequences
from geocomm.group.membership.roll_call import differences
from geocomm.train.loop.train_config import RunConfig


@dataclass(frozen=True)
class Seat:
    """Which sequences of a step a rank reads."""

    rank: int
    ranks: int
    """That read one line of sequences together, and which of them this is."""
    first: int
    """Sequences of a step that come before theirs in that line."""
    whole: int
    """Sequences that all ranks of the job read in a step."""


@dataclass(frozen=True)
class Agreed:
    """A run, as this rank takes part in it."""

    config: RunConfig
    place: Place
    device: str
    resume_step: int | None
    site_of_rank: tuple[str, ...]
    """The site of every rank."""
    batch_of_rank: tuple[int, ...]
    """Sequences that every rank reads in a step."""
    data: Sequences
    model_config: Any
    """The configuration of transformers."""
    elastic: bool = False
    """Whether all ranks are one site of an elastic run, which knows nothing here of the others."""

    @property
    def sites(self) -> dict[str, int]:
        """How many ranks each site has, in the order of the lowest of them."""
        return {site: self.site_of_rank.count(site) for site in dict.fromkeys(self.site_of_rank)}

    @property
    def batches(self) -> dict[str, int]:
        """Sequences that each site reads in a step."""
        pairs = list(zip(self.site_of_rank, self.batch_of_rank, strict=True))
        return {name: sum(batch for site, batch in pairs if site == name) for name in self.sites}

    @property
    def seat(self) -> Seat:
        """Where this rank reads: text in one line for all ranks; sites with batches of their own one after the other,
        and those of a catalog each in a line of its own."""
        whole, catalog = sum(self.batch_of_rank), self.config.data.source == "catalog"
        if not catalog and len(set(self.batch_of_rank)) == 1:
            return Seat(self.place.rank, self.place.world_size, 0, whole)
        place = self.site_of_rank[: self.place.rank].count(self.place.site)
        before = list(self.batches)[: list(self.batches).index(self.place.site)]
        first = 0 if catalog else sum(self.batches[site] for site in before)
        return Seat(place, self.sites[self.place.site], first, whole)

    @property
    def shard_ranks(self) -> int:
        """Over how many ranks ZeRO cuts what it shards."""
        return self.sites[self.place.site] if self.config.shards_in_sites() else self.place.world_size

    def manifest(self) -> dict[str, Any]:
        """What a checkpoint must have in common with the run that resumes it."""
        from geocomm.train.models.model_factory import model_identity

        return {
            "model": model_identity(self.model_config),
            "data": self.data.fingerprint,
            "world_size": self.place.world_size,
            "zero_stage": self.config.training.zero_stage,
            "precision": self.config.training.precision,
            "shard_ranks": self.shard_ranks,
            "sync_mode": self.config.sync.mode,
            "feedback": self.config.reduces_gradients,
            "sites": self.sites,
            "site_of_rank": self.site_of_rank,
        }


# Places differ between machines; what is found there is compared by content.
_DATA = "Python version, files, tokenizer"
_VERSION = "version of the catalog"
_LOCAL_FIELDS = frozenset({"output_dir", "model.path", "data.paths", "data.cache_dir", "data.tokenizer"})
_BATCH_FIELDS = ("training.micro_batch_size", "training.gradient_accumulation_steps")
"""With local steps a site may have its own."""


@dataclass(frozen=True)
class RunPlan:
    """What all ranks agreed on: device type (`cpu` or `cuda`) and the step to resume from, if any."""

    device: str
    resume_step: int | None


def shared_fields(config: RunConfig) -> dict[str, Any]:
    """Dotted name and JSON value of every field that must be equal on all ranks."""
    fields = flat_fields(config.model_dump(mode="json")).items()
    return {name: value for name, value in fields if name not in _LOCAL_FIELDS and not name.startswith("logging.")}


def visible_gpus() -> int:
    """CUDA devices that this process can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def record_for(place: Place, found: Mapping[str, Any] | BadInput) -> dict[str, Any]:
    """This rank's record: where it is, and what it found, or why it cannot take part, as `error`."""
    where: dict[str, Any] = {
        "rank": place.rank,
        "site": place.site,
        "local_rank": place.local_rank,
        "host": socket.gethostname(),
        "version": __version__,
        "error": None,
    }
    return {**where, **({"error": str(found)} if isinstance(found, BadInput) else found)}


def decide(records: list[dict[str, Any]], config: RunConfig, *, elastic: bool = False) -> RunPlan:
    """The plan that the records of all ranks (by rank) lead to; raises BadInput where they lead to none.

    elastic: they are a site of an elastic run.
    """
    _require_equal(records, "the version of {}", [{"geocomm": record.get("version")} for record in records])
    if error := first_error(records):
        raise error
    _require_fields(records, config)
    data = [{_DATA: record["data"], _VERSION: record.get("data_version", "")} for record in records]
    _require_equal(records, "the tokenized corpus ({})", data)
    _require_equal(records, "the model's {}", [record["model"] for record in records])
    _require_declared_site(records)
    sites = list(dict.fromkeys(record["site"] for record in records))
    if elastic and len(sites) > 1:
        raise BadInput(
            f"the ranks of this job are at sites {', '.join(sites)}; in an elastic run each site is a job of its own"
        )
    if config.sync.mode == "local" and len(sites) < 2 and not elastic:
        raise BadInput(
            f"sync.mode local needs two sites or more, and all ranks are at one ({records[0]['site']}); GEOCOMM_SITE "
            "names the site of a rank"
        )
    device = choose_device(records, config.distributed.device)
    return RunPlan(device=device, resume_step=_resume_step(records, config, shard_ranks(records, config)))


def batch_of(record: Mapping[str, Any]) -> int:
    """Sequences that a rank reads in a step, by its record."""
    micro_batch, passes = (record["fields"][name] for name in _BATCH_FIELDS)
    return micro_batch * passes


def _require_fields(records: list[dict[str, Any]], config: RunConfig) -> None:
    """BadInput for a field that is not equal where it must be."""
    fields = [record["fields"] for record in records]
    if config.sync.mode == "local":
        for site in dict.fromkeys(record["site"] for record in records):
            own = [record for record in records if record["site"] == site]
            _require_equal(own, "{}", [record["fields"] for record in own])
        fields = [{name: value for name, value in one.items() if name not in _BATCH_FIELDS} for one in fields]
        batches = {record["site"]: batch_of(record) for record in records}
        ranks = Counter(record["site"] for record in records)
        if len(set(batches.values())) > 1 and config.joint_steps(equal_sites=len(set(ranks.values())) == 1) > 0:
            found = ", ".join(f"{site}: {batch}" for site, batch in batches.items())
            raise BadInput(
                f"sync.joint_steps needs equal batches at all sites (sequences of a rank in a step: {found}); set "
                "sync.joint_steps=0"
            )
    _require_equal(records, "{}", fields)


def _require_declared_site(records: list[dict[str, Any]]) -> None:
    """BadInput where the backend would refuse all ranks, since they are at one site and should not be."""
    if any(record["presence"] is None for record in records):
        return
    from geocomm.core.errors import InvalidArgumentError
    from geocomm.group.membership.one_site import Scope, check_one_site
    from geocomm.group.membership.rank_record import Presence, from_record

    try:
        check_one_site([from_record(Presence, record["presence"]) for record in records], Scope.JOB)
    except InvalidArgumentError as error:
        raise BadInput(str(error)) from None


def shard_ranks(records: list[dict[str, Any]], config: RunConfig) -> list[int]:
    """Over how many ranks ZeRO cuts what it shards, by rank; BadInput where the sites must be of equal size for it."""
    if not config.shards_in_sites():
        return [len(records)] * len(records)
    sizes = Counter(record["site"] for record in records)
    needs_equal = config.sync.mode != "local" or config.joint_steps(equal_sites=False) > 0
    if needs_equal and len(set(sizes.values())) > 1:
        found = ", ".join(f"{site}: {ranks}" for site, ranks in sizes.items())
        what, instead = "sync.codec", "training.zero_stage=0"
        if config.sync.mode == "local":
            what, instead = f"sync.joint_steps of {config.sync.joint_steps}", "sync.joint_steps=0"
        raise BadInput(
            f"{what} with ZeRO {config.training.zero_stage} needs sites of equal size (ranks: {found}); use {instead}"
        )
    return [sizes[record["site"]] for record in records]


def _who(record: dict[str, Any]) -> str:
    return f"rank {record['rank']} (site {record['site']})"


def first_error(records: list[dict[str, Any]]) -> BadInput | None:
    """The error that the ranks report, in words for all of them; None where every rank can take part."""
    failed = [record for record in records if record["error"]]
    if not failed:
        return None
    message = failed[0]["error"]
    if all(record["error"] == message for record in records):
        return BadInput(message)
    same = [record for record in failed if record["error"] == message]
    others = len(failed) - len(same)
    more = f" (and {count_text(others, 'more rank')} with other errors)" if others else ""
    return BadInput(f"{', '.join(_who(record) for record in same)}: {message}{more}")


def _require_equal(records: list[dict[str, Any]], what: str, values: list[dict[str, Any]]) -> None:
    """BadInput for the first name under which the `values` of the records differ; `what` has a place for the name."""
    for difference in differences(values)[:1]:
        sides = ", ".join(f"{value!r} on {_who(records[numbers[0]])}" for value, numbers in difference.sides[:2])
        raise BadInput(
            f"{what.format(difference.name)} differs between ranks: {sides}; start all ranks with the same "
            "configuration, data and version of geocomm"
        )


def choose_device(records: list[dict[str, Any]], wanted: str) -> str:
    """`cpu` or `cuda` for the job; BadInput names the sites and ranks whose machine has too few GPUs."""
    lacking = [record for record in records if record["local_rank"] >= record["gpus"]]
    if wanted == "cpu" or (wanted == "auto" and all(record["gpus"] == 0 for record in records)):
        return "cpu"
    if not lacking:
        return "cuda"
    sites = sorted({record["site"] for record in lacking})
    named = ", ".join(
        f"{_who(record)} on {record['host']} has {count_text(record['gpus'], 'GPU')} "
        f"for local rank {record['local_rank']}"
        for record in lacking[:3]
    )
    raise BadInput(
        f"a CUDA job needs one GPU per rank, and {named_text('site', sites)} cannot give one: {named}"
        f"{', …' if len(lacking) > 3 else ''}; use distributed.device=cpu to train on CPUs everywhere"
    )


def _resume_step(records: list[dict[str, Any]], config: RunConfig, shards: list[int]) -> int | None:
    """The newest step of which every rank sees a complete checkpoint, checked against this run; None to start anew."""
    common = set.intersection(*(set(record["checkpoints"]) for record in records))
    if config.checkpoint.resume == "never":
        return None
    if not common:
        seen = [record for record in records if record["checkpoints"]]
        if seen:
            steps = "; ".join(f"{_who(r)}: {', '.join(sorted(r['checkpoints'])) or 'none'}" for r in records[:4])
            raise BadInput(
                f"no step has a complete checkpoint under every rank's output_dir ({steps}); each machine needs the "
                f"checkpoints that its own ranks wrote"
            )
        if config.checkpoint.resume == "required":
            raise BadInput(f"checkpoint.resume is 'required' but {config.output_dir} holds no complete checkpoint")
        return None
    step = max(common, key=int)
    manifest = records[0]["checkpoints"][step]
    where = f"checkpoint of step {step} in {config.output_dir}"
    from geocomm.train.models.model_factory import identity_differences

    differing = identity_differences(manifest["model"], records[0]["model"])
    if differing:
        raise BadInput(f"the {where} is of another model: {differing}; use another output_dir")
    expected = {
        "training.zero_stage": (manifest["zero_stage"], config.training.zero_stage),
        "training.precision": (manifest["precision"], config.training.precision),
    }
    if config.training.zero_stage > 0:
        # Without ZeRO every rank's state is the same, and with shards inside the sites that of sites of equal size.
        found = [record["checkpoints"][step] for record in records]
        saved = [each.get("shard_ranks", each["world_size"]) for each in found]
        pairs = zip(saved, shards, strict=True)
        unequal = next((pair for pair in pairs if pair[0] != pair[1]), (shards[0], shards[0]))
        expected["ZeRO's shards over this many ranks:"] = unequal
    for name, (saved, now) in expected.items():
        if saved != now:
            raise BadInput(f"the {where} was written with {name} {saved}, this run has {now}; they must be equal")
    if manifest["data"] != records[0]["data"]:
        raise BadInput(
            f"the {where} was written with other data (text, tokenizer, data.sequence_length, "
            f"data.held_out_fraction or seed); restore them, or use another output_dir"
        )
    if config.sync.mode != "local" and manifest.get("sync_mode") == "local":
        _require_copies(records, step, where)
    return int(step)


def _require_copies(records: list[dict[str, Any]], step: str, where: str) -> None:
    """BadInput where the ranks do not have copies of one checkpoint of local steps, whose sites have moments of their
    own: the replicas of per-step training must be equal."""
    written = [record["checkpoints"][step].get("id") for record in records]
    other = next((rank for rank, one in enumerate(written) if one is None or one != written[0]), None)
    if other is not None:
        raise BadInput(
            f"the {where} is of local steps, whose sites differ, and per-step training begins from equal ones: copy "
            f"that folder of one site to all ({_who(records[0])} and {_who(records[other])} have no copies of one)"
        )
