"""An elastic run of real ranks: they train with local steps, and sites die, return and differ in ranks."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.snapshot_copies import SnapshotCopies
from geocomm.elastic.files.snapshots import KEPT, Snapshots
from geocomm.elastic.journal.entries import AnyRound, Round, Snapshot, SummedRound
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import Standing
from support.elastic_sites import ENVIRONMENT, ElasticSites
from support.elastic_training import build_model
from support.elastic_training_sites import (
    EVERY,
    assert_equal_bits,
    end_all,
    has_ended,
    rounds_of,
    training,
    training_sites,
)
from support.warm_executable import warm_executable

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("elastic-training")]  # one process to fork from


def assert_rounds_were_logged(sites: ElasticSites, name: str) -> None:
    """At one site, of the rounds that list it and that it has applied."""
    rows = {(one["fragment"], one["round"]): one for one in training(sites, name).steps()[-1]["round_log"]}
    entries = [one for one in rounds_of(sites, name, name) if (one.fragment, one.version) in rows]
    applied = [(one, rows[one.fragment, one.version]) for one in entries]
    applied = [(one, row) for one, row in applied if row["begun_ns"] and row["applied_ns"]]
    assert len(applied) >= 4
    for entry, row in applied:
        assert isinstance(entry, Round)
        times = [row[key] for key in ("begun_ns", "stored_ns", "listed_ns", "averaged_ns", "applied_ns")]
        assert times == sorted(times)
        assert row["elastic"]
        assert 0 < row["coding_ns"] < row["averaged_ns"] - row["begun_ns"]
        assert row["counted"] == [one.site for one in entry.members]
        peers = {peer["site"]: peer for peer in row["peers"]}
        others = [one for one in entry.members if one.site != name]
        assert all(peers[one.site]["arrived_ns"] < row["averaged_ns"] for one in others)
        assert all(peers[one.site]["bytes"] == one.coded_bytes + one.exact_bytes for one in others)


def test_a_site_is_killed_and_nobody_notices_and_it_comes_back(tmp_path: Path) -> None:
    with training_sites(tmp_path, "abc") as sites:
        for site in sites.values():
            site.start()
        sites.until(lambda: len(rounds_of(sites, "c", "a")) >= 4, "four rounds with c")
        sites["c"].kill_rank()
        sites["c"].kill_agent()
        sites.until(lambda: sites["a"].state().sites["c"].standing is Standing.AWAY, "c is away")
        before = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) >= before + 4, "rounds without c")
        assert not any("c" in [one.site for one in entry.members] for entry in sites["a"].rounds()[before + 1 :])
        steps = len(training(sites, "c").steps())
        sites["c"].start()
        counted = len(rounds_of(sites, "c", "a"))
        sites.until(lambda: len(rounds_of(sites, "c", "a")) >= counted + 2, "c counts again")
        # The steps of the run go on where the others are, not from 1.
        assert training(sites, "c").steps()[steps]["step"] > 1
        assert [has_ended(sites[name]) for name in "ab"] == [False, False]
        end_all(sites, tmp_path)
        assert_equal_bits(sites)
        assert_rounds_were_logged(sites, "a")


def test_frames_that_a_disk_has_changed_come_from_another_site_and_no_rank_ends_for_them(tmp_path: Path) -> None:
    with training_sites(tmp_path, "ab") as sites:
        for site in sites.values():
            site.start()
        b = sites["b"]
        sites.until(lambda: len(rounds_of(sites, "b", "a")) >= 6, "six rounds with b")
        b.kill_rank()
        b.kill_agent()
        damaged = sorted((b.folder / "fragments").glob("*/*.frame"))
        for path in damaged:
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        b.start()
        counted = len(rounds_of(sites, "b", "a"))
        sites.until(lambda: len(rounds_of(sites, "b", "a")) >= counted + 2, "b counts again")
        assert b.text().count("does not have the bytes of its name any more: it is fetched") > 1
        assert not has_ended(b)
        end_all(sites, tmp_path)
        assert_equal_bits(sites)


@pytest.mark.slow
def test_ranks_whose_agent_was_away_for_long_catch_up_in_every_fragment(tmp_path: Path) -> None:
    with training_sites(tmp_path, "abc") as sites:
        for site in sites.values():
            site.start()
        sites.until(lambda: len(rounds_of(sites, "c", "a")) >= 4, "four rounds with c")
        agent = sites["c"].agent
        assert agent is not None
        agent.send_signal(signal.SIGSTOP)
        sites.until(lambda: sites["a"].state().sites["c"].standing is Standing.AWAY, "c is away")
        missed = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) >= missed + 12, "rounds without c")
        sites["c"].kill_agent()
        sites["c"].start_agent()
        counted = len(rounds_of(sites, "c", "a"))
        sites.until(
            lambda: {entry.fragment for entry in rounds_of(sites, "c", "a")[counted:]} == {0, 1},
            "c counts in both fragments again",
        )
        end_all(sites, tmp_path)
        assert_equal_bits(sites)


def test_an_aggregator_hangs_and_dies_and_another_one_averages_the_same_frames(tmp_path: Path) -> None:
    with training_sites(tmp_path, "abcd") as sites:
        for name, site in sites.items():
            training(sites, name).reduce = "aggregator"
            site.start()

        def aggregators(after: int = 0) -> set[str]:
            return {one.sum.site for one in sites["a"].rounds()[after:] if isinstance(one, SummedRound)}

        def all_count(after: int = 0) -> bool:
            return any(len(one.members) == 4 for one in sites["a"].rounds()[after:])

        def has_few_frames(entry: AnyRound) -> bool:
            folder = sites["b"].folder / "fragments" / f"{entry.fragment}@{entry.version}"
            made_by = {path.name.partition("-")[0] for path in folder.glob("*.frame")}
            assert isinstance(entry, SummedRound)
            return made_by <= {"b", entry.sum.site}

        def averages(entry: AnyRound) -> bool:
            """b did, or perhaps, since the round was passed on to another aggregator."""
            passed_on = f"round {entry.version} of fragment {entry.fragment}: " in sites["a"].text()
            return passed_on or (isinstance(entry, SummedRound) and entry.sum.site == "b")

        sites.until(lambda: aggregators() == set("abcd") and all_count(), "all have averaged, and count")
        sites.until(lambda: sum(not averages(one) for one in sites["b"].rounds()) >= 6, "six averages of others at b")
        # Who does not average has its own frame and the average. To check one average of 32 takes all frames.
        few = [has_few_frames(one) for one in sites["b"].rounds() if not averages(one)]
        assert sum(few) > len(few) / 2
        rank = sites["c"].rank
        assert rank is not None
        rank.send_signal(signal.SIGSTOP)  # its agent says that it lives
        sites.until(lambda: "c has not averaged it" in sites["a"].text(), "another site is named")
        before = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) >= before + 4, "rounds with another aggregator")
        sites["c"].kill_rank()
        sites["c"].kill_agent()
        sites.until(lambda: sites["a"].state().sites["c"].standing is Standing.AWAY, "c is away")
        before = len(sites["a"].rounds())
        sites.until(lambda: len(sites["a"].rounds()) >= before + 6, "rounds without c")
        assert aggregators(before + 1) <= set("abd")
        sites["c"].start()
        back = len(sites["a"].rounds())
        sites.until(lambda: "c" in aggregators(back) and all_count(back), "c averages again, and counts")
        end_all(sites, tmp_path)
        assert_equal_bits(sites)


def test_as_many_rounds_are_merged_at_a_step_as_fragments_are_due(tmp_path: Path) -> None:
    with training_sites(tmp_path, "a") as sites:
        one = training(sites, "a")
        one.fragments, one.every = 24, 10
        one.start()

        def merges_two() -> bool:
            counts = [step["rounds"] for step in one.steps() if "rounds" in step]
            return any(after >= before + 2 for before, after in itertools.pairwise(counts))

        sites.until(merges_two, "two rounds are merged at one step")
        end_all(sites, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_a_site_of_two_ranks_trains_beside_one_of_a_single_rank(tmp_path: Path, wrap: str) -> None:
    """Each site is a job of its own: its parallelism is nobody else's business."""
    with training_sites(tmp_path, "ab", ranks=2, wrap=wrap) as sites:
        for site in sites.values():
            site.start()
        sites.until(lambda: min(len(rounds_of(sites, name, "b")) for name in "ab") >= 4, "four rounds with each site")
        end_all(sites, tmp_path)
        assert_equal_bits(sites)
        first = training(sites, "a")
        assert first.steps(0)[-1]["end"] == first.steps(1)[-1]["end"]


