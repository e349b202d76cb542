"""One training run from configuration to exit code, on this rank."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from geocomm.train.checkpoint_folder import complete_checkpoints, free_bytes
from geocomm.train.config_text import load_config
from geocomm.train.packing import PackedSequences
from geocomm.train.preflight import Plan, decide, record_for, shared_fields, visible_gpus
from geocomm.train.text_tokenizer import load_tokenizer
from geocomm.train.token_store import load_tokens
from geocomm.train.train_config import RunConfig
from geocomm.train.train_errors import EXIT_BAD_INPUT, BadInput
from geocomm.train.train_launch import Place, Rendezvous, find_place
from geocomm.train.train_log import METRICS

# fp32 weights and the two moments of Adam, which every precision and ZeRO stage saves in one form or another.
_CHECKPOINT_BYTES_PER_PARAMETER = 12
_DEFAULT_STARTUP_TIMEOUT_SECONDS = 1800.0


def run(config_path: Path | None, assignments: Sequence[str]) -> int:
    """Train as configured; the exit code: 0, 2 after a line on stderr about bad input, 128 + n after signal n."""
    try:
        place = find_place(os.environ)
    except BadInput as error:
        return _refuse(str(error), local_rank=0)
    rank_run = _RankRun(place)
    try:
        return rank_run.run(config_path, assignments)
    except BadInput as error:
        return _refuse(str(error), place.local_rank)


def _refuse(message: str, local_rank: int) -> int:
    """The one line per machine."""
    if local_rank == 0:
        print(f"geocomm train: {message}", file=sys.stderr, flush=True)
    return EXIT_BAD_INPUT


def _check_backend(config: RunConfig, rank: int) -> dict[str, Any] | None:
    """Refuse what the geocomm backend would refuse later, when other ranks wait for this one; this rank's Presence,
    None with another backend."""
    if config.distributed.backend != "geocomm":
        return None
    from geocomm.codec import collective_codec
    from geocomm.errors import InvalidArgumentError
    from geocomm.one_site import own_presence
    from geocomm.options import Options
    from geocomm.topology import own_address

    try:
        options = Options(codec=config.distributed.codec) if config.distributed.codec else Options()
        options.validate()
        collective_codec(options.codec)
        if config.sync.codec is not None:
            config.sync.hook_settings().validate()
        presence = own_presence(rank, options, options.address or own_address())
    except InvalidArgumentError as error:
        raise BadInput(str(error)) from None
    if config.sync.codec is not None:
        presence.given.append("sync.codec")
    return dataclasses.asdict(presence)


class _RankRun:
    """State of one rank between preparation and training."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._config: RunConfig | None = None
        self._data: PackedSequences | None = None
        self._model_config: Any = None

    def run(self, config_path: Path | None, assignments: Sequence[str]) -> int:
        record = record_for(self._place, lambda: self._prepare(config_path, assignments))
        timeout = self._config.distributed.startup_timeout_seconds if self._config else _DEFAULT_STARTUP_TIMEOUT_SECONDS
        rendezvous = Rendezvous(self._place, timeout)
        records = rendezvous.exchange(record)
        try:
            plan = decide(records, self._config)
        except BadInput:
            rendezvous.linger()
            raise
        sites: dict[str, int] = {}
        for each in records:
            sites[each["site"]] = sites.get(each["site"], 0) + 1
        return self._train(plan, sites)

    def _prepare(self, config_path: Path | None, assignments: Sequence[str]) -> dict[str, Any]:
        """Everything that can be checked without the other ranks."""
        config = load_config(config_path, assignments)
        self._config = config
        presence = _check_backend(config, self._place.rank)
        root = config.output_dir.expanduser() / "checkpoints"
        has_run = (root.parent / METRICS).exists() or root.exists()
        if config.checkpoint.resume == "never" and has_run:
            raise BadInput(
                f"{root.parent} already holds a run and checkpoint.resume is 'never'; use another output_dir"
            )
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"output_dir {root.parent} cannot be made: {error}") from None
        tokenizer = load_tokenizer(config.data.tokenizer)
        data = PackedSequences(
            load_tokens(config.data, tokenizer), config.data.sequence_length, config.data.held_out_fraction, config.seed
        )
        evaluates = config.evaluation.at_end or config.evaluation.every_steps > 0
        data.require(config.global_batch(self._place.world_size), evaluates)
        self._data = data
        from geocomm.train import model_factory

        self._model_config = model_factory.model_config(config.model, config.data, tokenizer)
        if config.checkpoint.saves():
            self._require_space(root, model_factory.parameter_count(self._model_config))
        return {
            "fields": shared_fields(config),
            "data": data.fingerprint,
            "model": model_factory.model_identity(self._model_config),
            "gpus": visible_gpus(),
            "presence": presence,
            "checkpoints": {str(step): manifest for step, manifest in complete_checkpoints(root).items()},
        }

    def _require_space(self, root: Path, parameters: int) -> None:
        """At least this machine's share of one checkpoint must fit, or the run would be lost at its first one."""
        share = parameters * _CHECKPOINT_BYTES_PER_PARAMETER * self._place.local_world_size // self._place.world_size
        free = free_bytes(root)
        if free < share:
            raise BadInput(
                f"{root} has {free / 1e6:.0f} MB free, but one checkpoint takes about {share / 1e6:.0f} MB here: free "
                f"space, use another output_dir, or turn checkpoints off"
            )

    def _train(self, plan: Plan, sites: dict[str, int]) -> int:
        config, data, place = self._config, self._data, self._place
        assert config is not None
        assert data is not None
        os.environ["DS_ACCELERATOR"] = plan.device
        # DeepSpeed compiles an operator with the ninja of this environment, which need not be activated.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        if config.distributed.codec is not None:
            os.environ["GEOCOMM_CODEC"] = config.distributed.codec
        import deepspeed
        import torch
        import torch.distributed as dist

        from geocomm.train.train_log import quiet_libraries
        from geocomm.train.train_session import Agreed, train_session

        quiet_libraries(place.rank)
        if plan.device == "cuda":
            torch.cuda.set_device(place.local_rank)
        with contextlib.redirect_stdout(sys.stderr):  # it prints what it built
            deepspeed.init_distributed(
                dist_backend=config.distributed.backend,
                auto_mpi_discovery=False,
                timeout=timedelta(seconds=config.distributed.timeout_seconds),
            )
        agreed = Agreed(config, place, plan.device, plan.resume_step, sites, data, self._model_config)
        try:
            return train_session(agreed)
        except BadInput:
            raise
        except BaseException as error:
            traceback.print_exc()
            # The other ranks may be waiting inside a collective: a normal exit would wait for them in turn.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130 if isinstance(error, KeyboardInterrupt) else 1)
        finally:
            dist.destroy_process_group()
