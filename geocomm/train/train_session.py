"""A run inside of its process group: engine, checkpoints, log and loop. Imports torch and deepspeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from geocomm.train.engine import create_engine, create_model
from geocomm.train.model_factory import model_identity
from geocomm.train.packing import PackedSequences
from geocomm.train.train_checkpoint import Progress, Restored, RunCheckpoints, together
from geocomm.train.train_config import RunConfig
from geocomm.train.train_launch import Place
from geocomm.train.train_log import RunLog
from geocomm.train.train_loop import StopRequest, TrainLoop, effective_codec


@dataclass(frozen=True)
class Agreed:
    """What the ranks found equal or settled before the process group: see `preflight`. `sites`: ranks by site name."""

    config: RunConfig
    place: Place
    device: str
    resume_step: int | None
    sites: dict[str, int]
    data: PackedSequences
    model_config: PreTrainedConfig

    @property
    def shard_ranks(self) -> int:
        """Over how many ranks ZeRO cuts what it shards."""
        return self.sites[self.place.site] if self.config.shards_in_sites() else self.place.world_size


def train_session(agreed: Agreed) -> int:
    """Train; the exit code. Collective. BadInput comes on all ranks or none."""
    config, place, data = agreed.config, agreed.place, agreed.data
    engine, sync = create_engine(config, together(place, lambda: create_model(config, agreed.model_config)))
    output_dir = config.output_dir.expanduser()
    checkpoints = None
    if config.checkpoint.saves() or agreed.resume_step is not None:
        checkpoints = RunCheckpoints(engine, sync, place, output_dir / "checkpoints", config.checkpoint.keep)
    restored = Restored(Progress(), place.world_size)
    if agreed.resume_step is not None:
        assert checkpoints is not None
        restored = checkpoints.restore(agreed.resume_step)
    progress = restored.progress
    if agreed.resume_step is None or restored.ranks != place.world_size:
        # Draws during training differ by rank, do not depend on how the model was built, and do not repeat.
        torch.manual_seed(config.seed + 1 + place.rank + progress.consumed)

    def open_log() -> RunLog:
        return RunLog(output_dir, config.logging, config.training.steps, progress.step, place.rank)

    with together(place, open_log) as log:
        parameters = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
        start = _start_entry(agreed, restored, parameters)
        together(place, lambda: log.write("start", start))
        log.say(_start_line(agreed, start))
        if restored.lost_feedback:
            lost = ", ".join(map(str, restored.lost_feedback))
            log.say(
                f"no machine has the residuals of ranks {lost} of the checkpoint: what the codec owed there is lost"
            )
        loop = TrainLoop(config, place, agreed.sites, engine, sync, data, checkpoints, _manifest(agreed), log)
        stop = StopRequest()
        with stop.listening():
            progress = loop.run(progress, stop)
        end = {"step": progress.step, "complete": progress.step >= config.training.steps}
        # Also a barrier: nobody closes connections that another rank still reads from.
        together(place, lambda: log.write("end", end))
        if not end["complete"]:
            log.say(f"stopped after step {progress.step} of {config.training.steps}")
            return 128 + (stop.signal or 15)
    return 0


def _manifest(agreed: Agreed) -> dict[str, Any]:
    """What a checkpoint must have in common with the run that resumes it."""
    return {
        "model": model_identity(agreed.model_config),
        "data": agreed.data.fingerprint,
        "world_size": agreed.place.world_size,
        "zero_stage": agreed.config.training.zero_stage,
        "precision": agreed.config.training.precision,
        "shard_ranks": agreed.shard_ranks,
        "feedback": agreed.config.sync.codec is not None,
    }


def _start_entry(agreed: Agreed, restored: Restored, parameters: int) -> dict[str, Any]:
    return {
        "step": restored.progress.step,
        "resumed": agreed.resume_step is not None,
        "ranks_before": restored.ranks,
        "backend": agreed.config.distributed.backend,
        "codec": effective_codec(agreed.config),
        "device": agreed.device,
        "sites": agreed.sites,
        "parameters": parameters,
        "train_sequences": len(agreed.data.train_numbers),
        "held_out_sequences": len(agreed.data.held_out_numbers),
        "config": agreed.config.model_dump(mode="json"),
    }


def _start_line(agreed: Agreed, start: dict[str, Any]) -> str:
    training = agreed.config.training
    begin = f"resuming after step {start['step']}" if start["resumed"] else "starting"
    if start["ranks_before"] != agreed.place.world_size:
        begin += f" of {start['ranks_before']} ranks"
    sites = ", ".join(f"{site} ({ranks})" for site, ranks in agreed.sites.items())
    codec = f" codec {start['codec']}" if start["codec"] else ""
    codec += f", gradients {agreed.config.sync.codec}," if agreed.config.sync.codec else ""
    return (
        f"{begin}: {start['parameters'] / 1e6:.2f}M parameters, {agreed.place.world_size} ranks on sites {sites}, "
        f"{start['backend']}{codec} on {start['device']}, ZeRO-{training.zero_stage} {training.precision}"
    )
