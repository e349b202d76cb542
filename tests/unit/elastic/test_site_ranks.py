"""What an agent does with the ranks of its site when deals of theirs are taken back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from geocomm.elastic.journal.messages import Down, Owner, RankHello, Stop, Up
from geocomm.elastic.site.join_states import StatesOfOthers
from geocomm.elastic.site.rank_socket import RankConnection
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks, _Rank
from support.led_sequencer import MODEL


class Line:
    """A rank's connection."""

    def __init__(self, *, trains: bool) -> None:
        self.hello = RankHello(
            place=0,
            owners=1,
            owner=Owner(id="1" * 32, host="h", port=1),
            model=MODEL,
            digests={},
            versions={},
            trains=trains,
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