def test_a_site_with_other_settings_is_refused_with_both_values(tmp_path: Path) -> None:
    with training_sites(tmp_path, "ab") as sites:
        training(sites, "b").every = 7
        sites["a"].start()
        sites.until(lambda: bool(sites["a"].entries()), "the run begins")
        sites["b"].start()
        sites.until(lambda: has_ended(sites["b"]), "b ends")
        text = sites["b"].text()
        assert "InvalidArgumentError" in text
        assert "every" in text
        assert "7" in text
        assert str(EVERY) in text


def test_a_site_that_is_asked_to_end_leaves_once_all_counts_and_comes_back_with_its_moments(tmp_path: Path) -> None:
    with training_sites(tmp_path, "ab") as sites:
        second = training(sites, "b")
        second.ranks, second.wrap = 2, "fsdp2"
        for site in sites.values():
            site.start()
        sites.until(lambda: len(rounds_of(sites, "b", "a")) >= 4, "four rounds with b")
        taken = training(sites, "b").steps()[-1]["step"]
        agent = sites["b"].agent
        assert agent is not None
        agent.send_signal(signal.SIGTERM)
        sites.until(lambda: agent.poll() == 0, "b has left")
        last = {entry.fragment: entry for entry in rounds_of(sites, "b", "a")}
        steps = [one.step for entry in last.values() for one in entry.members if one.site == "b"]
        assert len(steps) == 2
        assert min(steps) >= taken
        assert sites["a"].state().sites["b"].standing is Standing.LEFT

        assert second.rank is not None
        second.rank.terminate()
        second.rank.wait()
        before = [second.steps(rank) for rank in range(2)]
        second.start()
        sites.until(lambda: all(len(second.steps(rank)) > len(before[rank]) for rank in range(2)), "b trains")
        for rank in range(2):  # each its own shard
            began_with = second.steps(rank)[-1]["began_with"]
            assert began_with
            assert began_with in [one["moments"] for one in before[rank] if one["step"] >= taken]
        end_all(sites, tmp_path)
        assert_equal_bits(sites)


