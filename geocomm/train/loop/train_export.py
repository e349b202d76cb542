"""What a complete run leaves for other programs: the folder `export` of its `output_dir`.

Imports torch and deepspeed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from geocomm._version import __version__
from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import new_folder
from geocomm.group.membership.collective_verdict import agree
from geocomm.train.export.export_record import ExportRecord, TrainedBy, read_record
from geocomm.train.export.hf_folder import HfModel, finish_folder, write_hf_files
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.run_text import read_log
from geocomm.train.export.weights import DTYPES, LazyWeights
from geocomm.train.loop.agreed_run import Agreed
from geocomm.train.loop.engine import TrainedModel
from geocomm.train.loop.train_loop import effective_codec
from geocomm.train.runs.checkpoint_folder import complete_checkpoints
from geocomm.train.runs.run_folder import RunFolder


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
