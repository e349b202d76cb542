"""The decision that all ranks take from their records, and the launchers' variables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.place import Place, find_place
from geocomm.group.membership.rank_record import Presence
from geocomm.train.loop import driver
from geocomm.train.loop.preflight import RunPlan, decide, record_for, shared_fields
from geocomm.train.loop.train_config import RunConfig

_MODEL = {"hidden_size": 4}
_MANIFEST = {"model": _MODEL, "data": "d", "world_size": 2, "zero_stage": 0, "precision": "fp32"}


def _records(changes: dict[int, dict[str, Any]], config: RunConfig) -> list[dict[str, Any]]:
    records = []
    for rank in range(2):
        place = Place(rank, 2, local_rank=0, local_world_size=1, site="ab"[rank])
        found = {"fields": shared_fields(config), "data": "d", "model": _MODEL, "gpus": 0, "checkpoints": {}}
        found["presence"] = asdict(Presence(rank, place.site, f"machine{rank}", f"machine{rank}", ["GEOCOMM_SITE"]))
        records.append(record_for(place, found) | changes.get(rank, {}))
    return records


def _config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def test_equal_records_give_a_plan() -> None:
    config = _config()
    assert decide(_records({}, config), config) == RunPlan("cpu", None)
    gpus = {0: {"gpus": 8}, 1: {"gpus": 1}}
    assert decide(_records(gpus, config), config) == RunPlan("cuda", None)
    with_feedback = _config(sync={"codec": "balanced"})
    assert decide(_records(gpus, with_feedback), with_feedback) == RunPlan("cuda", None)


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        ({"error": "file x is missing"}, ["rank 1 (site b)", "file x is missing"]),
        ({"fields": shared_fields(_config(seed=5))}, ["seed", "rank 0 (site a)", "rank 1 (site b)", "0", "5"]),
        ({"data": "other"}, ["corpus"]),
        ({"version": "9.9", "fields": {}}, ["version of geocomm", "9.9", "rank 1 (site b)"]),
        ({"model": {"hidden_size": 8}}, ["hidden_size", "4", "8"]),
        ({"gpus": 4}, ["site a"]),
    ],
)
def test_differing_rank_is_refused_by_name(change: dict[str, Any], mentions: list[str]) -> None:
    config = _config()
    with pytest.raises(BadInput) as caught:
        decide(_records({1: change}, config), config)
    assert all(mention in str(caught.value) for mention in mentions)


def test_feedback_with_shards_in_sites_of_unequal_size_is_refused() -> None:
    config = _config(sync={"codec": "balanced"}, training={"zero_stage": 1})
    records = _records({}, config)
    records.append(records[0] | {"rank": 2, "site": "b"})
    with pytest.raises(BadInput) as caught:
        decide(records, config)
    assert all(mention in str(caught.value) for mention in ("equal size", "a: 1, b: 2", "zero_stage=0"))


def test_joint_steps_of_shards_in_sites_of_unequal_size_are_refused() -> None:
    for joint, refused in ((3, True), (0, False), ("auto", False)):
        config = _config(sync={"mode": "local", "joint_steps": joint}, training={"zero_stage": 2})
        records = _records({}, config)
        records.append(records[0] | {"rank": 2, "site": "b"})
        if not refused:
            assert decide(records, config) == RunPlan("cpu", None)
            continue
        with pytest.raises(BadInput) as caught:
            decide(records, config)
        mentions = ("sync.joint_steps of 3", "equal size", "a: 1, b: 2", "sync.joint_steps=0")
        assert all(mention in str(caught.value) for mention in mentions)


@pytest.mark.parametrize(("at_b", "fits"), [(1, True), (2, False)])
def test_each_site_needs_a_checkpoint_with_as_many_shards_as_it_has_ranks(at_b: int, *, fits: bool) -> None:
    config = _config(sync={"mode": "local"}, training={"zero_stage": 3})
    manifest = _MANIFEST | {"zero_stage": 3, "sync_mode": "local"}
    held = {rank: {"checkpoints": {"9": manifest | {"shard_ranks": (1, at_b)[rank]}}} for rank in range(2)}
    if fits:
        assert decide(_records(held, config), config).resume_step == 9
        return
    with pytest.raises(BadInput, match="ZeRO's shards over this many ranks: 2, this run has 1"):
        decide(_records(held, config), config)


def test_machines_of_one_site_are_refused_unless_they_are_declared_or_another_backend_is_used() -> None:
    config = _config()
    same = {rank: {"presence": asdict(Presence(rank, "a", f"machine{rank}", "", ["GEOCOMM_SITE"]))} for rank in (0, 1)}
    with pytest.raises(BadInput, match="GEOCOMM_ONE_SITE=1"):
        decide(_records(same, config), config)
    declared = {rank: {"presence": change["presence"] | {"one_site": True}} for rank, change in same.items()}
    assert decide(_records(declared, config), config).device == "cpu"
    assert decide(_records({rank: {"presence": None} for rank in (0, 1)}, config), config).device == "cpu"


def test_checkpoint_with_shards_over_other_ranks_is_refused() -> None:
    config = _config(sync={"codec": "balanced"}, training={"zero_stage": 2})
    manifest = _MANIFEST | {"zero_stage": 2}
    for shards, refused in ((None, True), (2, True), (1, False)):
        found = {"checkpoints": {"4": manifest | ({} if shards is None else {"shard_ranks": shards})}}
        records = _records(dict.fromkeys(range(2), found), config)
        if refused:
            with pytest.raises(BadInput, match="ZeRO's shards over this many ranks"):
                decide(records, config)
        else:
            assert decide(records, config).resume_step == 4


def test_error_of_every_rank_is_told_once() -> None:
    broken = {rank: {"error": "no such file"} for rank in range(2)}
    with pytest.raises(BadInput) as caught:
        decide(_records(broken, _config()), _config())
    assert str(caught.value) == "no such file"


def test_cuda_job_names_the_site_without_gpus() -> None:
    config = _config(distributed={"device": "cuda"})
    with pytest.raises(BadInput, match="site b cannot give one"):
        decide(_records({0: {"gpus": 1}}, config), config)
    more_ranks_than_gpus = {0: {"gpus": 1}, 1: {"gpus": 1, "local_rank": 1}}
    with pytest.raises(BadInput, match="site b cannot give one"):
        decide(_records(more_ranks_than_gpus, config), config)
    on_cpu = _config(distributed={"device": "cpu"})
    assert decide(_records({0: {"gpus": 1}}, on_cpu), on_cpu).device == "cpu"


def test_paths_and_logging_may_differ_between_ranks() -> None:
    config = _config()
    other = _config(output_dir="elsewhere", logging={"every_steps": 1}, data={"cache_dir": "/elsewhere"})
    assert decide(_records({1: {"fields": shared_fields(other)}}, config), config) == RunPlan("cpu", None)


def test_resume_takes_the_newest_step_that_all_ranks_hold() -> None:
    config = _config()
    held = {
        0: {"checkpoints": {"9": _MANIFEST, "10": _MANIFEST, "30": _MANIFEST}},
        1: {"checkpoints": {"9": _MANIFEST, "10": _MANIFEST}},
    }
    assert decide(_records(held, config), config).resume_step == 10
    never = _config(checkpoint={"resume": "never"})
    assert decide(_records(held, never), never).resume_step is None


@pytest.mark.parametrize(
    ("manifest", "mentions"),
    [
        ({"model": {"hidden_size": 8}}, "another model"),
        ({"zero_stage": 3}, "zero_stage"),
        ({"precision": "bf16"}, "precision"),
        ({"data": "other"}, "other data"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused(manifest: dict[str, Any], mentions: str) -> None:
    config = _config()
    held = {rank: {"checkpoints": {"9": _MANIFEST | manifest}} for rank in range(2)}
    with pytest.raises(BadInput, match=mentions):
        decide(_records(held, config), config)


def test_local_steps_need_two_sites() -> None:
    config = _config(sync={"mode": "local"})
    decide(_records({}, config), config)
    with pytest.raises(BadInput, match=r"sync\.mode local needs two sites or more, and all ranks are at one \(a\)"):
        decide(_records({1: {"site": "a"}}, config), config)


@pytest.mark.parametrize(
    ("saved", "now", "ids", "fits"),
    [
        ("gradients", "local", "xy", True),
        ("local", "gradients", "xx", True),
        ("local", "gradients", "xy", False),
    ],
)
def test_checkpoint_of_the_other_mode_is_taken_but_not_of_sites_that_differ(
    saved: str, now: str, ids: str, *, fits: bool
) -> None:
    config = _config(sync={"mode": now})
    manifest = _MANIFEST | {"sync_mode": saved}
    held = {rank: {"checkpoints": {"9": manifest | {"id": one}}} for rank, one in enumerate(ids)}
    if fits:
        assert decide(_records(held, config), config).resume_step == 9
    else:
        with pytest.raises(BadInput, match=r"copy that folder of one site to all \(rank 0 .* rank 1 "):
            decide(_records(held, config), config)


def test_number_of_ranks_may_change_where_no_shard_depends_on_it() -> None:
    held = {rank: {"checkpoints": {"9": _MANIFEST | {"world_size": 4}}} for rank in range(2)}
    assert decide(_records(held, _config()), _config()).resume_step == 9

    sharded = _MANIFEST | {"world_size": 4, "zero_stage": 1}
    held = {rank: {"checkpoints": {"9": sharded}} for rank in range(2)}
    config = _config(training={"zero_stage": 1})
    with pytest.raises(BadInput, match="over this many ranks: 4, this run has 2"):
        decide(_records(held, config), config)


def test_checkpoint_on_one_machine_only_or_required_but_absent_is_refused() -> None:
    config = _config()
    with pytest.raises(BadInput, match="rank 1"):
        decide(_records({0: {"checkpoints": {"9": _MANIFEST}}}, config), config)
    required = _config(checkpoint={"resume": "required"})
    with pytest.raises(BadInput, match="required"):
        decide(_records({}, required), required)


def test_place_comes_from_each_launcher() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GEOCOMM_SITE": "b"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert find_place(torchrun | address) == Place(3, 4, 1, 2, "b")
    emulated = {"NNODES": "2", "NODE_RANK": "1", "GEOCOMM_SITE": "a"} | address
    assert find_place(emulated) == Place(1, 2, 0, 1, "a")
    assert emulated["RANK"] == "1"
    alone: dict[str, str] = {}
    assert find_place(alone) == Place(0, 1, 0, 1, "local")
    assert int(alone["MASTER_PORT"]) > 0


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"},
    ],
)
def test_incomplete_launch_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        find_place(environ)


@pytest.mark.parametrize(
    ("assignments", "word"),
    [
        ([], "sync.mode=local"),
        (["sync.mode=local", "sync.joint_steps=2"], "sync.joint_steps"),
        (["sync.mode=local", "sync.deterministic=true"], "deterministic"),
        (["sync.mode=local", "sync.overlap=0"], "overlap"),
        (["sync.mode=local", "checkpoint.resume=never"], "checkpoint.resume"),
    ],
)
def test_driver_refuses_what_a_site_of_an_elastic_run_does_not_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], assignments: list[str], word: str
) -> None:
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("GEOCOMM_AGENT", "/run/agent.sock")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert driver.run(None, assignments) == EXIT_BAD_INPUT
    [line] = capsys.readouterr().err.splitlines()
    assert word in line


def test_ranks_of_two_sites_are_no_site_of_an_elastic_run() -> None:
    config = _config(sync={"mode": "local"})
    with pytest.raises(BadInput, match="job of its own"):
        decide(_records({}, config), config, elastic=True)
