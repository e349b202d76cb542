"""Configuration files, `--set`, and the text made from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from field_lists import config_lists

from geocomm.core.bad_input import BadInput
from geocomm.sync.gradients.hook_settings import HookSettings
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from geocomm.train.loop.config_text import format_config, load_config
from geocomm.train.loop.train_config import RunConfig


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_load_config_without_file_gives_defaults() -> None:
    assert load_config(None) == RunConfig()


def test_file_that_an_earlier_version_printed_is_read(tmp_path: Path) -> None:
    printed = _file(tmp_path, "logging: {trackers: [tensorboard], project: null}\n")
    assert load_config(printed) == RunConfig()


def test_load_config_set_beats_file_and_parses_yaml_values(tmp_path: Path) -> None:
    path = _file(tmp_path, "training: {steps: 7}\noptimizer:\n  learning_rate: 1e-4\n")
    config = load_config(
        path,
        ["training.steps=9", "data.source=text", "data.paths=[a.txt, b.txt]", "schedule.warmup_steps=0", "seed=3"],
    )
    assert config.training.steps == 9
    assert config.optimizer.learning_rate == 1e-4
    assert config.data.paths == (Path("a.txt"), Path("b.txt"))
    assert config.seed == 3


@pytest.mark.parametrize(
    ("assignments", "mentions"),
    [
        (["training.step=9"], "'training.steps'"),
        (["optimizer.lerning_rate=1"], "'optimizer.learning_rate'"),
        (["trainning.steps=1"], "'training'"),
        (["zero_stage=1"], "'training.zero_stage'"),
        (["training.micro_batch_size=many"], "training.micro_batch_size"),
        (["training.zero_stage=4"], "training.zero_stage"),
        (["seed.deep=1", "seed=1", "seed.deep=1"], "seed"),
        (["justaword"], "key=value"),
        (["data.source=text"], "paths"),
        (["data.paths=[x]"], "source"),
        (["schedule.warmup_steps=100"], "warmup_steps"),
        (["deepspeed={fp16: {enabled: true}}"], "deepspeed.fp16"),
        (["deepspeed={zero_optimization: {stage: 1}}"], "training.zero_stage"),
        (["model.partitioned_init=true"], "zero_stage 3"),
        (["training.precision=fp16", "training.zero_stage=0"], "training.zero_stage 1"),
        (["optimizer.name=lion"], "optimizer.name"),
        (["optimizer.name=muon", "training.zero_stage=2"], "optimizer.name muon needs training.zero_stage 0"),
        (["optimizer.momentum=0.9"], "optimizer.momentum"),
    ],
)
def test_load_config_wrong_field_is_refused_in_one_line_naming_the_right_one(
    assignments: list[str], mentions: str
) -> None:
    with pytest.raises(BadInput) as caught:
        load_config(None, assignments)
    assert mentions in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("assignments", "mentions"),
    [
        (["training.zero_stage=3"], ["sync.codec", "zero_stage"]),
        (["distributed.backend=gloo"], ["sync.codec", "gloo"]),
        (["deepspeed.communication_data_type=fp16"], ["deepspeed.communication_data_type", "sync.codec"]),
        (["deepspeed.zero_optimization.offload_optimizer.device=cpu"], ["offload_optimizer", "sync.codec"]),
    ],
)
def test_feedback_with_what_it_cannot_go_with_is_refused(assignments: list[str], mentions: list[str]) -> None:
    load_config(None, assignments)
    with pytest.raises(BadInput) as caught:
        load_config(None, ["sync.codec=balanced", *assignments])
    assert all(mention in str(caught.value) for mention in mentions)


@pytest.mark.parametrize(
    ("assignments", "mentions"),
    [
        (["training.zero_stage=3", "sync.joint_steps=5"], ["sync.joint_steps is 5", "training.zero_stage 3"]),
        (["training.zero_stage=3", "model.partitioned_init=true"], ["sync.mode local", "model.partitioned_init"]),
        (["training.precision=fp16"], ["fp16", "zero_stage 1"]),
        (["training.precision=fp16", "training.zero_stage=1", "sync.deterministic=true"], ["deterministic", "fp16"]),
        (["distributed.backend=nccl"], ["sync.mode local", "nccl"]),
        (["distributed.backend=gloo"], ["sync.mode local", "gloo"]),
        (["deepspeed.communication_data_type=fp16"], ["deepspeed.communication_data_type", "sync.mode local"]),
        (["sync.guard=false"], ["mode local has no 'guard'", "sync.mode=gradients"]),
        (["sync.warmup_steps=3", "sync.guard=false"], ["'warmup_steps', 'guard'", "these fields"]),
        (["sync.mode=lokal"], ["mode is 'lokal'", "'local'"]),
        (["sync.outer.lr=1"], ["sync.outer.momentum is missing"]),
        (["sync.outer={lr: 1, momentum: 0, nesterov: true}"], ["unknown field 'sync.outer.nesterov'"]),
        (["sync.evry=3"], ["unknown field 'sync.evry'", "'sync.every'"]),
        (["sync.joint_steps=100"], ["sync.joint_steps", "training.steps"]),
        (["sync.joint_steps=-1"], ["sync.joint_steps"]),
        (["sync.preset=pretrian"], ["sync.preset", "'pretrain'"]),
        (["sync.every=many"], ["sync.every", "'auto' or a whole number"]),
        (["sync.every=2.5"], ["sync.every", "'auto' or a whole number"]),
        (["sync.merge=carrry"], ["sync.merge", "'carry' or a number"]),
    ],
)
def test_local_steps_with_what_they_cannot_go_with_are_refused(assignments: list[str], mentions: list[str]) -> None:
    load_config(None, ["sync.mode=local"])
    with pytest.raises(BadInput) as caught:
        load_config(None, ["sync.mode=local", *assignments])
    assert all(mention in str(caught.value) for mention in mentions), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "assignment",
    ["every=10", "preset=loco", "fragments=2", "merge=0.3", "overlap=2", "outer={lr: 1, momentum: 0}", "joint_steps=3"],
)
def test_options_of_local_steps_are_refused_in_the_other_mode(assignment: str) -> None:
    field = assignment.split("=")[0]
    for assignments in (["sync.mode=local", f"sync.{assignment}"], [f"sync.{assignment}", "sync.mode=local"]):
        assert field in load_config(None, assignments).sync.model_fields_set
    with pytest.raises(BadInput, match=f"sync: mode gradients has no '{field}'; mode local has: remove the field"):
        load_config(None, [f"sync.{assignment}"])


def test_joint_steps_are_those_of_the_warm_up_unless_they_are_given() -> None:
    config = load_config(None, ["sync.mode=local", "schedule.warmup_steps=7"])
    assert config.joint_steps() == 7
    assert load_config(None, ["sync.mode=local", "sync.joint_steps=0"]).joint_steps() == 0


@pytest.mark.parametrize(("stage", "at_unequal_sites"), [(0, 7), (1, 0), (2, 0)])
def test_default_of_joint_steps_is_what_the_sites_can_do(stage: int, at_unequal_sites: int) -> None:
    config = load_config(None, ["sync.mode=local", "schedule.warmup_steps=7", f"training.zero_stage={stage}"])
    assert config.joint_steps() == 7
    assert config.joint_steps(equal_sites=False) == at_unequal_sites


def test_there_are_no_joint_steps_by_default_with_zero_3() -> None:
    config = load_config(None, ["sync.mode=local", "schedule.warmup_steps=7", "training.zero_stage=3"])
    assert config.joint_steps() == 0


def test_section_of_the_run_is_what_local_steps_and_hooks_are_given() -> None:
    local = load_config(None, ["sync.mode=local", "sync.outer={lr: 0.3, momentum: 0.2}", "sync.every=7"]).sync
    assert isinstance(local, LocalSettings)
    assert (local.outer, local.every, local.weights) == (Nesterov(0.3, 0.2), 7, "tokens")
    gradients = load_config(None, ["sync.codec=small", "sync.exact=[head]"]).sync
    assert isinstance(gradients, HookSettings)
    assert (gradients.codec, gradients.exact, gradients.decay) == ("small", ("head",), 1.0)


def test_error_of_a_section_names_the_file_and_the_command_line(tmp_path: Path) -> None:
    path = _file(tmp_path, "sync: {every: 5}\n")
    assert load_config(path, ["sync.mode=local"]).sync.mode == "local"
    with pytest.raises(BadInput) as caught:
        load_config(path, ["sync.codec=int8"])
    assert str(caught.value).startswith(f"{path} with --set: sync: ")
    with pytest.raises(BadInput) as caught:
        load_config(path, ["seed=1"])
    assert str(caught.value).startswith(f"{path}: sync: ")


@pytest.mark.parametrize(("steps", "warmup"), [(8, 0), (20, 2), (100, 10), (5000, 10)])
def test_warm_up_is_a_tenth_of_the_steps_and_at_most_ten(steps: int, warmup: int) -> None:
    assert load_config(None, [f"training.steps={steps}"]).warmup_steps() == warmup
    assert load_config(None, [f"training.steps={steps}", "schedule.warmup_steps=1"]).warmup_steps() == 1


def test_what_is_wrong_on_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, "training: {zero_stage: 1}\n")
    with pytest.raises(BadInput, match=r"^--set: training\.steps: "):
        load_config(path, ["training.steps=many"])
    with pytest.raises(BadInput, match=r"^--set: unknown field 'training\.stepz'; did you mean 'training\.steps'\?"):
        load_config(path, ["training.stepz=3"])
    with pytest.raises(BadInput, match=r"^--set: data\.paths\[0\]: "):
        load_config(path, ["data.paths=[3]"])
    wrong = _file(tmp_path, "training: {steps: many}\n")
    with pytest.raises(BadInput) as caught:
        load_config(wrong, ["seed=1"])
    assert str(caught.value).startswith(f"{wrong}: training.steps: ")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "just text", "\x00"])
def test_load_config_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_config_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run\.yaml"):
        load_config(tmp_path / "run.yaml")


def test_format_config_read_back_gives_equal_config(tmp_path: Path) -> None:
    config = load_config(None, ["data.source=jsonl", "data.paths=['a b.jsonl']", "model.overrides={vocab_size: 300}"])
    assert load_config(_file(tmp_path, format_config(config))) == config
    local = load_config(None, ["sync.mode=local", "sync.outer={lr: 1, momentum: 0.4}", "sync.exact=[a, b]"])
    assert load_config(_file(tmp_path, format_config(local))) == local


def test_every_field_has_a_description() -> None:
    for item in (item for fields in config_lists().values() for item in fields.splitlines()):
        assert len(item.split(": ", 1)[-1]) > 5, item
