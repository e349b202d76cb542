"""What the folder of a run tells about its text and its losses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from geocomm.core.bad_input import BadInput, first_problem, problem_text
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import Sequences
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.run_sequences import held_out_sequences
from geocomm.train.export.export_record import HeldOut
from geocomm.train.runs.run_folder import RunFolder


@dataclass(frozen=True)
class HeldOutText:
    """The held-out sequences of a run, as its evaluation divides them."""

    data: Sequences
    limit: int
    """The most sequences that the run evaluates."""
    batch_size: int
    ranks: int
    """The number of ranks that share the work."""

    @property
    def sequences(self) -> int:
        """How many it evaluates."""
        return min(self.limit, self.data.held_out_count)


@dataclass(frozen=True)
class Logged:
    """What the log of a run tells."""

    held_out: HeldOut | None
    """The losses after a step."""
    codec: str | None
    """The codec of traffic between sites."""


def read_run_config(folder: RunFolder) -> dict[str, Any]:
    """config.yaml of a run as plain values; empty where there is none. Raises BadInput."""
    try:
        values = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{folder.config} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{folder.config} holds no configuration of a run")
    return values


def held_out_text(config: dict[str, Any], manifest: dict[str, Any]) -> HeldOutText:
    """The held-out text of the run. Raises BadInput where it is not here as the run had it."""
    if not config:
        raise BadInput("the configuration of the run is not beside its checkpoints")
    try:
        settings = DataConfig.model_validate(config["data"])
        limit, batch_size = config["evaluation"]["max_sequences"], config["training"]["micro_batch_size"]
        seed = config["seed"]
    except KeyError as error:
        raise BadInput(f"the run's configuration has no {error}") from None
    except ValidationError as error:
        raise BadInput(f"the run's configuration: data.{problem_text(first_problem(error))}") from None
    tokenizer, state = load_tokenizer(settings.tokenizer), manifest.get("data_state", {})
    data = held_out_sequences(settings, tokenizer, seed, list(manifest["sites"]), state)
    if data.fingerprint != manifest["data"]:
        raise BadInput("the text here is not that of the run")
    if not data.held_out_count:
        raise BadInput("the run holds no text out")
    # With local steps the site of rank 0, which is the first, evaluates by itself.
    sites: dict[str, int] = manifest["sites"]
    ranks = next(iter(sites.values())) if manifest.get("sync_mode") == "local" else manifest["world_size"]
    return HeldOutText(data, limit, batch_size, ranks)


def read_log(folder: RunFolder, step: int) -> Logged:
    """What the run logged, its last words where it did so several times; nothing where there is no log."""
    held_out: HeldOut | None = None
    codec: str | None = None
    try:
        lines = folder.metrics.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            continue
        if entry["kind"] == "start":
            codec = entry["codec"]
        elif entry["kind"] == "eval" and entry["step"] == step:
            held_out = HeldOut(sequences=entry["sequences"], run_loss=entry["loss"])
    return Logged(held_out, codec)
