"""Two regions of two sites each, whose real ranks mail and whose real agents fetch: what crosses, crosses once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from geocomm.elastic.journal.entries import SummedRound
from support.elastic_sites import ElasticSites
from support.elastic_training_sites import assert_equal_bits, end_all, rounds_of, training, training_sites

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("elastic-training")]  # one process to fork from

REGIONS = (("a", "b"), ("c", "d"))
FEW = 0.25
"""Of the frames: on a machine with many more processes than cores some mail comes after the grace."""


def region_of(site: str) -> tuple[str, ...]:
    return next(region for region in REGIONS if site in region)


def mail_of(sites: ElasticSites, name: str) -> list[tuple[str, str, int, int]]:
    """The frames that a rank has mailed: to whom, for which fragment and version."""
    mailed: list[tuple[str, str, int, int]] = training(sites, name).steps()[-1]["mailed"]
    return mailed


def averages_of_regions(sites: ElasticSites, entry: SummedRound) -> list[set[str]]:
    """By site of the other region: the frames that it has mailed to the aggregator of a round."""
    others = [name for name in sites if name not in region_of(entry.sum.site)]
    named = (entry.sum.site, entry.fragment, entry.version)
    return [{frame for frame, *to in mail_of(sites, name) if (*to,) == named} for name in others]


def crossed(sites: ElasticSites) -> Counter[tuple[str, tuple[str, ...]]]:
    """By frame and region: how often ranks mailed it there, or agents gave it there."""
    found = Counter[tuple[str, tuple[str, ...]]]()
    for name, site in sites.items():
        mailed = [(frame, to) for frame, to, *_ in mail_of(sites, name)]
        for frame, to in [*mailed, *re.findall(r"gives ([0-9a-f]{64}) to (\w+)", site.text())]:
            if to not in region_of(name):
                found[frame, region_of(to)] += 1
    return found


@pytest.mark.parametrize("reduce", ["all", "aggregator"])
def test_of_each_frame_one_copy_goes_to_the_other_region(tmp_path: Path, reduce: str) -> None:
    with training_sites(tmp_path, "abcd") as sites:
        for name, site in sites.items():
            site.regions = REGIONS if name == "a" else ()  # the leader alone has the links file
            training(sites, name).reduce = reduce
            site.start_agent(module="support.counting_agent")
            site.start_rank()
        sites.until(lambda: all(len(rounds_of(sites, name, "a")) >= 12 for name in sites), "twelve rounds of all")
        rounds = [one for one in sites["a"].rounds() if [listed.site for listed in one.members] == [*"abcd"]][2:]
        end_all(sites, tmp_path)
        assert_equal_bits(sites)
        assert "between regions goes one copy of each frame: a, b | c, d" in sites["a"].text()
        copies = crossed(sites)
        frames = [one for entry in rounds for one in entry.frames]  # those that all are to have
        counted = [copies[one.frame, region] for one in frames for region in REGIONS if one.site not in region]
        print(sorted(Counter(counted).items()))
        assert len(counted) >= (8 if reduce == "aggregator" else 32)
        assert min(counted) == 1
        assert sum(number > 1 for number in counted) <= FEW * len(counted)
        for entry in rounds:
            if isinstance(entry, SummedRound):
                heads = [frames for frames in averages_of_regions(sites, entry) if frames]
                assert [len(frames) for frames in heads] == [1]  # not each site's frame, but their average
        passed_on = {name for name, site in sites.items() if "gives " in site.text()}
        assert passed_on == set(sites)
