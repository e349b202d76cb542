"""An elastic run of real agents: processes are killed, and no entry is lost."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import sqlite3
from collections.abc import Generator
from pathlib import Path

import pytest

from geocomm.core.records import line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import Away, Entry, Join
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import Standing
from geocomm.metrics.own_counters import counters_in
from support.elastic_sites import LIMIT_S, ElasticSite, ElasticSites
from support.hub_support import make_keys
from support.small_disk import small_disk

pytestmark = pytest.mark.timeout(400)


def last_rounds_list(sites: ElasticSites, at: str, names: str) -> bool:
    """Whether the newest round, as site `at` knows it, lists exactly these sites."""
    rounds = sites[at].rounds()
    return bool(rounds) and [one.site for one in rounds[-1].members] == list(names)


def wait_for_rounds(sites: ElasticSites, names: str, at: str = "a", more: int = 2) -> None:
    """Until `more` further rounds have come, of which the last lists these sites."""
    before = len(sites[at].rounds())
    sites.until(
        lambda: len(sites[at].rounds()) >= before + more and last_rounds_list(sites, at, names),
        f"{more} rounds more, of sites {', '.join(names)}",
    )


def assert_one_chain(sites: ElasticSites) -> None:
    """All journals are beginnings of the longest."""
    chains = [[entry.hash for entry in site.entries()] for site in sites.values()]
    longest = max(chains, key=len)
    for chain in chains:
        assert chain == longest[: len(chain)]


def test_an_agent_is_killed_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a", "b")) as sites:
        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "ab")
        sites["b"].kill_agent()
        sites["b"].start_agent()
        wait_for_rounds(sites, "ab", at="b")
        assert sites["b"].rank is not None
        assert sites["b"].rank.poll() is None
        assert_one_chain(sites)


def test_the_leader_is_killed_and_no_entry_is_lost(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "abc")
        for _ in range(3):
            sites["a"].kill_agent()
            before = {name: [entry.hash for entry in site.entries()] for name, site in sites.items()}
            sites["a"].start_agent()
            wait_for_rounds(sites, "abc")
            after = [entry.hash for entry in sites["a"].entries()]
            for chain in before.values():
                assert after[: len(chain)] == chain
        sites.until(lambda: counters_in(sites["b"].folder)["agent_connections"] > 1, "b counts that it came back")
        sites.until(lambda: counters_in(sites["a"].folder)["leader_entries"] > 0, "the leader counts what it commits")
        assert counters_in(sites["a"].folder)["leader_commit_seconds"] > 0
        assert counters_in(sites["a"].folder)["data_repeated_tokens"] == 0
        assert_one_chain(sites)


def test_a_site_dies_and_comes_back(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a", "b")) as sites:
        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "ab")
        sites["b"].kill_rank()
        wait_for_rounds(sites, "a")
        # Its agent may have been slow to see it: rounds do not wait for that.
        sites.until(lambda: sites["a"].state().sites["b"].standing is Standing.AWAY, "b is away")
        sites["b"].kill_agent()
        sites["b"].start()
        wait_for_rounds(sites, "ab")
        assert_one_chain(sites)


def test_a_site_joins_on_the_second_day_from_the_state_of_others(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b")) as sites:
        sites["a"].start()
        sites["b"].start()
        wait_for_rounds(sites, "ab", more=8)
        sites["c"].start()
        wait_for_rounds(sites, "abc")
        store = FragmentStore(sites["c"].folder)
        assert store.latest_state(0) is not None
        assert not (store.run_dir / "fragments" / "0@0").exists()  # it did not replay from the start
        assert_one_chain(sites)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_site_comes_back_under_its_name_with_an_empty_disk(tmp_path: Path, noticed: bool) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b")) as sites:
        sites["a"].start()
        sites["b"].start()
        wait_for_rounds(sites, "ab")
        sites["c"].start()
        wait_for_rounds(sites, "abc")
        # All have applied such a round, and so have written a state for c and let go of the frames before it.
        wait_for_rounds(sites, "abc")
        before, counted = FragmentStore(sites["c"].folder).store_id, sites["a"].state().sites["c"].rounds
        sites["c"].kill_rank()
        sites["c"].kill_agent()
        shutil.rmtree(sites["c"].folder)
        if noticed:
            wait_for_rounds(sites, "ab")
        sites["c"].start()
        wait_for_rounds(sites, "abc")
        store = FragmentStore(sites["c"].folder)
        assert store.store_id != before
        assert store.latest_state(0) is not None  # of the others
        joins = [entry for entry in sites["a"].entries() if isinstance(entry, Join) and entry.site == "c"]
        assert [entry.store for entry in joins] == [before, store.store_id]
        assert sites["a"].state().sites["c"].rounds > counted  # what it has counted before stays
        assert_one_chain(sites)


def test_a_site_that_missed_more_than_others_keep_takes_their_state_and_trains_on(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b")) as sites:
        sites["a"].start()
        sites["b"].start()
        wait_for_rounds(sites, "ab")
        with sites["b"].paused():
            wait_for_rounds(sites, "a")
            sites["c"].start()  # for which a writes a state, and lets go of the frames before it
            wait_for_rounds(sites, "ac")
        wait_for_rounds(sites, "abc")
        assert sites["b"].rank is not None
        assert sites["b"].rank.poll() is None
        assert FragmentStore(sites["b"].folder).latest_state(0) is not None
        assert "other bits" not in sites["a"].text()
        assert_one_chain(sites)


def test_all_are_killed_and_started_in_another_order(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a", "b")) as sites:
        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "ab")
        for site in sites.values():
            site.end()
        before = max(len(site.entries()) for site in sites.values())
        for name in "ba":
            sites[name].start()
        wait_for_rounds(sites, "ab")
        assert len(sites["a"].entries()) > before
        assert_one_chain(sites)


def is_rank_connected(site: ElasticSite) -> bool:
    """Whether an end of a connection has the name of the agent's socket."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return any(line[5] == "03" and line[-1] == str(RunDir(site.folder).agent_socket) for line in lines)


