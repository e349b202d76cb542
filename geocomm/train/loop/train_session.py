"""A run inside of its process group: engine, checkpoints, log and loop; and what a complete one leaves for other
programs, the folder `export` of its `output_dir`. Imports torch and deepspeed."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from geocomm._version import __version__
from geocomm.core.bad_input import BadInput
from geocomm.core.ended_by_signal import begun
from geocomm.core.file_systems import new_folder
from geocomm.core.settings import flat_fields
from geocomm.core.site import UNNAMED_SITE
from geocomm.core.typed_torch import all_gather_object
from geocomm.core.units import count_text
from geocomm.data.run_sequences import dealt_sequences, share_sequences
from geocomm.group.membership.collective_verdict import agree, together
from geocomm.metrics.events import EventReader, events
from geocomm.train.export.export_record import ExportRecord, TrainedBy, read_record
from geocomm.train.export.hf_folder import HfModel, finish_folder, write_hf_files
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.run_text import read_log
from geocomm.train.export.weights import DTYPES, LazyWeights
from geocomm.train.loop.config_text import format_config
from geocomm.train.loop.engine import TrainedModel, create_engine, create_model, set_learning_rate
from geocomm.train.loop.preflight import Agreed
from geocomm.train.loop.train_checkpoint import Progress, Restored, RunCheckpoints
from geocomm.train.loop.train_loop import StopRequest, TrainLoop, effective_codec
from geocomm.train.runs.run_folder import RunFolder, complete_checkpoints
from geocomm.train.runs.run_log import RunLog
from geocomm.train.runs.run_tracking import RunTracking


class GatheredWeights(LazyWeights):
    """The weights of an engine on the CPU, each gathered when it is asked for.

    ZeRO 3 gathers over all ranks that share a weight. So they all ask for the same ones in the same order, which was
    told before: the one that wants them reads them, and all call `rest`.
    """

    def __init__(self, module: torch.nn.Module, order: Sequence[str]) -> None:
        self._tensors: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
        self._order = iter(order)
        super().__init__({name: partial(self._read, name) for name in self._tensors})

    def _read(self, name: str) -> torch.Tensor:
        expected = next(self._order)
        if name != expected:
            raise RuntimeError(f"{name} is read where {expected} was told")
        return self._gather(name)

    def rest(self) -> None:
        """Take part in what was told and not read."""
        for name in self._order:
            self._gather(name)

    def _gather(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        if not hasattr(tensor, "ds_id"):
            return tensor.detach().cpu()
        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().to("cpu", copy=True)


def export_run(agreed: Agreed, trained: TrainedModel, step: int, *, renew: bool) -> str | None:
    """Write the folder; what to tell the user: what was written, and the command for it. Collective; BadInput on all
    ranks or none.

    renew: also where there is one of this step.
    """
    config, place, local = agreed.config, agreed.place, trained.local
    folder = RunFolder(config.output_dir.expanduser())
    if config.export.format == "none":
        saved = complete_checkpoints(folder.checkpoints)
        return f"export the model: geocomm export {config.output_dir} my-model" if saved else None
    wanted = [renew or (place.rank == 0 and not _is_exported(folder.export, step))]
    dist.broadcast_object_list(wanted, src=0)
    if not wanted[0]:
        return f"exported already; serve it: geocomm serve {folder.export}"
    dtype = DTYPES[config.export_dtype()]
    error: str | None = None
    line: str | None = None
    with contextlib.nullcontext() if local is None else local.anchor():
        if place.rank == 0 or _gathers_with_rank_0(trained):
            layout = OriginalLayout(agreed.model_config, dtype)
            module: Any = trained.engine.module
            weights = GatheredWeights(module, layout.sources)
            try:
                if place.rank == 0:
                    model = HfModel(agreed.model_config, weights, layout, dtype, config.data.tokenizer)
                    line = _write(folder, agreed, model, step)
            except BadInput as failure:
                error = f"the model was trained, but not exported: {failure}"
            weights.rest()
    agree(place, error)
    return line


def _is_exported(out: Path, step: int) -> bool:
    try:
        record = read_record(out)
    except BadInput:
        return False
    return record is not None and record.source.step == step


def _gathers_with_rank_0(trained: TrainedModel) -> bool:
    """Whether this rank has a part of what rank 0 writes."""
    if not trained.engine.zero_optimization_partition_weights():
        return False
    return trained.local is None or 0 in trained.local.sites.own


def _write(run: RunFolder, agreed: Agreed, model: HfModel, step: int) -> str:
    exported = agreed.config.export_dtype()
    held_out = read_log(run, step).held_out
    with new_folder(run.export, replace=True) as folder:
        files = write_hf_files(folder, model)
        record = ExportRecord(
            format="hf",
            geocomm=__version__,
            source=_trained_by(agreed, step),
            model_type=model.hf_config.model_type,
            dtype=exported,
            parameters=model.layout.parameters,
            data=agreed.data.fingerprint,
            held_out=held_out,
            held_out_reason=None if held_out is not None else "the run did not evaluate after its last step",
            verify=None,
            files={},
        )
        record = finish_folder(folder, record, files)
    size = sum(file.bytes for file in record.files.values()) / 1e6
    out = run.export
    return f"exported to {out} (hf, {exported}, {size:.1f} MB); serve it: geocomm serve {out}"


def _trained_by(agreed: Agreed, step: int) -> TrainedBy:
    config = agreed.config
    return TrainedBy(
        path=str(config.output_dir),
        step=step,
        world_size=agreed.place.world_size,
        sites=agreed.sites,
        zero_stage=config.training.zero_stage,
        precision=config.training.precision,
        sync_mode=config.sync.mode,
        sync_preset=config.sync.preset if config.sync.mode == "local" else None,
        sync_codec=config.sync.codec,
        codec=effective_codec(config),
    )


def train_session(agreed: Agreed) -> int:
    """Train; the exit code. Collective. BadInput comes on all ranks or none."""
    config, place = agreed.config, agreed.place
    trained = create_engine(
        config, together(place, lambda: create_model(config, agreed.model_config)), elastic=agreed.elastic
    )
    folder = RunFolder(config.output_dir.expanduser())
    events.identify(place.rank, place.site)
    checkpoints = None
    if config.checkpoint.saves() or agreed.resume_step is not None:
        checkpoints = RunCheckpoints(
            trained,
            place,
            folder.checkpoints,
            config.checkpoint.keep,
            agreed.manifest(),
            data_state=agreed.data.state,
            elastic=agreed.elastic,
        )
    restored = Restored(Progress(), place.world_size)
    if checkpoints is not None and agreed.resume_step is not None:
        restored = checkpoints.restore(agreed.resume_step)
    progress = restored.progress
    if agreed.elastic and trained.local is not None:
        set_learning_rate(trained.engine, 0.0)  # a checkpoint's is of its step
        handle = trained.local.begin(progress.step)
        # Not by steps: another site may have made more, and this one may have had other batches.
        progress = Progress(handle.run_step, handle.site_tokens // agreed.data.sequence_length)
        if (deals := handle.deals) is not None:
            data = together(place, lambda: dealt_sequences(config.data, agreed.data, deals, place.site))
            agreed = replace(agreed, data=data)
    if not agreed.elastic:
        share_sequences(agreed.data, agreed.batches, restored.data_state, _of_all, progress.consumed)
        agreed.data.require(0, config.evaluation.runs())
    anew = agreed.elastic or agreed.resume_step is None or restored.of_local
    if anew or restored.ranks != place.world_size:
        # Draws during training differ by rank, do not depend on how the model was built, and do not repeat.
        site = zlib.crc32(place.site.encode()) if agreed.elastic else 0
        torch.manual_seed(config.seed + 1 + place.rank + progress.consumed + site)

    def open_log() -> RunLog:
        tracking, steps = None, config.training.steps
        if place.rank == 0:
            folder.config.write_text(format_config(config), encoding="utf-8")
            if config.logging.trackers:
                fields = flat_fields(config.model_dump(mode="json"))
                tracking = RunTracking(folder, fields, steps, config.logging.every_steps)
        reader = EventReader(events)
        return RunLog(folder, config.logging, steps, progress.step, place.rank, reader, tracking)

    with together(place, open_log) as log:
        module: Any = trained.engine.module
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters())
        start = _start_entry(agreed, restored, progress, parameters)
        together(place, lambda: log.write("start", start))
        log.say(_start_line(agreed, start))
        if progress.step >= config.training.steps:
            other = "begin another run" if agreed.elastic else "take another output_dir"
            log.say(
                f"already at step {progress.step} of {config.training.steps}: nothing is left to train; raise "
                f"training.steps to go on, or {other}"
            )
        if restored.lost_feedback:
            lost = ", ".join(map(str, restored.lost_feedback))
            log.say(
                f"no machine has the residuals of ranks {lost} of the checkpoint: what the codec owed there is lost"
            )
        if restored.anchor_only:
            log.say(
                "the checkpoint is not of local steps between these sites: they begin anew from its weights, without "
                "outer momentum, residuals and weights of the sites"
            )
        if restored.of_local:
            log.say("the checkpoint is of local steps: per-step training begins from what its sites shared")
        loop = TrainLoop(agreed, trained, checkpoints, log)
        stop = StopRequest()
        begun()
        with stop.listening():
            progress = loop.run(progress, stop)
        end = {"step": progress.step, "complete": progress.step >= config.training.steps}
        # Also a barrier: nobody closes connections that another rank still reads from.
        together(place, lambda: log.write("end", end))
        if not end["complete"]:
            log.say(f"stopped after step {progress.step} of {config.training.steps}")
            return 128 + (stop.signal or 15)
        renew = progress.step > restored.progress.step or agreed.elastic
        if line := export_run(agreed, trained, progress.step, renew=renew):
            log.say(line)
    return 0


def _of_all(own: Any) -> list[Any]:
    """What each rank has, by rank. Collective."""
    told = [own] * dist.get_world_size()
    all_gather_object(told, own)
    return told


def _start_entry(agreed: Agreed, restored: Restored, progress: Progress, parameters: int) -> dict[str, Any]:
    return {
        "step": progress.step,
        "consumed": progress.consumed,
        "resumed": agreed.resume_step is not None,
        "ranks_before": restored.ranks,
        "backend": agreed.config.distributed.backend,
        "codec": effective_codec(agreed.config),
        "device": agreed.device,
        "sites": agreed.sites,
        "parameters": parameters,
        "train_sequences": agreed.data.train_count,
        "held_out_sequences": agreed.data.held_out_count,
        "config": agreed.config.model_dump(mode="json"),
    }


def _start_line(agreed: Agreed, start: dict[str, Any]) -> str:
    training = agreed.config.training
    begin = f"resuming after step {start['step']}" if start["resumed"] else "starting"
    if agreed.elastic:
        begin = f"this site begins after step {start['step']} of the run"
    if start["ranks_before"] != agreed.place.world_size:
        begin += f" of {count_text(start['ranks_before'], 'rank')}"
    codec = f" codec {start['codec']}" if start["codec"] else ""
    sync = agreed.config.sync
    codec += f", gradients {sync.codec}," if agreed.config.reduces_gradients else ""
    codec += f", local steps {sync.preset}," if sync.mode == "local" else ""
    return (
        f"{begin}: {start['parameters'] / 1e6:.2f}M parameters, {_ranks_text(agreed.sites)}, "
        f"{start['backend']}{codec} on {start['device']}, ZeRO-{training.zero_stage} {training.precision}"
    )


def _ranks_text(ranks_of_site: Mapping[str, int]) -> str:
    """`1 rank`, `2 ranks at site rome`, `3 ranks at sites rome (2), oslo (1)`."""
    total = count_text(sum(ranks_of_site.values()), "rank")
    if len(ranks_of_site) > 1:
        return f"{total} at sites {', '.join(f'{site} ({ranks})' for site, ranks in ranks_of_site.items())}"
    (site,) = ranks_of_site
    return total if site == UNNAMED_SITE else f"{total} at site {site}"
