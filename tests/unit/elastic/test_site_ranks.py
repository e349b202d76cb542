"""What an agent tells the ranks of its site: that deals of theirs were taken back, and what they have not heard."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from geocomm.elastic.journal.entries import Skip
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.member import Member, StartAgain
from geocomm.elastic.journal.messages import Down, EntrySaid, Owner, RankHello, Stop, Up
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site.join_states import StatesOfOthers
from geocomm.elastic.site.rank_socket import RankConnection
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks, _Rank
from support.led_sequencer import MODEL
from support.made_entries import made_entries


class Line:
    """A rank's connection."""

    def __init__(self, *, trains: bool, head: int = -1) -> None:
        self.hello = RankHello(
            place=0,
            owners=1,
            owner=Owner(id="1" * 32, host="h", port=1),
            model=MODEL,
            digests={},
            versions={},
            trains=trains,
            head=head,
            head_hash=None if head < 0 else "0" * 64,
        )
        self.told: list[Down] = []
        self.closed = False

    def say(self, down: Down) -> None:
        self.told.append(down)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("welcomed", [True, False])
def test_ranks_that_may_have_read_what_was_taken_back_end_though_this_agent_has_not_welcomed_them(
    *, trains: bool, welcomed: bool
) -> None:
    said, line = list[Up](), Line(trains=trains)
    view = cast(RunView, SimpleNamespace(say=said.append, site="a"))
    ranks, connection = SiteRanks(view, cast(StatesOfOthers, None)), cast(RankConnection, line)
    ranks._ranks[0] = _Rank(connection, {}, welcomed=welcomed)
    ranks.end_taken_back()
    ends = trains or welcomed
    assert ranks.knows(connection) != ends
    assert line.closed == ends
    assert bool(said) == ends
    assert [isinstance(one, Stop) and one.again for one in line.told] == [True] * ends


@pytest.mark.parametrize("trains", [True, False])
def test_ranks_that_train_hear_of_a_round_that_became_void_while_they_had_no_agent(
    tmp_path: Path, *, trains: bool
) -> None:
    """They have applied it. Their deltas would be to another state than that of the others."""
    entries = made_entries(3)
    skip = next(entry for entry in entries if isinstance(entry, Skip))
    applied = dict(enumerate(RunState.of(entries).versions))
    assert applied[skip.fragment] > skip.version
    with contextlib.closing(SqliteJournal(tmp_path / "journal")) as journal:
        journal.append_all(entries, journal.head)
        view = cast(RunView, SimpleNamespace(site="a", state=journal.state(), journal=journal))
        ranks = SiteRanks(view, cast(StatesOfOthers, None))

        def unheard(head: int) -> list[int]:
            line = cast(RankConnection, Line(trains=trains, head=head))
            return [entry.index for entry in ranks._unheard(_Rank(line, applied))]

        later = [entry.index for entry in entries if entry.index >= skip.index]
        assert unheard(skip.index - 1) == later * trains
        assert unheard(skip.index) == later[1:] * trains
    member = Member("a", applied)
    assert [type(act) for act in member.on_down(EntrySaid(entry=skip))] == [StartAgain]
