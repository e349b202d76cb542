"""How the ranks of a site hear of deals: in one order, also of what they do while they wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from torch.distributed import HashStore

from geocomm.core.errors import CorruptDataError
from geocomm.data.deal_records import SiteDeal
from geocomm.data.site_deals import SiteDeals, SiteLeft
from geocomm.elastic.journal.entries import Data
from geocomm.elastic.journal.messages import RankWelcome

DATA = Data(index=1, prev="0" * 64, term=0, set="/web", number=1, sha256="1" * 64, sequence_length=10)


def welcome(data: Data | None = DATA, taken: int = 30) -> RankWelcome:
    return RankWelcome(
        site="a", run="2" * 32, versions={0: 0}, head=1, head_hash="0" * 64, states={}, every=1, step=0, taken=taken,
        data=data,
    )  # fmt: skip


def deal(at: int, sequences: int) -> SiteDeal:
    return SiteDeal(at=at, sequences=sequences, start=0, deal=5, shards="0:0", of=9, number=1, sha256="1" * 64)


class Rounds:
    """Those of the first rank, as the test has them."""

    has_left = False
    leader = "the leader"

    def __init__(self, *deals: SiteDeal) -> None:
        self.heard = [*deals]

    def take_dealt(self) -> list[SiteDeal]:
        found, self.heard = self.heard, []
        return found


def opened(store: HashStore, first: Rounds | None, meet: Callable[[], None] = lambda: None) -> SiteDeals:
    found = SiteDeals.open(store, welcome() if first else None, first, meet)
    assert found is not None
    return found


def test_run_without_data_deals_none() -> None:
    assert SiteDeals.open(HashStore(), welcome(None), Rounds(), lambda: None) is None


def test_line_begins_where_the_site_is_and_what_is_said_again_changes_nothing() -> None:
    rounds = Rounds(deal(0, 5), deal(5, 4))
    deals = opened(HashStore(), rounds)
    assert deals.position == 3
    deals.reach(9)
    rounds.heard = [deal(5, 4), deal(9, 1)]
    deals.reach(10)
    assert [one.at for one in deals.line] == [0, 5, 9]
    rounds.heard = [deal(11, 1)]
    with pytest.raises(CorruptDataError, match="up to 10"):
        deals.reach(11)


def test_ranks_that_wait_meet_as_often_and_go_on_at_the_same_deal() -> None:
    """A meeting is a collective: a rank alone in it would wait for ever."""
    store, rounds, met = HashStore(), Rounds(deal(0, 4)), {"first": 0, "other": 0}
    enough = threading.Event()

    def meet(who: str) -> None:
        met[who] += 1
        if met["first"] == met["other"] == 2:
            enough.set()

    first, other = opened(store, rounds, lambda: meet("first")), opened(store, None, lambda: meet("other"))
    other.reach(3)  # where the site began
    threads = [threading.Thread(target=one.reach, args=[8]) for one in (other, first)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    rounds.heard = [deal(4, 4)]
    for thread in threads:
        thread.join(60)
    assert met["first"] == met["other"] >= 2
    assert first.line == other.line
    assert first.line[-1] == deal(4, 4)


def test_wait_ends_at_all_ranks_once_the_site_has_left() -> None:
    store, rounds = HashStore(), Rounds()
    first, other = opened(store, rounds), opened(store, None)
    rounds.has_left = True
    for one in (first, other):
        with pytest.raises(SiteLeft):
            one.reach(4)
