"""One training run from configuration to exit code, on this rank."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.environment import agent_socket
from geocomm.core.file_systems import FolderMarkError, folder_mark, free_bytes
from geocomm.core.message_log import logger, tell
from geocomm.core.place import Place, find_place
from geocomm.data.corpus.packing import Sequences
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.run_sequences import run_sequences, version_text
from geocomm.group.membership.job_store import Rendezvous
from geocomm.integrations.deepspeed_seams import deepspeed_problem
from geocomm.train.export.export_record import RECORD
from geocomm.train.loop.config_text import load_config
from geocomm.train.loop.preflight import Agreed, batch_of, decide, first_error, record_for, shared_fields, visible_gpus
from geocomm.train.loop.train_config import RunConfig
from geocomm.train.runs.run_folder import RunFolder, complete_checkpoints
from geocomm.train.runs.run_tracking import require_tensorboard

if TYPE_CHECKING:
    from geocomm.core.options import Options

# fp32 weights and the two moments of Adam, which every precision and ZeRO stage saves in one form or another.
_CHECKPOINT_BYTES_PER_PARAMETER = 12
_EXPORT_BYTES_PER_PARAMETER = {"fp32": 4, "bf16": 2, "fp16": 2}
# With local steps: anchor, outer momentum and residual.
_OUTER_BYTES_PER_PARAMETER = 12
_DEFAULT_STARTUP_TIMEOUT_SECONDS = 1800.0


def run(config_path: Path | None, assignments: Sequence[str]) -> int:
    """Train as configured; the exit code: 0, 2 after a line on stderr about bad input, 128 + n after signal n."""
    try:
        place = find_place(os.environ)
    except BadInput as error:
        return _refuse(str(error), local_rank=0)
    try:
        return _run_rank(place, config_path, assignments)
    except BadInput as error:
        return _refuse(str(error), place.local_rank)


def _refuse(message: str, local_rank: int) -> int:
    """The one line per machine."""
    if local_rank == 0:
        tell("train", message)
    return EXIT_BAD_INPUT


def _backend_options(config: RunConfig) -> Options | None:
    """Options of the process group; None with another backend than geocomm. Refuses what that would refuse later, when
    other ranks wait for this one."""
    if config.distributed.backend != "geocomm":
        return None
    from geocomm.codecs.codec_spec import AUTO, collective_codec
    from geocomm.core.errors import InvalidArgumentError, UnsupportedError
    from geocomm.core.options import Options
    from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings, require_elastic

    field = "distributed.codec" if config.distributed.codec else "GEOCOMM_CODEC"
    try:
        Options(codec="none")
        with _named(field):
            options = Options(codec=config.distributed.codec) if config.distributed.codec else Options()
            if options.codec != AUTO:
                collective_codec(options.codec)
        if config.sync.mode == "local":  # refuse what would be refused when the model is there
            elastic = agent_socket() is not None
            with _named("sync"):
                resolved = ResolvedSettings.of(config.sync, [], sites=None if elastic else 2)
                if elastic:
                    require_elastic(resolved)
    except (InvalidArgumentError, UnsupportedError) as error:
        raise BadInput(str(error)) from None
    return options


def _own_presence(config: RunConfig, options: Options, rank: int) -> dict[str, Any]:
    """What this rank tells of where it is. Raises BadInput."""
    from geocomm.core.errors import InvalidArgumentError
    from geocomm.group.membership.one_site import own_presence
    from geocomm.group.membership.own_address import advertised

    try:
        presence = own_presence(rank, options, advertised(options.address)[0])
    except InvalidArgumentError as error:
        raise BadInput(str(error)) from None
    if config.reduces_gradients:
        presence.given.append("sync.codec")
    if config.sync.mode == "local":
        presence.given.append("sync.mode local")
    return dataclasses.asdict(presence)


@contextlib.contextmanager
def _named(field: str) -> Generator[None]:
    """Says of which field the backend refuses the value."""
    from geocomm.core.errors import InvalidArgumentError, UnsupportedError

    try:
        yield
    except (InvalidArgumentError, UnsupportedError) as error:
        raise BadInput(f"{field}: {error}") from None


@dataclass(frozen=True)
class Prepared:
    """What one rank has checked and loaded by itself."""

    config: RunConfig
    options: Options | None
    """Options of the process group; None with another backend than geocomm."""
    data: Sequences
    model_config: Any
    """The configuration of transformers."""
    record: dict[str, Any]
    """What the other ranks hear of it."""


def _run_rank(place: Place, config_path: Path | None, assignments: Sequence[str]) -> int:
    timeout = _DEFAULT_STARTUP_TIMEOUT_SECONDS
    found: Prepared | BadInput
    try:
        config = load_config(config_path, assignments)
        timeout = config.distributed.startup_timeout_seconds
        found = _prepare(place, config)
    except BadInput as error:
        found = error
    rendezvous = Rendezvous(place, timeout)
    records = rendezvous.exchange(record_for(place, found if isinstance(found, BadInput) else found.record))
    try:
        if isinstance(found, BadInput):
            raise first_error(records) or found
        elastic = agent_socket() is not None
        plan = decide(records, found.config, elastic=elastic)
    except BadInput:
        rendezvous.linger()
        raise
    sites = tuple(record["site"] for record in records)
    batches = tuple(map(batch_of, records))
    agreed = Agreed(
        found.config, place, plan.device, plan.resume_step, sites, batches, found.data, found.model_config, elastic
    )
    return _train(agreed, found.options, rendezvous)


def _prepare(place: Place, config: RunConfig) -> Prepared:
    """Check and load everything that needs no other rank. Raises BadInput."""
    if problem := deepspeed_problem():
        raise BadInput(problem)
    if elastic := agent_socket() is not None:
        _require_elastic(config)
    options = _backend_options(config)
    presence = _own_presence(config, options, place.rank) if options else None
    if place.rank == 0 and config.logging.trackers:
        require_tensorboard()
    folder = RunFolder(config.output_dir.expanduser())
    root = folder.checkpoints
    if config.checkpoint.resume == "never" and folder.has_run():
        raise BadInput(f"{folder.path} already holds a run and checkpoint.resume is 'never'; use another output_dir")
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"output_dir {folder.path} cannot be made: {error}") from None
    if elastic:
        _require_own_folder(folder, place.site)
    tokenizer = load_tokenizer(config.data.tokenizer)
    # Each site of an elastic run reads the text in an order of its own.
    data = run_sequences(config.data, tokenizer, config.seed, place.site, place.site if elastic else "")
    readers = place.local_world_size if config.data.source == "catalog" else place.world_size
    data.require(config.global_batch(readers), config.evaluation.runs())
    from geocomm.train.models import model_factory

    model_config = model_factory.model_config(config.model, config.data, tokenizer)
    exports = config.export.format != "none" and place.rank == 0
    if config.checkpoint.saves() or exports:
        parameters = model_factory.parameter_count(model_config)
        if config.checkpoint.saves():
            _require_space(place, root, parameters, config)
        if exports:
            _require_export(folder.export, parameters, config)
    record = {
        "fields": shared_fields(config),
        "data": data.fingerprint,
        "data_version": version_text(data),
        "model": model_factory.model_identity(model_config),
        "gpus": visible_gpus(),
        "presence": presence,
        "checkpoints": {str(step): manifest for step, manifest in complete_checkpoints(root).items()},
    }
    return Prepared(config, options, data, model_config, record)


def _require_elastic(config: RunConfig) -> None:
    """Refuse what a site of an elastic run does not have."""
    if config.sync.mode != "local":
        raise BadInput(
            f"sync.mode is {config.sync.mode}, and the sites of an elastic run share local steps alone: set "
            "sync.mode=local, or leave --elastic out"
        )
    if config.sync.joint_steps not in ("auto", 0):
        raise BadInput(
            f"sync.joint_steps is {config.sync.joint_steps}, and no gradient crosses between the sites of an elastic "
            "run; remove it"
        )
    if config.checkpoint.resume == "never":
        raise BadInput(
            "checkpoint.resume is 'never', and a site of an elastic run goes on whenever it is started again; remove "
            "it, or begin another run with other folders (output_dir, --run-dir)"
        )


def _require_own_folder(folder: RunFolder, site: str) -> None:
    """Refuse the folder of another site; the copy of one becomes this site's."""
    mark = folder.elastic_site
    try:
        owner, copied = folder_mark(mark, site)
        if copied:
            mark.unlink(missing_ok=True)
            owner, _ = folder_mark(mark, site)
    except (OSError, FolderMarkError) as error:
        raise BadInput(f"output_dir {folder.path} cannot be used: {error}") from None
    if owner != site:
        raise BadInput(
            f"output_dir {folder.path} is that of site {owner}, and this is site {site}; give each site of an elastic "
            f"run a folder of its own. If {owner} does not use it any more, remove {mark}"
        )