def test_ranks_that_came_before_the_leader_begin_once_it_is_there(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("b",)) as sites:
        sites["a"].start_agent(ranks=False)
        sites["b"].start()
        wait_for_rounds(sites, "b")
        for site in sites.values():
            site.end()
        sites["b"].start()
        sites.until(lambda: is_rank_connected(sites["b"]), "the rank has its agent")
        sites["a"].start_agent(ranks=False)
        wait_for_rounds(sites, "b")  # though b lacks no entry, and none comes


def test_the_last_one_that_leaves_ends_the_run(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a", "b")) as sites:
        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "ab")
        sites["b"].leave()
        sites.until(lambda: sites["b"].agent.poll() == 0, "the agent of the site that has left ends")
        wait_for_rounds(sites, "a")
        sites["a"].leave()
        sites.until(lambda: sites["a"].agent.poll() == 0, "the last agent ends")
        assert sites["a"].state().ended
        sites["a"].start_agent()
        sites.until(lambda: sites["a"].agent.poll() == 2, "a run that has ended is not gone on with")
        assert "has ended" in sites["a"].text()


@contextlib.contextmanager
def with_small_disk_at_b(folder: Path, mib: int = 1) -> Generator[ElasticSites]:
    """Two sites that count rounds, of which one has a small disk for its run folder."""
    with (
        small_disk(folder / "b", mib),
        ElasticSites(folder, make_keys(folder / "keys", "ab"), wait_for=("a", "b")) as sites,
    ):
        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "ab")
        yield sites


def test_a_full_disk_takes_a_site_out_until_there_is_room(tmp_path: Path) -> None:
    with with_small_disk_at_b(tmp_path) as sites:
        with contextlib.suppress(OSError), (tmp_path / "b" / "other").open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        sites.until(lambda: "free room there" in sites["b"].text(), "the agent says what is wrong")
        wait_for_rounds(sites, "a")
        (tmp_path / "b" / "other").unlink()
        sites["b"].end()
        sites["b"].start()
        wait_for_rounds(sites, "ab")
        assert_one_chain(sites)


