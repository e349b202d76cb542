"""Local steps of DeepSpeed engines, ZeRO 0 to 3: what torch computes with one rank per site, clocks, clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.engine_sites import DTYPES, Reference, engine_values, make_engine, train_engine
from support.harness import Ranks, hash_of, ranks_fixture
from support.local_models import adamw, make_model, values

ranks = ranks_fixture({"1+2": ["b", "a", "b"]}, trains=True)
even_ranks = ranks_fixture({"2+2": ["a", "b", "b", "a"]}, trains=True)
SETTINGS: dict[str, Any] = {
    "every": 5,
    "overlap": 2,
    "codec": "int4",
    "fragments": 3,
    "exact_below": 100,
    "deterministic": True,
}
STEPS = 13


def quick_first(*cases: tuple[int, str], quick: int = 1) -> list[Any]:
    """Stages and precisions; all but the first `quick` of them are slow tests."""
    return [pytest.param(*case, marks=[pytest.mark.slow] * (place >= quick)) for place, case in enumerate(cases)]


CASES = quick_first(
    (0, "bf16"),
    (1, "fp32"),
    (3, "bf16"),
    (0, "fp32"),
    (0, "fp16"),
    (1, "bf16"),
    (2, "fp16"),
    (3, "fp32"),
    quick=3,
)


def _site(sites: list[str]) -> str:
    return sites[dist.get_rank()]


def _run(sites: list[str], stage: int, precision: str, config: dict[str, Any]) -> tuple[list[str], dict[str, Any], str]:
    """Hashes of the anchor on the way, of the site's own masters, and of the result; the statistics; the optimizer."""
    engine = make_engine(stage, precision, **config)
    handle = local_steps(engine, engine.optimizer, LocalSettings(**SETTINGS))
    train_engine(engine, _site(sites), 0, STEPS)
    seen = []
    with handle.anchor():
        seen.append(engine_values(engine))
    seen.append(engine_values(engine))
    train_engine(engine, _site(sites), STEPS, STEPS + 3)
    handle.finish()
    seen.append(engine_values(engine))
    for masters, weights in seen:
        assert torch.equal(masters.to(DTYPES[precision]), weights)
        assert masters.dtype == torch.float32
    return [hash_of(masters) for masters, _ in seen], handle.stats(), type(engine.optimizer).__name__


def _simulated(rounds: Rounds, stage: int, precision: str) -> tuple[list[str], dict[str, Any]]:
    reference = Reference(stage, precision)
    model, seen = reference.model, []
    handle = local_steps(model, reference.optimizer, LocalSettings(**SETTINGS), rounds=rounds)
    reference.train(rounds.site, 0, STEPS)
    with handle.anchor():
        seen.append(hash_of(values(model)))
    seen.append(hash_of(values(model)))
    reference.train(rounds.site, STEPS, STEPS + 3)
    handle.finish()
    return [*seen, hash_of(values(model))], handle.stats()


def check_sites(ranks: Ranks, stage: int, precision: str, config: dict[str, Any]) -> str:
    """Returns the class of the engines' optimizer."""
    simulated = dict(zip("ab", SimulatedSites("ab").run(lambda one: _simulated(one, stage, precision)), strict=True))
    found = ranks.run(_run, ranks.sites, stage, precision, config)
    for site, (hashes, stats, _) in zip(ranks.sites, found, strict=True):
        assert hashes == simulated[site][0]
        assert stats["steps"] == STEPS + 3
        assert stats["rounds"] == simulated[site][1]["rounds"] >= 9
    return found[0][2]


@pytest.mark.parametrize(("stage", "precision"), CASES)
def test_engines_have_the_bits_of_masters_that_simulated_sites_train(ranks: Ranks, stage: int, precision: str) -> None:
    check_sites(ranks, stage, precision, {})


@pytest.mark.parametrize(
    ("stage", "config", "optimizer"),
    [(1, {"data_types": {"grad_accum_dtype": "fp32"}}, "BF16_Optimizer"), (0, {"flat": True}, "FP16_Optimizer")],
)
def test_engines_with_other_optimizers_have_the_bits_of_simulated_sites(
    ranks: Ranks, stage: int, config: dict[str, Any], optimizer: str
) -> None:
    assert check_sites(ranks, stage, "bf16", config) == optimizer


@pytest.mark.parametrize(("stage", "precision"), quick_first((2, "bf16"), (3, "fp16")))
def test_engines_at_sites_of_equal_size_have_the_bits_of_simulated_ones(
    even_ranks: Ranks, stage: int, precision: str
) -> None:
    check_sites(even_ranks, stage, precision, {})


def _clock(sites: list[str], stage: int, precision: str) -> tuple[int, int, int, int]:
    """Steps that counted; micro-batches; steps of the engine, and those that it skipped."""
    engine = make_engine(
        stage,
        precision,
        train_micro_batch_size_per_gpu=4,
        gradient_accumulation_steps=2,
        gradient_clipping=0.5,
        fp16={"enabled": precision == "fp16", "initial_scale_power": 30, "hysteresis": 1},
    )
    handle = local_steps(engine, engine.optimizer, LocalSettings(**SETTINGS))
    train_engine(engine, _site(sites), 0, 24)
    handle.finish()
    return handle.stats()["steps"], engine.micro_steps, engine.global_steps, engine.skipped_steps


