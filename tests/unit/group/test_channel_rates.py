"""What each channel is told that its link carries."""

from __future__ import annotations

from geocomm.core.link_table import Links, table_of
from geocomm.group.backend.policy_epochs import channel_rates
from geocomm.group.membership.rank_record import RankInfo

# Site a has ranks 0 and 1, b has 2, c has 3, 4, 5 and 6.
INFOS = [RankInfo(rank, rank, site, ["10.0.0.1"], 4000 + rank) for rank, site in enumerate("aabcccc")]
LINKS = Links(
    ("a", "b", "c"), table_of(3, lambda src, dst: 8e6 * (10 * src + dst)), table_of(3, lambda *_: 0.1), source="file"
)


def test_channel_rates_are_the_better_direction_shared_by_the_channels() -> None:
    rates = channel_rates(LINKS, INFOS, rank=1)
    assert rates == {
        INFOS[2].description: 10e6 / 2,  # b → a, over two ranks of a
        **{INFOS[rank].description: 20e6 / 4 for rank in (3, 4, 5, 6)},
    }


def test_channel_rates_of_assumed_links_are_not_told() -> None:
    assert channel_rates(Links.uniform(("a", "b", "c")), INFOS, rank=0) == {}