def test_a_disk_that_takes_no_files_takes_a_site_out_and_it_comes_back_by_itself(tmp_path: Path) -> None:
    with with_small_disk_at_b(tmp_path, mib=64) as sites:  # room for a journal of many rounds
        others = tmp_path / "b" / "others"
        with contextlib.suppress(OSError):  # no frame can be made, and the journal, which is there, goes on
            for number in range(1000):
                (others / f"{number}").mkdir(parents=True)
        # Rounds may close without b before: it is late with its frame.
        away = "site b is away: its run folder takes no frames (No space left on device)"
        sites.until(lambda: away in sites["a"].text(), away)
        sites.until(lambda: "free room there" in sites["b"].text(), "b says what to do")
        wait_for_rounds(sites, "a")
        shutil.rmtree(others)
        wait_for_rounds(sites, "ab")
        for process in (sites["b"].agent, sites["b"].rank):
            assert process is not None
            assert process.poll() is None
        assert_one_chain(sites)


def test_a_site_that_starts_on_a_full_disk_says_so_and_takes_part_once_there_is_room(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "b"),
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a", "b")) as sites,
    ):
        b = sites["b"]
        sites["a"].start()
        b.start()
        wait_for_rounds(sites, "ab")
        b.end()
        SqliteJournal(RunDir(b.folder).journal).close()  # as after an end in good order: nothing is beside the file
        with contextlib.suppress(OSError), (b.folder / "other").open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        b.start_agent()
        sites.until(lambda: b.agent is not None and b.agent.poll() is not None, "it ends")
        assert b.agent is not None
        assert b.agent.poll() == 1  # as with which a supervisor starts it again
        assert "free room there" in b.text()
        (b.folder / "other").unlink()
        b.start()
        wait_for_rounds(sites, "ab")
        assert_one_chain(sites)


def test_a_round_of_fewer_sites_than_asked_for_waits_and_says_so(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab")) as sites:
        sites["a"].min_sites = 2
        sites["a"].start()
        sites.until(lambda: "2 sites to be ready, as --min-sites says" in sites["a"].text(), "it says so")
        assert not sites["a"].rounds()
        sites["b"].start()
        wait_for_rounds(sites, "ab")


def test_the_copy_of_a_run_folder_is_refused(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), wait_for=("a",)) as sites:
        sites["a"].start()
        wait_for_rounds(sites, "a")
        with sites["a"].paused():  # else files come and go while they are copied
            shutil.copytree(sites["a"].folder, sites["b"].folder, ignore=shutil.ignore_patterns("agent.sock"))
        sites["b"].start_agent()
        sites.until(lambda: sites["b"].agent.poll() == 2, "the copy is refused")
        assert "copy of another run folder" in sites["b"].text()
        second = type(sites["a"])(**{**vars(sites["a"]), "logs": [], "listen": sites["b"].listen})
        second.start_agent()
        sites.until(lambda: second.agent.poll() == 2, "a second agent of a folder is refused")
        assert "in use by another agent" in second.text()
        wait_for_rounds(sites, "a")


