"""How the ranks of an elastic run end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from geocomm.core.errors import AbortedError
from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.entries import Left
from geocomm.elastic.journal.messages import EntrySaid, Stop
from geocomm.elastic.rank_starts import MOST_FRUITLESS_STARTS, RankStarts
from geocomm.sync.local_steps.elastic.member_rounds import MemberRounds
from geocomm.sync.local_steps.outer.rounds import Coding
from support.led_sequencer import MODEL

if TYPE_CHECKING:
    from geocomm._C import Mail


def _rounds_that_train(folder: Path) -> MemberRounds:
    mail = cast("Mail", SimpleNamespace(id=bytes(16), port=1))
    coding = cast(Coding, None)  # no fragment is here
    rounds = MemberRounds("a", 0, 1, "h", mail, str(folder / "agent"), str(folder), [], MODEL, coding)
    rounds._early, rounds._trains = None, True
    return rounds


@pytest.mark.parametrize(
    ("down", "is_failure"),
    [
        (Stop(why="what these ranks have is void", again=True), False),
        (Stop(why="another process has taken the place of this rank"), True),
    ],
)
def test_ranks_that_the_run_ends_do_not_count_as_such_that_failed(
    tmp_path: Path, down: Stop, *, is_failure: bool
) -> None:
    rounds = _rounds_that_train(tmp_path)
    starts, waits = RankStarts(RunDir(tmp_path)), list[float | None]()
    for _ in range(MOST_FRUITLESS_STARTS):
        starts.begins(counted=0)
        with pytest.raises(AbortedError):
            rounds._on_down(down)
        waits.append(starts.ended(counted=0))
    assert (None in waits) == is_failure


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_site_has_left_once_the_journal_says_so_and_its_ranks_were_asked_to(
    tmp_path: Path, *, is_asked: bool
) -> None:
    rounds = _rounds_that_train(tmp_path)
    rounds.is_leaving = is_asked  # else it had left before these ranks began, and they hear of that late
    rounds._follow(EntrySaid(entry=Left(index=2, prev="0" * 64, term=0, site="a")))
    assert rounds.has_left == is_asked
