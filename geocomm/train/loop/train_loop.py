"""The training loop. Imports torch and deepspeed."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Generator, Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from geocomm.core.options import from_environment
from geocomm.core.units import count_text
from geocomm.data.corpus.packing import Sequences
from geocomm.data.site_deals import SiteLeft
from geocomm.group.membership.collective_verdict import agree
from geocomm.metrics import schema
from geocomm.metrics.events import events
from geocomm.metrics.training import report_step
from geocomm.metrics.training import training as reported
from geocomm.train.loop.comm_meter import ROW, StepMeter, StepReducer, Wants
from geocomm.train.loop.engine import TrainedModel, apply_gradients, loss_scale, set_learning_rate
from geocomm.train.loop.preflight import Agreed
from geocomm.train.loop.site_talk import SiteTalk
from geocomm.train.loop.train_checkpoint import Progress, RunCheckpoints
from geocomm.train.loop.train_config import RunConfig
from geocomm.train.models.model_factory import held_out_sums
from geocomm.train.runs.run_log import RunLog
from geocomm.train.runs.step_entry import RunFacts, sites_entry, step_entry


class StopRequest:
    """Set by the first SIGTERM or SIGINT; the second one acts as usual."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
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
        self._data, self._seat = agreed.data, agreed.seat
        self._trained = trained
        self._checkpoints = checkpoints
        self._log = log
        self._meter = StepMeter(config.distributed.backend)
        device: Any = trained.engine.device
        own_site = {place.site: agreed.sites[place.site]}
        self._talk: StepReducer | SiteTalk = StepReducer(agreed.sites, place.site, device)
        if trained.local is not None and not agreed.elastic:
            self._talk = SiteTalk(trained.local, place.site, device)
        self._elastic = agreed.elastic
        self._facts = RunFacts(
            site=place.site,
            ranks_of_site=agreed.sites if trained.local is None else own_site,
            tokens_per_rank=config.global_batch(1) * agreed.data.sequence_length,
            backend=config.distributed.backend,
            codec=effective_codec(config),
            counters=schema.names([one for one in schema.COUNTERS if not one.is_time]),
            times=schema.names([one for one in schema.COUNTERS if one.is_time]),
            counts=self._meter.has_counters,
        )
        self._ranks_of_site = agreed.sites
        self._tokens_of_site = {site: batch * agreed.data.sequence_length for site, batch in agreed.batches.items()}
        self._rounds_before: Mapping[str, Any] = {}
        self._was_late = False
        self._unsent: tuple[dict[str, Any], list[float]] | None = None
        self._log_error: str | None = None
        self._last_save = time.monotonic()
        self._saved_step = -1

    def run(self, progress: Progress, stop: StopRequest) -> Progress:
        """Train; returns where the run stands at its end or when some rank was asked to stop."""
        config = self._config
        self._saved_step = progress.step
        if self._elastic and progress.step >= config.training.steps:
            self._finish()
        while progress.step < config.training.steps:
            before = progress.step
            try:
                progress, wants = self._one_step(progress, stop)
            except SiteLeft:  # while it waited for data
                self._save(progress)
                break
            last = progress.step >= config.training.steps
            if last:
                self._finish()
            if _due(before, progress.step, config.evaluation.every_steps) or (last and config.evaluation.at_end):
                self._evaluate(progress)
            save_due = wants.save or _due(before, progress.step, config.checkpoint.every_steps)
            if save_due or wants.stop or (last and config.checkpoint.at_end):
                self._save(progress)
            if wants.stop:  # the agent of a site of an elastic run has said already that it leaves
                break
        self._flush()
        agree(self._place, self._log_error)
        return progress

    def _finish(self) -> None:
        if self._trained.local is not None and not self._trained.local.is_finished:
            self._trained.local.finish()

    def _one_step(self, progress: Progress, stop: StopRequest) -> tuple[Progress, Wants]:
        """One optimizer step; also what ranks ask for after it."""
        config, trained, place = self._config, self._trained, self._place
        engine, training = trained.engine, config.training
        rate = config.learning_rate(progress.step)
        if trained.local is not None:
            trained.local.before_step(progress.step)
        set_learning_rate(engine, rate)
        skipped = engine.skipped_steps
        self._meter.start()
        loss_sum = torch.zeros((), dtype=torch.float64, device=engine.device)
        last = training.gradient_accumulation_steps - 1
        for micro_step in range(last):
            loss = self._forward(progress, micro_step)
            loss_sum += loss.detach()
            engine.backward(loss)
            apply_gradients(trained)
        loss = self._forward(progress, last)
        loss_sum += loss.detach()
        step = progress.step + 1
        row = self._unsent[1] if self._unsent else [0.0] * len(ROW)
        mean = loss_sum / training.gradient_accumulation_steps
        self._talk.launch(step, mean, row, self._wants(stop))
        engine.backward(loss)
        norm = apply_gradients(trained)
        totals = self._talk.finish(
            meets=step == training.steps or _due(progress.step, step, config.checkpoint.every_steps)
        )
        if trained.local is not None and self._elastic:
            step = trained.local.run_step  # another site may be further
        self._emit(totals.rows)
        entry = {
            "step": step,
            "loss": totals.loss,
            "lr": rate,
            "grad_norm": norm,
            "loss_scale": loss_scale(engine),
            "skipped": engine.skipped_steps > skipped,
        }
        if trained.sync is not None:
            entry["sync"] = trained.sync.summary()
        if trained.local is not None:
            entry["sync"] = trained.local.summary()
            self._tell_trouble(step, entry["sync"])
        row = self._meter.row()
        self._unsent = (entry, row)
        report_step(
            step,
            loss=totals.loss,
            learning_rate=rate,
            grad_norm=norm,
            tokens=self._facts.tokens_per_rank,
            of_steps=training.steps,
            input_seconds=row[ROW.index("input_seconds")],
            checkpoint_seconds=row[ROW.index("checkpoint_seconds")],
        )
        if totals.wants.failed:
            agree(place, self._log_error)
        return Progress(step, progress.consumed + self._seat.whole), totals.wants

    def _forward(self, progress: Progress, micro_step: int) -> torch.Tensor:
        """The loss of this rank's next micro batch."""
        seat, engine = self._seat, self._trained.engine
        with self._meter.input():
            rows = self._data.micro_batch(
                self._data.position(progress.consumed) + seat.first,
                micro_step,
                seat.rank,
                seat.ranks,
                self._config.training.micro_batch_size,
            )
            inputs = torch.from_numpy(rows).to(engine.device)
        return engine(input_ids=inputs, labels=inputs).loss

    def _wants(self, stop: StopRequest) -> Wants:
        """What this rank asks for now."""
        every = self._config.checkpoint.every_minutes * 60
        return Wants(
            save=self._place.rank == 0 and every > 0 and time.monotonic() - self._last_save >= every,
            stop=stop.signal is not None,
            failed=self._log_error is not None,
        )

    def _flush(self) -> None:
        """Write the last step's entry, whose counters no later step carries. Collective."""
        if self._unsent is None:
            return
        totals = self._talk.flush(self._unsent[1], Wants(failed=self._log_error is not None))
        self._emit(totals.rows)
        if totals.wants.failed:
            agree(self._place, self._log_error)

    def _emit(self, rows: dict[str, dict[str, float]]) -> None:
        """Write the entry of the step before, which `rows` complete, and what the sites told."""
        if self._unsent is not None:
            step, own = self._unsent
            self._unsent = None
            entry = step_entry(self._facts, step, own[0], rows)
            self._guard_log(lambda: self._log.step(entry))
        if isinstance(self._talk, SiteTalk):
            for report in self._talk.take_reports():
                if sites := sites_entry(self._facts, self._ranks_of_site, self._tokens_of_site, report.sites):
                    self._guard_log(functools.partial(self._log.write, "sites", sites))

    def _tell_trouble(self, step: int, rounds: Mapping[str, Any]) -> None:
        """A line where rounds began to be late, or this site's weights were not finite."""
        before, self._rounds_before = self._rounds_before, rounds
        if not before or rounds["rounds"] is None or before["rounds"] is None:
            return
        late = rounds["held_back"] > before["held_back"]
        if late and self._elastic:
            self._log.say(f"step {step}: a round closed without this site; what it has learned is in its next delta")
        elif late and not self._was_late:
            age = rounds["oldest_in_flight"]
            self._log.say(
                f"step {step}: the result of a round is late ({count_text(age, 'step')} by now); training goes on"
            )
        self._was_late = late
        if rounds["rounds_not_finite"] > before["rounds_not_finite"]:
            self._log.say(f"step {step}: weights of site {self._place.site} are not finite and left out of a round")

    def _guard_log(self, write: Callable[[], None]) -> None:
        """A full disk is seen by rank 0 alone: keep the error for the next vote."""
        try:
            write()
        except OSError as error:
            self._log_error = f"the metrics of the run cannot be written: {error}"

    def _evaluate(self, progress: Progress) -> None:
        self._flush()
        begin = time.perf_counter()
        local = self._trained.local
        world: Any = dist.group.WORLD
        with contextlib.nullcontext() if local is None else local.anchor():
            loss, count = _held_out_loss(
                self._trained.engine,
                self._data,
                world if local is None else local.sites.inside,  # each site for itself: no line holds it up
                self._config.evaluation.max_sequences,
                self._config.training.micro_batch_size,
            )
        reported.evaluated(loss)
        entry = {
            "step": progress.step,
            "loss": loss,
            "sequences": count,
            "seconds": time.perf_counter() - begin,
        }
        self._guard_log(lambda: self._log.write("eval", entry))
        self._log.say(f"step {progress.step}: held-out loss {loss:.4f} over {count_text(count, 'sequence')}")

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
        self._meter.wrote_checkpoint(seconds)
        if self._place.local_rank == 0:  # one of those who wrote it, on each machine
            events.record("checkpoint", step=progress.step, path=str(path), seconds=seconds)
        self._guard_log(self._log.note_events)
        self._log.say(f"step {progress.step}: checkpoint {path}")


def _due(before: int, step: int, every: int) -> bool:
    """Whether a multiple of `every` is among the steps after `before`, up to `step`."""
    return every > 0 and step // every > before // every


def effective_codec(config: RunConfig) -> str | None:
    """The codec of traffic between sites; None where the backend has none."""
    if config.distributed.backend != "geocomm":
        return None
    return config.distributed.codec or from_environment("codec")


def _held_out_loss(
    engine: DeepSpeedEngine, data: Sequences, group: dist.ProcessGroup, limit: int, batch_size: int
) -> tuple[float, int]:
    """Mean loss per token over the first `limit` held-out sequences, and how many there were. Collective over `group`,
    whose ranks share the work."""

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        return engine(input_ids=rows, labels=rows).loss

    engine.eval()
    try:
        sums = held_out_sums(loss_of, data, group.rank(), group.size(), limit, batch_size, engine.device)
    finally:
        engine.train()
    dist.all_reduce(sums, group=group)
    loss_sum, count = sums.tolist()
    return loss_sum / count, int(count)
