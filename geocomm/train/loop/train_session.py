"""A run inside of its process group: engine, checkpoints, log and loop. Imports torch and deepspeed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from geocomm.core.ended_by_signal import begun
from geocomm.core.settings import flat_fields
from geocomm.core.site import UNNAMED_SITE
from geocomm.core.typed_torch import all_gather_object
from geocomm.core.units import count_text
from geocomm.data.run_sequences import dealt_sequences, share_sequences
from geocomm.group.membership.collective_verdict import together
from geocomm.metrics.events import EventReader, events
from geocomm.train.loop.agreed_run import Agreed
from geocomm.train.loop.config_text import format_config
from geocomm.train.loop.engine import create_engine, create_model, set_learning_rate
from geocomm.train.loop.train_checkpoint import Progress, Restored, RunCheckpoints
from geocomm.train.loop.train_export import export_run
from geocomm.train.loop.train_loop import StopRequest, TrainLoop, effective_codec
from geocomm.train.runs.run_folder import RunFolder
from geocomm.train.runs.run_log import RunLog
from geocomm.train.runs.trackers import open_trackers


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
        trackers = None
        if place.rank == 0:
            folder.config.write_text(format_config(config), encoding="utf-8")
            trackers = open_trackers(config.logging, folder, flat_fields(config.model_dump(mode="json")))
        reader = EventReader(events)
        return RunLog(folder, config.logging, config.training.steps, progress.step, place.rank, reader, trackers)

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
