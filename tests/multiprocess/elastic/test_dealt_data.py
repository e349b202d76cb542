"""Sites of an elastic run share one data set: each sequence counts once, whichever sites die, leave and join."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typing_extensions import override

from geocomm.data import places
from geocomm.data.deal_records import DealtSet, cut, length
from geocomm.elastic.journal.entries import Deal, TakenBack, TermBegun
from geocomm.elastic.journal.run_state import Standing
from support.dealt_sets import DataSet, Read
from support.elastic_sites import ElasticSite, ElasticSites
from support.etcd_servers import EtcdServers, needs_etcd
from support.hub_support import make_keys
from support.json_lines import lines_of
from support.object_servers import s3_server, write_tables

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("elastic-training")]  # one process to fork from
BATCH = 4


@dataclass
class DataSite(ElasticSite):
    """A site whose ranks are those of `support.data_rank`."""

    ranks: int = 1
    step_s: float = 0.05
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @override
    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return super().environment({**more, **self.variables})

    def start_rank(self) -> None:
        folder, step = str(self.folder.parent), str(self.step_s)
        self.fork_ranks("support.data_rank", folder, str(BATCH), step, ranks=self.ranks)

    def read(self) -> dict[int, int]:
        """By position in the site's line: the number of the sequence that was read there last."""
        found: dict[int, int] = {}
        for rank in range(self.ranks):
            for row in lines_of(self.folder.parent / f"{self.name}.{rank}.jsonl"):
                found |= {row["at"] + place: number for place, number in enumerate(row.get("ids", ()))}
        return found


class DataSites(ElasticSites):
    """The first one leads, and deals; with a journal in etcd, another one after it."""

    def __init__(
        self, folder: Path, names: str, data: DataSet, doubt_s: float, ranks: int = 1, journal: str = ""
    ) -> None:
        super().__init__(folder, make_keys(folder / "keys", names), journal=journal)
        self.data = data
        for number, (name, site) in enumerate(self.items()):
            self[name] = DataSite(**vars(site), ranks=ranks if number == 1 else 1)
            self[name].doubt_s = doubt_s
        self["a"].data = DealtSet(set=data.catalog.url, sequence_length=data.LENGTH)

    def site(self, name: str) -> DataSite:
        site = self[name]
        assert isinstance(site, DataSite)
        return site

    def read(self) -> Read:
        return {name: self.site(name).read() for name in self}

    def counted(self, at: str = "a") -> Counter[int]:
        """How often each sequence counts, by the journal of a site and what each has read there."""
        return self.data.counted(self[at].state(), self.read())

    def assert_each_counts_once(self, at: str = "a") -> None:
        self.data.assert_each_counts_once(self[at].state(), self.read())

    def until_one_counts_in_mid_deal(self, name: str) -> None:
        """Until that site has counted, and has more to read, for a second at least."""

        def is_amid() -> bool:
            state = self["a"].state()
            _, rest = cut(state.sites[name].line, (position := state.position(name)) - state.line_begins(name))
            return position > 0 and length(rest) * self.site(name).step_s >= BATCH

        self.until(is_amid, f"{name} counts, and has more to read")

    def until_all_count(self, at: str = "a") -> None:
        every = range(self.data.ids.size)
        self.until(lambda: set(every) <= set(self.counted(at)), "every sequence counts")


