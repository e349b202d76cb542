"""Which sites to read a data set with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_data_rule import RULES as THREE
from typer.testing import CliRunner

from geocomm.core.bad_input import BadInput
from geocomm.core.link_table import Links
from geocomm.data.catalog import Catalog, Label, Rules, Shard, Store, Version
from geocomm.data.pass_estimate import Machines, TrainingTraffic, advice, estimates
from support.command_tree import APP

TOKENS = 10_000_000_000
RULES = THREE.model_copy(update={"labels": THREE.labels | {"lost": Label(readers=())}})
MACHINES = Machines(
    {"frankfurt": 16, "virginia": 64, "tokyo": 16}, 9500, {"frankfurt": 2.2, "virginia": 1.8, "tokyo": 2.6}
)


def shards(personal: int, *more: str) -> list[Shard]:
    """22 x 10 G tokens in Frankfurt, so many of them to stay; 25 in Virginia, 10 in Tokyo."""
    found: list[Shard] = []
    for store, count in {"eu": 22, "us": 25, "asia": 10}.items():
        for number in range(count):
            labels = (*(("personal",) if store == "eu" and number < personal else ()), *more)
            found.append(Shard(f"{len(found):064x}", store, f"{number}", 0, TOKENS, labels))
    return found


def test_all_sites_read_in_the_time_of_their_speeds_and_what_few_read_decides() -> None:
    free, *_ = estimates(RULES, shards(0), 4, MACHINES)
    assert free.days == pytest.approx(57 * TOKENS / (96 * 9500) / 86400)
    assert free.up_to == ("frankfurt", "tokyo", "virginia")
    assert free.gpu_dollars == pytest.approx(free.days * 24 * (16 * 2.2 + 64 * 1.8 + 16 * 2.6))
    assert 0 < free.data_dollars < 15  # 1.2 TB are not near

    found = estimates(RULES, shards(12), 4, MACHINES)
    assert found[0].days == pytest.approx(12 * TOKENS / (16 * 9500) / 86400)
    assert found[0].up_to == ("frankfurt",)
    assert advice(found) == "tokyo adds nothing: only frankfurt may read 120 G tokens."
    without = next(one for one in found if one.sites == ("tokyo", "virginia"))
    assert without.unread_tokens == 12 * TOKENS
    assert found.index(without) > len(found) / 2  # what reads all comes first


def test_rounds_cost_what_they_send_and_make_steps_longer() -> None:
    plain, *_ = estimates(RULES, shards(0), 4, MACHINES)
    asked = list[tuple[str, ...]]()

    def exchange(sites: tuple[str, ...]) -> TrainingTraffic:
        asked.append(sites)
        return TrainingTraffic(1e6 * len(sites), 2.0, 0.05)

    whole, *_ = estimates(RULES, shards(0), 4, MACHINES, exchange)
    assert len(asked) == 7
    assert whole.days == pytest.approx(2 * plain.days)
    assert whole.round_tb == pytest.approx(3e6 * whole.days * 86400 / 1e12)
    assert whole.round_dollars == pytest.approx(1e3 * whole.round_tb * 0.05)
    assert whole.dollars == whole.data_dollars + whole.round_dollars + (whole.gpu_dollars or 0.0)


def test_slow_line_holds_the_sites_up() -> None:
    # Frankfurt alone has no store of its own here: 220 G tokens come over its line, or the others read them.
    machines = replace(MACHINES, far_bytes_per_second=dict.fromkeys(MACHINES.gpus, 8e3))
    free, *_ = estimates(RULES, shards(0), 4, MACHINES)
    found = estimates(RULES, shards(0), 4, machines)
    assert found[0].line_days == pytest.approx(found[0].days - free.days)
    assert found[0].line_days > 1
    assert "hold all sites up" in advice(found)
    wide = estimates(RULES, shards(0), 4, replace(machines, far_bytes_per_second={"tokyo": 1e9}))
    assert wide[0].line_days == 0


def test_of_many_sites_one_is_left_out_at_a_time() -> None:
    rules = Rules(stores={"one": Store(url="/one")})
    gpus = {f"site{number}": 8 for number in range(8)}
    found = estimates(rules, [Shard("0" * 64, "one", "a", 0, TOKENS)], 2, Machines(gpus, 1000, {}))
    assert len(found) == 9
    assert advice(found).startswith("Take all: site0, ")


@pytest.mark.parametrize(
    ("machines", "labels", "words"),
    [
        (Machines({"frankfrt": 1}, 1, {}), (), "unknown site 'frankfrt'; did you mean 'frankfurt'"),
        (Machines({"tokyo": 1, "virginia": 1}, 1, {"tokyo": 2.0}), (), "virginia is in one of them alone"),
        (MACHINES, ("lost",), "no site of [sites] may read the label lost"),
    ],
)
def test_bad_input(machines: Machines, labels: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadInput) as error:
        estimates(RULES, shards(0, *labels), 4, machines)
    assert words in str(error.value)


def test_command(tmp_path: Path) -> None:
    catalog = Catalog(f"{tmp_path}/web")
    version = Version(number=1, tokenizer="byte", vocabulary=257, dtype="<u2", rules=RULES, parts=())
    catalog.add(version, shards(12))
    run = CliRunner(env={"COLUMNS": "200"}).invoke
    options = ["--gpus", "frankfurt=16,virginia=64,tokyo=16", "--tokens-per-second", "9500"]
    told = run(APP, ["plan", "--data", catalog.url, *options])
    assert told.exit_code == 0, told.output
    assert "frankfurt tokyo virginia" in told.output
    assert "tokyo adds nothing" in told.output
    links = tmp_path / "links.json"
    table = Links.uniform([*MACHINES.gpus, "oslo"], 1e5, 0.1)
    links.write_text(json.dumps(table.to_dict()))
    model = ["--parameters", "7b", "--price", "0.02", "--links", str(links), "--codec", "int8", "--mode", "local"]
    told = run(APP, ["plan", "--data", catalog.url, *options, *model, "--json"])
    assert told.exit_code == 0, told.output
    whole, *rest = json.loads(told.output)["rows"]
    # A line of 100 kbit/s is full of rounds: each site sends to two others.
    assert whole["round_tb"] == pytest.approx(6 * 1e5 / 8 * whole["days"] * 86400 / 1e12, rel=0.1)
    assert whole["round_dollars"] == pytest.approx(whole["round_tb"] * 20)
    assert whole["line_days"] > 0
    assert [one["round_tb"] for one in rest if len(one["sites"]) == 1] == [0.0] * 3
    told = run(APP, ["plan", "--data", catalog.url, *options, *model])
    assert "$ rounds" in told.output
    lacking = tmp_path / "lacking.json"
    lacking.write_text(json.dumps(table.select(["oslo", "tokyo"]).to_dict()))
    for wrong, words in (
        (["--data", catalog.url, *options, "--price", "0.02"], "give --parameters or --model too"),
        (["--data", catalog.url, *options, "--links", str(lacking)], "no links of sites frankfurt, virginia"),
        (["--data", catalog.url], "needs --gpus"),
        (["--data", catalog.url, *options[:1], "frankfurt", *options[2:]], "expected SITE=NUMBER"),
        (["--data", catalog.url, *options, "--gpu-price", "tokyo=nan"], "a number above 0"),
        (["--data", catalog.url, *options, "--gpu-price", "tokyo=1,tokyo=2"], "names tokyo twice"),
        (["--data", f"{tmp_path}/none", *options], "has no version"),
        (options, "are for --data"),
    ):
        told = run(APP, ["plan", *wrong])
        assert told.exit_code == 2
        assert words in told.output