def _require_space(place: Place, root: Path, parameters: int, config: RunConfig) -> None:
    """Refuse a disk without room for this machine's share of one checkpoint: the run would be lost at its first one."""
    whole = parameters * _CHECKPOINT_BYTES_PER_PARAMETER
    share = whole * place.local_world_size // place.world_size
    if (
        config.sync.mode == "local"
    ):  # the own state of each rank, or its shard of it; the outer state is the whole site's
        share += share if config.training.zero_stage else whole * place.local_world_size
        share += parameters * _OUTER_BYTES_PER_PARAMETER
    free = free_bytes(root)
    if free < share:
        raise BadInput(
            f"{root} has {free / 1e6:.0f} MB free, but one checkpoint takes about {share / 1e6:.0f} MB here: free "
            f"space, use another output_dir, or turn checkpoints off"
        )


def _require_export(out: Path, parameters: int, config: RunConfig) -> None:
    """The exported model must fit, and must not stand where something else lies."""
    if out.exists() and not (out / RECORD).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is no model that geocomm exported; move it, or set export.format=none")
    size = parameters * _EXPORT_BYTES_PER_PARAMETER[config.export_dtype()]
    free = free_bytes(out.parent)
    if free < size:
        raise BadInput(
            f"{out.parent} has {free / 1e6:.0f} MB free, but the exported model takes {size / 1e6:.0f} MB: free space, "
            "use another output_dir, or set export.format=none"
        )