def test_agents_carry_the_frames_of_a_site_that_no_mail_comes_from(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        sites["c"].mail = False
        for site in sites.values():
            site.start()
        sites.until(
            lambda: (
                [[one.site for one in entry.members] for entry in sites["a"].rounds()[-5:]] == [["a", "b", "c"]] * 5
            ),
            "frames of all count, in each of five rounds",
        )
        assert_one_chain(sites)


def test_site_with_wrong_bits_starts_again_alone(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, c = sites.values()
        sites.start()
        assert c.rank is not None
        c.rank.send_signal(signal.SIGUSR1)
        assert c.rank.wait(LIMIT_S) != 0
        assert "has to start again" in c.text()
        wait_for_rounds(sites, "ab")
        c.start_rank()
        wait_for_rounds(sites, "abc")
        assert all(site.rank is not None and site.rank.poll() is None for site in (a, b))
        # On a busy machine a site may be away for another reason.
        away = [entry for entry in a.entries() if isinstance(entry, Away)]
        assert [entry.site for entry in away if "other bits" in entry.why] == ["c"]


def test_sites_that_lack_entries_which_are_gone_go_on_from_a_state(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abcd")) as sites:
        sites["a"].snapshot_s = 1.0
        for name in "abc":
            sites[name].start()
        wait_for_rounds(sites, "abc")
        sites["c"].kill_agent()
        sites["c"].kill_rank()
        head = sites["c"].entries()[-1].index
        sites.until(
            lambda: all(sites[name].entries()[0].index > head + 1 for name in "ab"),
            "both others have no entries any more that follow those of c",
        )
        sites["c"].start()
        sites["d"].start()
        sites.until(lambda: last_rounds_list(sites, "a", "abcd"), "the site that came back and the new one count")

        def has_the_same(name: str) -> bool:
            """Whether two looks, one after the other, have entries in common: the journals let go of some meanwhile."""
            entries, here = sites[name].entries(), {entry.index: entry for entry in sites["a"].entries()}
            assert entries[0].index > head + 1
            both = [entry for entry in entries if entry.index in here]
            assert both == [here[entry.index] for entry in both]
            return bool(both)

        for name in "cd":
            assert "has given the state of the run" in sites[name].text()
            sites.until(functools.partial(has_the_same, name), f"{name} has entries of a")
        with contextlib.closing(SqliteJournal(RunDir(sites["c"].folder).journal, read_only=True)) as journal:
            journal.verify()
        assert not any("other bits" in site.text() for site in sites.values())


def flip_byte(site: ElasticSite, back: int) -> int:
    """In an entry of its journal, counted from the end; which it is."""
    with contextlib.closing(sqlite3.connect(RunDir(site.folder).journal)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    entry = site.entries()[-back]
    content = bytearray(RunDir(site.folder).journal.read_bytes())
    content[content.index(line_of(entry).encode()) + 20] ^= 4
    RunDir(site.folder).journal.write_bytes(content)
    return entry.index


def test_damaged_journal_comes_whole_from_another_site(tmp_path: Path) -> None:
    """At a follower, and at the leader before it leads: with all that counted, though one site alone has less."""
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:

        def known_elsewhere(name: str) -> list[Entry]:
            """The leader's last entry may be on its disk alone: then nobody has seen it."""
            return max((site.entries() for other, site in sites.items() if other != name), key=len)

        for site in sites.values():
            site.start()
        wait_for_rounds(sites, "abc", more=4)
        for name, back in (("b", 9), ("a", 60), ("b", 1)):
            sites[name].kill_agent()
            before = known_elsewhere(name)
            flip_byte(sites[name], min(back, len(before)))
            sites[name].start_agent()
            log = sites[name].logs[-1]
            sites.until(lambda log=log: "is whole again" in log.read_text(), f"the journal of {name} is whole again")
            wait_for_rounds(sites, "abc", at=name)
            assert sites[name].entries()[: len(before)] == before
            with contextlib.closing(SqliteJournal(RunDir(sites[name].folder).journal, read_only=True)) as journal:
                journal.verify()
        assert_one_chain(sites)
        for site in sites.values():
            site.kill_agent()
        before = known_elsewhere("a")
        flip_byte(sites["a"], 5)
        sites["a"].start_agent()
        sites["b"].start_agent()
        log = sites["a"].logs[-1]
        sites.until(lambda: "too few of 3 members answer" in log.read_text(), "the leader says what it waits for")
        assert "start c" in log.read_text(), log.read_text()  # it may have what b has not
        sites["c"].start_agent()
        sites.until(lambda: "is whole again" in log.read_text(), "the leader's journal is whole again")
        wait_for_rounds(sites, "abc")
        assert_one_chain(sites)
        assert [entry.hash for entry in sites["a"].entries()[: len(before)]] == [entry.hash for entry in before]


def test_site_whose_journal_is_damaged_and_that_knows_of_no_other_says_what_to_do(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "a"), wait_for=("a",)) as sites:
        sites["a"].start()
        wait_for_rounds(sites, "a", more=4)
        sites["a"].kill_agent()
        flip_byte(sites["a"], 5)
        sites["a"].start_agent()
        agent = sites["a"].agent
        assert agent is not None
        assert agent.wait(LIMIT_S) == 2
        text = sites["a"].logs[-1].read_text()
        assert "Traceback" not in text
        assert "geocomm snapshot restore" in text.splitlines()[-1]
