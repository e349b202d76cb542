"""The training loop. Imports torch and deepspeed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from geocomm.core.environment import codec_name
from geocomm.membership.collective_verdict import agree
from geocomm.metrics.events import events
from geocomm.runs.run_log import RunLog
from geocomm.runs.step_entry import RunFacts, step_entry
from geocomm.train.agreed_run import Agreed
from geocomm.train.comm_meter import ROW, StepMeter, StepReducer, StepSum
from geocomm.train.engine import TrainedModel, apply_gradients, loss_scale, set_learning_rate
from geocomm.train.evaluation import evaluate
from geocomm.train.lr_schedule import learning_rate
from geocomm.train.train_checkpoint import Progress, RunCheckpoints
from geocomm.train.train_config import RunConfig


class StopRequest:
    """Set by the first SIGTERM or SIGINT; the second one acts as usual."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside of the block."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def handle(number: int, frame: FrameType | None) -> None:
            self.signal = number
            for each, handler in before.items():
                signal.signal(each, handler)

        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class TrainLoop:
    """Trains from a `Progress` to the configured number of steps. `run` is collective."""

    def __init__(self, agreed: Agreed, trained: TrainedModel, checkpoints: RunCheckpoints | None, log: RunLog) -> None:
        """checkpoints: None where the run saves none."""
        config, place = agreed.config, agreed.place
        self._config = config
        self._place = place
        self._data = agreed.data
        self._trained = trained
        self._checkpoints = checkpoints
        self._log = log
        self._meter = StepMeter(config.distributed.backend)
        device: Any = trained.engine.device
        self._reducer = StepReducer(list(agreed.sites), place.site, device)
        self._facts = RunFacts(
            site=place.site,
            ranks_of_site=agreed.sites,
            tokens_per_rank=config.global_batch(1) * agreed.data.sequence_length,
            backend=config.distributed.backend,
            codec=effective_codec(config),
            counters=ROW[1:-1],
            counts=self._meter.has_counters,
        )
        self._unsent: tuple[dict[str, Any], list[float]] | None = None
        self._log_error: str | None = None
        self._last_save = time.monotonic()
        self._saved_step = -1

    def run(self, progress: Progress, stop: StopRequest) -> Progress:
        """Train; returns where the run stands at its end or when some rank was asked to stop."""
        config = self._config
        self._saved_step = progress.step
        while progress.step < config.training.steps:
            progress, save_due, stopping = self._one_step(progress, stop)
            last = progress.step == config.training.steps
            if _due(progress.step, config.evaluation.every_steps) or (last and config.evaluation.at_end):
                self._evaluate(progress)
            save_due = save_due or _due(progress.step, config.checkpoint.every_steps)
            if save_due or stopping or (last and config.checkpoint.at_end):
                self._save(progress)
            if stopping:
                break
        self._flush()
        agree(self._place, self._log_error)
        return progress

    def _one_step(self, progress: Progress, stop: StopRequest) -> tuple[Progress, bool, bool]:
        """One optimizer step; also whether a timed checkpoint is due and whether some rank wants to stop."""
        config, engine, place = self._config, self._trained.engine, self._place
        training, schedule = config.training, config.schedule
        rate = learning_rate(
            progress.step,
            config.optimizer.learning_rate,
            config.warmup_steps(),
            schedule.decay_steps or training.steps,
            schedule.final_fraction,
        )
        set_learning_rate(engine, rate)
        skipped = engine.skipped_steps
        self._meter.start()
        loss_sum = torch.zeros((), dtype=torch.float64, device=engine.device)
        last = training.gradient_accumulation_steps - 1
        for micro_step in range(last):
            loss = self._forward(progress, micro_step)
            loss_sum += loss.detach()
            engine.backward(loss)
            apply_gradients(self._trained)
        loss = self._forward(progress, last)
        loss_sum += loss.detach()
        under_way = self._launch(loss_sum / training.gradient_accumulation_steps, stop)
        engine.backward(loss)
        norm = apply_gradients(self._trained)
        totals = under_way.finish()
        self._emit(totals.rows)
        progress = Progress(progress.step + 1, progress.consumed + config.global_batch(place.world_size))
        entry = {
            "step": progress.step,
            "loss": totals.loss_sum / place.world_size,
            "lr": rate,
            "grad_norm": norm,
            "loss_scale": loss_scale(engine),
            "skipped": engine.skipped_steps > skipped,
        }
        if self._trained.sync is not None:
            entry["sync"] = self._trained.sync.summary()
        self._unsent = (entry, self._meter.row())
        if totals.failed:
            agree(place, self._log_error)
        return progress, totals.save, totals.stop

    def _forward(self, progress: Progress, micro_step: int) -> torch.Tensor:
        """The loss of this rank's next micro batch."""
        place, engine = self._place, self._trained.engine
        rows = self._data.micro_batch(
            progress.consumed, micro_step, place.rank, place.world_size, self._config.training.micro_batch_size
        )
        inputs = torch.from_numpy(rows).to(engine.device)
        return engine(input_ids=inputs, labels=inputs).loss

    def _launch(self, loss: torch.Tensor, stop: StopRequest) -> StepSum:
        every = self._config.checkpoint.every_minutes * 60
        return self._reducer.launch(
            loss,
            self._unsent[1] if self._unsent else [0.0] * len(ROW),
            save=self._place.rank == 0 and every > 0 and time.monotonic() - self._last_save >= every,
            stop=stop.signal is not None,
            failed=self._log_error is not None,
        )

    def _flush(self) -> None:
        """Write the last step's entry, whose counters no later step carries. Collective."""
        if self._unsent is None:
            return
        totals = self._reducer.launch(torch.zeros(()), self._unsent[1], failed=self._log_error is not None).finish()
        self._emit(totals.rows)
        if totals.failed:
            agree(self._place, self._log_error)

    def _emit(self, rows: dict[str, dict[str, float]]) -> None:
        """Write the entry of the step before, which `rows` complete."""
        if self._unsent is None:
            return
        step, own = self._unsent
        self._unsent = None
        entry = step_entry(self._facts, step, own[0], rows)
        self._guard_log(lambda: self._log.step(entry))

    def _guard_log(self, write: Callable[[], None]) -> None:
        """A full disk is seen by rank 0 alone: keep the error for the next vote."""
        try:
            write()
        except OSError as error:
            self._log_error = f"the metrics of the run cannot be written: {error}"

    def _evaluate(self, progress: Progress) -> None:
        self._flush()
        begin = time.perf_counter()
        loss, count = evaluate(
            self._trained.engine,
            self._data,
            self._place,
            self._config.evaluation.max_sequences,
            self._config.training.micro_batch_size,
        )
        entry = {
            "step": progress.step,
            "loss": loss,
            "sequences": count,
            "seconds": time.perf_counter() - begin,
        }
        self._guard_log(lambda: self._log.write("eval", entry))
        self._log.say(f"step {progress.step}: held-out loss {loss:.4f} over {count} sequences")

    def _save(self, progress: Progress) -> None:
        self._last_save = time.monotonic()
        if self._checkpoints is None or progress.step == self._saved_step:
            return
        self._flush()
        begin = time.perf_counter()
        path = self._checkpoints.save(progress)
        self._last_save = time.monotonic()
        self._saved_step = progress.step
        seconds = time.perf_counter() - begin
        if self._place.local_rank == 0:  # one of those who wrote it, on each machine
            events.record("checkpoint", step=progress.step, path=str(path), seconds=seconds)
        self._guard_log(self._log.note_events)
        self._log.say(f"step {progress.step}: checkpoint {path}")


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def effective_codec(config: RunConfig) -> str | None:
    """The codec of traffic between sites; None where the backend has none."""
    if config.distributed.backend != "geocomm":
        return None
    return config.distributed.codec or codec_name()