def _load_operator(place: Place, rendezvous: Rendezvous) -> None:
    """DeepSpeed's operator, compiled by one rank a machine while all others wait. BadInput: on every rank."""
    from geocomm.train.loop.shm_operator import load_operator

    problem = None
    if place.local_rank == 0:
        try:
            load_operator(lambda line: tell("train", line))
        except BadInput as error:
            problem = f"{place.describe()}: {error}"
    problems = [record["problem"] for record in rendezvous.exchange({"problem": problem}, "operator")]
    if any(problems):
        rendezvous.linger()
        raise BadInput(next(problem for problem in problems if problem))
    if place.local_rank != 0:
        load_operator(lambda line: None)


def _train(agreed: Agreed, options: Options | None, rendezvous: Rendezvous) -> int:
    """Make the process group and train in it; the exit code."""
    config, place = agreed.config, agreed.place
    os.environ["DS_ACCELERATOR"] = agreed.device
    import deepspeed
    import torch
    import torch.distributed as dist

    from geocomm.core.errors import GeocommError, InternalError
    from geocomm.train.loop.train_session import train_session
    from geocomm.train.runs.run_log import quiet_libraries

    quiet_libraries(place.rank)
    if agreed.device == "cuda":
        torch.cuda.set_device(place.local_rank)
    timeout = timedelta(seconds=config.distributed.timeout_seconds)
    # As DeepSpeed itself does, which binds a device only where there are peers.
    device = torch.device("cuda", place.local_rank) if agreed.device == "cuda" and place.world_size > 1 else None
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints what it built
        _load_operator(place, rendezvous)
        dist.init_process_group(config.distributed.backend, timeout=timeout, pg_options=options, device_id=device)
        # DeepSpeed takes the group that is there, and so the options of its backend.
        deepspeed.init_distributed(config.distributed.backend, auto_mpi_discovery=False, timeout=timeout)
    try:
        status = train_session(agreed)
        rendezvous.linger()
        return status
    except BadInput:
        raise
    except BaseException as error:
        # What a person needs comes first and once; the rest is for who looks into the code, and of an error of geocomm
        # that is not its bug only for who debugs.
        what = traceback.format_exception_only(error)
        is_told = isinstance(error, GeocommError) and not isinstance(error, InternalError)
        shows = not is_told or logger().isEnabledFor(logging.DEBUG)
        where = traceback.format_exception(error)[: -len(what)] if shows else []
        tell("train", f"{place.describe()}: {''.join(what)}{''.join(where)}".rstrip())
        # The other ranks may be waiting inside a collective: a normal exit would wait for them in turn.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    finally:
        dist.destroy_process_group()