def test_others_read_what_a_dead_site_leaves(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data", shards=24)
    with DataSites(tmp_path, "abc", data, doubt_s=4, ranks=2) as sites:
        sites.site("c").step_s = 0.25
        sites.start()
        sites.until_one_counts_in_mid_deal("c")
        sites["c"].kill_agent()
        sites["c"].kill_rank()

        def rest_is_dealt() -> bool:
            entries = sites["a"].entries()
            back = [one.index for one in entries if isinstance(one, TakenBack) and one.site == "c"]
            return any(isinstance(one, Deal) and one.rest and one.index > back[0] for one in entries if back)

        sites.until(rest_is_dealt, "the rest of c is dealt to others")
        sites.until_all_count()
        sites.assert_each_counts_once()


def test_labelled_shards_are_never_asked_for_from_outside_while_their_only_reader_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the access log of their store, where other sites have a wrong key: each request of theirs would be refused."""
    with s3_server(tmp_path, "eu") as server, ExitStack() as stack:
        data = DataSet(
            tmp_path / "data", shards=24, labelled=8, sites={"a": "us", "b": "eu", "c": "us"}, bucket=server.url
        )
        right = write_tables(tmp_path / "right.toml", {"eu": server.table})
        wrong = write_tables(tmp_path / "wrong.toml", {"eu": server.table | {"secret_access_key": "wrong"}})
        monkeypatch.setenv("GEOCOMM_STORES", str(right))
        for cached in (places.open_place, places._tables):
            cached.cache_clear()
            stack.callback(cached.cache_clear)
        for number in range(16, 24):
            content = (tmp_path / "data" / f"{number}.tokens").read_bytes()
            places.open_place(server.url, "eu").create(f"{number}.tokens", content)
        sites = stack.enter_context(DataSites(tmp_path, "abc", data, doubt_s=4))
        for name in sites:
            keys, cache = right if name == "b" else wrong, tmp_path / f"cache-{name}"
            sites.site(name).variables = {"GEOCOMM_STORES": str(keys), "GEOCOMM_DATA_CACHE": str(cache)}
        sites.start()

        def reads() -> list[str]:
            return [line for line in server.requests(".tokens") if '"GET ' in line]

        labelled = set(data.ids[16:].ravel().tolist())
        sites.until(lambda: bool(labelled & set(sites.counted())), "b counts what it alone may read")
        sites["b"].kill_agent()
        sites["b"].kill_rank()
        asked = len(reads())
        others = set(data.ids[:16].ravel().tolist())
        sites.until(lambda: others <= set(sites.counted()), "a and c read what they may, and what b has left of it")
        waits = "label personal waits for b, and nobody else may read it"
        sites.until(lambda: waits in sites["a"].text(), "a person hears of what waits")
        assert asked > 0
        # What b asked for as it died comes to the log later, with success too; the others would have been refused.
        assert all(" 206 -" in line for line in reads())
        sites["b"].start()
        sites.until_all_count()
        sites.assert_each_counts_once()
        assert all(" 206 -" in line for line in reads())


def test_site_without_a_leader_waits_for_it_by_name_and_goes_on(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "data", shards=16)
    with DataSites(tmp_path, "ab", data, doubt_s=0) as sites:
        sites.start()
        sites["a"].kill_agent()
        # Ranks that began before their agent had heard who leads know its address alone.
        waits = re.compile(r"waited 10 s for the leader(, a)? at 127\.0\.0\.1")
        sites.until(lambda: waits.search(sites["b"].text()) is not None, "b says whom it waits for")
        read = max(sites.site("b").read())
        sites["a"].start_agent()
        sites.until(lambda: max(sites.site("b").read()) > read, "b reads on")
        sites.until_all_count()
        sites.assert_each_counts_once()


def test_site_whose_deals_were_taken_back_begins_again_as_one_that_joins(tmp_path: Path) -> None:
    """It was silent, and has read on meanwhile: that is void, and its ranks are new."""
    data = DataSet(tmp_path / "data", shards=24)
    with DataSites(tmp_path, "abc", data, doubt_s=3) as sites:
        sites.start()
        with sites["c"].paused():
            sites.until(
                lambda: any(isinstance(one, TakenBack) and one.site == "c" for one in sites["a"].entries()),
                "its deals are taken back",
            )
        first = sites["c"].rank
        assert first is not None
        assert first.wait(120) != 0
        sites["c"].start_rank()
        position = sites["a"].state().position("c")
        sites.until(lambda: sites["a"].state().position("c") > position, "c counts again")
        sites.until_all_count()
        sites.assert_each_counts_once()


@pytest.mark.slow
def test_sites_go_from_four_to_three_to_five_and_nothing_is_missed(tmp_path: Path) -> None:
    """In mid-pass, one of them with two ranks: one dies, two come, one leaves in order, the dead one is back."""
    data = DataSet(tmp_path / "data", shards=180)
    with DataSites(tmp_path, "abcdef", data, doubt_s=4, ranks=2) as sites:
        for name in sites:
            sites.site(name).step_s = 0.2  # a pass takes longer than processes to begin
        sites.start_all([sites[name] for name in "abcd"])
        sites["d"].kill_agent()
        sites["d"].kill_rank()
        sites.until(lambda: any(isinstance(one, TakenBack) for one in sites["a"].entries()), "d is taken back")
        for name in "ef":
            sites[name].start()
        sites.until(lambda: all(sites["a"].state().position(name) > 0 for name in "ef"), "e and f count")
        assert len(set(sites.counted())) < data.ids.size
        assert sites["c"].agent is not None
        sites["c"].agent.send_signal(signal.SIGTERM)
        sites.until(lambda: sites["a"].state().sites["c"].standing is Standing.LEFT, "c has left")
        before = sites["a"].state().position("d")
        sites["d"].start()
        sites.until(lambda: sites["a"].state().position("d") > before, "d counts again")
        sites.until_all_count()
        sites.assert_each_counts_once()


@pytest.mark.slow
@needs_etcd
def test_next_leader_deals_on_and_others_read_what_the_dead_one_leaves(tmp_path: Path) -> None:
    """The leader's site dies in mid-pass, agent and ranks, and is back later."""
    data = DataSet(tmp_path / "data", shards=60)
    with (
        EtcdServers(tmp_path) as etcd,
        DataSites(tmp_path, "abc", data, doubt_s=4, ranks=2, journal=etcd.url()) as sites,
    ):
        sites["a"].start()
        sites.until(lambda: "leads the run" in sites["a"].text(), "a leads")
        for name in "bc":
            sites[name].start()
        sites.until(lambda: all(sites["a"].state().position(name) > 0 for name in "abc"), "all count")
        sites["a"].kill_agent()
        sites["a"].kill_rank()
        assert len(set(sites.counted("b"))) < data.ids.size

        def rest_is_dealt_by_another() -> bool:
            entries = sites["b"].entries()
            terms = [one.index for one in entries if isinstance(one, TermBegun) and one.site != "a"]
            back = [one.index for one in entries if isinstance(one, TakenBack) and one.site == "a"]
            rests = [one.index for one in entries if isinstance(one, Deal) and one.rest]
            return bool(terms and back and rests) and terms[0] < back[0] < rests[-1]

        sites.until(rest_is_dealt_by_another, "another one leads, and deals the rest of a")
        sites.assert_each_counts_once("b")
        position = sites["b"].state().position("a")
        sites["a"].start()
        sites.until(lambda: sites["b"].state().position("a") > position, "a counts again")
        sites.until_all_count("b")
        sites.assert_each_counts_once("b")