@pytest.mark.parametrize(("stage", "precision"), quick_first((3, "fp16"), (0, "fp32"), (1, "bf16"), (2, "fp16")))
def test_clock_counts_neither_micro_batches_nor_steps_that_were_skipped(
    ranks: Ranks, stage: int, precision: str
) -> None:
    for counted, micro_batches, steps, skipped in ranks.run(_clock, ranks.sites, stage, precision):
        assert (micro_batches, steps) == (24, 12)
        assert counted == steps - skipped
        assert (skipped > 0) == (precision == "fp16")


def _resumed(sites: list[str], stage: int, precision: str, folder: str) -> tuple[str, str]:
    """The results of a run that went on, and of another that took over its checkpoint."""
    site, results = _site(sites), []
    path = f"{folder}/{site}"
    state: dict[str, Any] = {}
    for resumes in (False, True):
        engine = make_engine(stage, precision)
        handle = local_steps(engine, engine.optimizer, LocalSettings(**SETTINGS))
        if resumes:
            engine.load_checkpoint(path, "here")  # only rank 0 writes which one is the latest
            handle.load_state_dict(state)
        else:
            train_engine(engine, site, 0, 8)
            state = handle.state_dict()
            engine.save_checkpoint(path, "here")
        train_engine(engine, site, 8, STEPS)
        handle.finish()
        results.append(hash_of(*engine_values(engine)))
    return results[0], results[1]


@pytest.mark.parametrize(("stage", "precision"), quick_first((3, "fp32"), (0, "bf16"), (1, "bf16")))
def test_resumed_engine_has_the_bits_of_one_that_was_not_interrupted(
    ranks: Ranks, tmp_path: Path, stage: int, precision: str
) -> None:
    for whole_run, resumed in ranks.run(_resumed, ranks.sites, stage, precision, str(tmp_path)):
        assert whole_run == resumed


def _after_nan(sites: list[str], stage: int, precision: str) -> tuple[int, list[str], bool]:
    """How many parts of the state have NaN, which DeepSpeed itself would keep out; what was healed; whether the state
    is as at first then."""
    engine = make_engine(stage, precision)
    train_engine(engine, _site(sites), 0, 2)
    states = list(engine.optimizer.optimizer.state.values())
    for state in states:
        state["exp_avg"].view(-1)[:1] = torch.nan
    ill = sum(bool(state["exp_avg"].isnan().any()) for state in states)
    told = InnerOptimizers(engine.optimizer).heal()
    train_engine(engine, _site(sites), 2, 3)
    values_, _ = engine_values(engine)
    return ill, told, bool(values_.isfinite().all()) and all(int(state["step"]) == 1 for state in states)


@pytest.mark.parametrize(("stage", "precision"), quick_first((2, "bf16"), (3, "bf16"), (0, "bf16"), (1, "fp32")))
def test_state_of_an_engine_begins_anew_after_nan(ranks: Ranks, stage: int, precision: str) -> None:
    for ill, told, is_new in ranks.run(_after_nan, ranks.sites, stage, precision):
        assert ill > 0
        assert told == [f"AdamW: the state of {ill} of {ill} flat parts"]
        assert is_new


def _refused(sites: list[str], change: str) -> str:
    stage = 3 if change in ("frozen weights", "module") else 1
    config: dict[str, Any] = {}
    if change == "round robin":
        config["zero_optimization"] = {"stage": 1, "round_robin_gradients": True}
    if change == "bf16 masters":
        config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    spoil = {"weights": "4.weight", "frozen weights": "2.bias"}.get(change, "") if _site(sites) == "b" else ""
    engine = make_engine(
        stage,
        "bf16",
        alone=change == "group over sites",
        spoil=spoil,
        freeze="2.bias" if change == "frozen weights" else "",
        **config,
    )
    optimizer = adamw(engine.module) if change == "another optimizer" else engine.optimizer
    if change == "module":
        engine = engine.module
    if change == "inner optimizer":
        optimizer = engine.optimizer.optimizer
    try:
        local_steps(engine, [optimizer, adamw(make_model())] if change == "list" else optimizer)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "begun"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("group over sites", ["InvalidArgumentError", "ranks of a, b", "SiteParallel"]),
        ("another optimizer", ["InvalidArgumentError", "engine.optimizer"]),
        ("inner optimizer", ["InvalidArgumentError", "engine.optimizer"]),
        ("list", ["InvalidArgumentError", "pass engine.optimizer alone"]),
        ("module", ["UnsupportedError", "0.weight is a shard", "the engine"]),
        ("weights", ["ReplicaMismatchError", "4.weight"]),
        ("frozen weights", ["ReplicaMismatchError", "2.bias"]),
        ("round robin", ["UnsupportedError", "round_robin_gradients"]),
        ("bf16 masters", ["UnsupportedError", "master of parameter", "bfloat16"]),
    ],
)
def test_engine_that_cannot_be_averaged_is_refused_on_every_rank_by_name(
    ranks: Ranks, change: str, words: list[str]
) -> None:
    for said in ranks.run(_refused, ranks.sites, change):
        assert all(word in said for word in words), said