def test_sites_keep_equal_snapshots_and_the_run_goes_back_to_one(tmp_path: Path) -> None:
    with training_sites(tmp_path, "ab") as sites:
        sites["a"].snapshot_s = 1.0
        sites["b"].snapshot_url = (tmp_path / "elsewhere").as_uri()
        for site in sites.values():
            site.start()
        copies = SnapshotCopies(sites["b"].snapshot_url)
        sites.until(lambda: len(copies.manifests()) == 2, "two snapshots are kept, and copied elsewhere")
        end_all(sites, tmp_path)
        assert_equal_bits(sites)
    kept = sites["a"].state().kept
    index = max(kept)
    copied = max(
        one["snapshot"] for one in json.loads(_geocomm("snapshot", "ls", "--json", "--run-dir", copies.url).stdout)
    )
    weights: list[dict[str, torch.Tensor]] = []
    for site in sites.values():
        assert kept[index].sites == ("a", "b")
        ran = _geocomm("snapshot", "verify", "--run-dir", site.folder, index)
        assert "a, b had the same bits" in ran.stdout, ran.stderr
        out = tmp_path / f"{site.name}.safetensors"
        assert _geocomm("snapshot", "export", "--run-dir", site.folder, "--out", out, index).returncode == 0
        weights.append(load_file(out))
    assert weights[0].keys() == build_model().state_dict().keys()
    assert {name: value.shape for name, value in weights[0].items()} == {
        name: value.shape for name, value in build_model().state_dict().items()
    }
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    damaged = next((sites["b"].folder / "snapshots" / str(index)).glob("*.state"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert _geocomm("snapshot", "verify", "--run-dir", sites["b"].folder, index).returncode == 1

    again = tmp_path / "again"
    ran = _geocomm("snapshot", "restore", "--run-dir", copies.url, "--into", again / "a", "--site", "a", copied)
    assert ran.returncode == 0, ran.stderr
    rounds = sum(1 for entry in sites["a"].rounds() if entry.index < copied)
    leader = sites["a"].leader  # as the restored journal names it
    with training_sites(again, "ab", keys={name: site.keys for name, site in sites.items()}) as sites:
        sites["a"].listen = leader
        for site in sites.values():
            site.leader = leader
            site.start()
        sites.until(lambda: len(rounds_of(sites, "b", "a")) >= 2 and len(sites["a"].rounds()) > rounds, "rounds")
        assert sum(sites["a"].state().versions) > rounds
        # It may have begun with a state of the run, in place of the first entries. The leader knows its rounds first.
        sites.until(lambda: len(sites["b"].entries()) > 0, "b has entries")
        of_b = sites["b"].entries()
        assert of_b == [entry for entry in sites["a"].entries() if of_b[0].index <= entry.index <= of_b[-1].index]
        end_all(sites, again)
        assert_equal_bits(sites)


@pytest.mark.parametrize("fragments", [1, pytest.param(24, marks=pytest.mark.slow)])
def test_every_snapshot_that_is_asked_for_is_kept_and_restored(tmp_path: Path, fragments: int) -> None:
    with training_sites(tmp_path, "abc") as sites:
        sites["a"].snapshot_s = 1.0
        for name, site in sites.items():
            training(sites, name).fragments, training(sites, name).every = fragments, max(EVERY, 2 * fragments)
            site.start()
        sites.until(lambda: len(sites["a"].state().kept) >= 6, "six snapshots are kept")
        asked = [entry.index for entry in sites["a"].entries() if isinstance(entry, Snapshot)]
        end_all(sites, tmp_path)
        assert_equal_bits(sites)
    state = sites["a"].state()
    # It has just been asked for the last one. One that is not complete when the next is due is given up.
    missed = {index for index in asked[:-1] if f"snapshot {index} is not kept yet" in sites["a"].text()}
    assert set(asked[:-1]) - missed <= state.kept.keys()
    assert "cannot keep snapshot" not in "".join(site.text() for site in sites.values())
    snapshots = Snapshots(FragmentStore(sites["a"].folder))
    here = [one.index for one in snapshots.manifests() if one.index in state.kept]
    assert len(here) >= KEPT
    for index in here:
        into = tmp_path / f"restored-{index}"
        snapshots.restore(index, into, "a", "127.0.0.1:1")
        with contextlib.closing(SqliteJournal(RunDir(into).journal)) as journal:
            assert journal.state().versions == list(snapshots.manifest(index).versions)


def _geocomm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [warm_executable(), "-m", "geocomm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
