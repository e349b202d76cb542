"""Links, codec="auto" and refresh_links in real process groups: agreed on by all ranks, or refused on all."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.core.link_table import Links, table_of
from support.harness import Ranks, hash_of, joined

SITES = ("a", "b", "c")


def links(rate_bps: float = 1e8, slow: int | None = None) -> Links:
    """Alike, but for the links of one slow site."""
    return Links(
        SITES,
        table_of(3, lambda src, dst: rate_bps / 20 if slow in (src, dst) else rate_bps),
        table_of(3, lambda src, dst: 0.02),
    )


def written(folder: Path, name: str, table: Links) -> str:
    path = folder / name
    path.write_text(json.dumps(table.to_dict()), encoding="utf-8")
    return str(path)


def _reduced(elements: int) -> str:
    generator = torch.Generator().manual_seed(dist.get_rank())
    tensor = torch.randn(elements, generator=generator)
    dist.all_reduce(tensor)
    return hash_of(tensor)


def _policy() -> dict[str, Any]:
    import geocomm

    return geocomm.stats()["groups"][0]["policy"]


def _refreshed() -> dict[str, Any]:
    import geocomm

    links = geocomm.refresh_links()
    assert links is not None
    return links.to_dict()


def _small_values_that_are_lost() -> int:
    """How many of the values that int4 to nearest makes zero come out as zero: of the group, and of a part of it."""
    tensor = torch.full((65536,), 0.2)
    tensor[::256] = 7.0
    part = dist.new_group([0, 1])
    lost = 0
    for group in (None, part):
        reduced = tensor.clone()
        dist.all_reduce(reduced, group=group)
        lost += int((reduced == 0).sum())
    return lost


def _refresh_alone() -> str:
    from geocomm.group.backend.runtime import runtime

    assert runtime.world is not None
    runtime.world.backend.options._timeout = timedelta(seconds=2)
    try:
        _refreshed()
    except TimeoutError as error:
        return str(error)
    return "no error"


def test_auto_codec_is_chosen_alike_from_the_links_that_were_given(tmp_path: Path) -> None:
    path = written(tmp_path, "links.json", links(1e8, slow=2))
    with joined(["a", "b", "c", "a"], environment={"GEOCOMM_LINKS": path, "GEOCOMM_CODEC": "auto"}) as ranks:
        policies = ranks.run(_policy)
        assert all(policy == policies[0] for policy in policies)
        assert policies[0]["links"]["source"] == "file"
        assert policies[0]["codecs"][-1][1] == "int8"
        for elements in (1000, 50_000, 3_000_001):
            hashes = ranks.run(_reduced, elements)
            assert len(set(hashes)) == 1


def test_auto_codec_keeps_to_the_error_cap() -> None:
    variables = {"GEOCOMM_CODEC": "auto", "GEOCOMM_MAX_NMSE": "0"}
    with joined(["a", "b"], environment=variables) as ranks:
        for policy in ranks.run(_policy):
            assert {codec for _, codec in policy["codecs"]} <= {"none", "lossless"}


@pytest.mark.parametrize(("codec", "all_are_lost"), [("int4:round=nearest", True), ("int4", False)])
def test_rounding_of_int4_is_what_the_codec_says(codec: str, all_are_lost: bool) -> None:
    with joined(["a", "b"], environment={"GEOCOMM_CODEC": codec}) as ranks:
        for lost in ranks.run(_small_values_that_are_lost):
            assert (lost == 2 * (65536 - 256)) == all_are_lost


def test_refresh_links_begins_an_epoch_with_what_operations_saw() -> None:
    with joined(["a", "b", "c"], environment={"GEOCOMM_CODEC": "int8"}) as ranks:
        before = ranks.run(_policy)[0]
        assert before["epoch"] == 0
        assert before["links"]["source"] == "assumed"
        ranks.run(_reduced, 6_000_000)
        tables = ranks.run(_refreshed)
        assert all(table == tables[0] for table in tables)
        assert tables[0]["source"] == "measured"
        for src in range(3):
            for dst in range(3):
                if src != dst:
                    assert tables[0]["rate_bps"][src][dst] != before["links"]["rate_bps"][src][dst]
                    assert tables[0]["rtt_s"][src][dst] != before["links"]["rtt_s"][src][dst]
        assert ranks.run(_policy)[0]["epoch"] == 1
        assert len(set(ranks.run(_reduced, 6_000_000))) == 1
        # Nothing new was seen: the numbers stay.
        again = ranks.run(_refreshed)[0]
        assert again["sites"] == tables[0]["sites"]


def test_refresh_links_that_one_rank_leaves_out_names_what_was_missing() -> None:
    with joined(["a", "b"]) as ranks:
        (outcome,) = ranks.outcomes(_refresh_alone, ranks=[1])
        assert "refresh_links" in outcome.value
        assert "rank 0 did not call it within 2 s" in outcome.value


@pytest.mark.parametrize(
    ("of_rank_2", "mentions"),
    [
        ({"GEOCOMM_LINKS": "other.json"}, ["links", "site c"]),
        ({"GEOCOMM_LINKS": "regions.json"}, ["links", "site c"]),
        ({"GEOCOMM_LINKS": ""}, ["links", "not given", "site c"]),
        ({"GEOCOMM_CODEC": "auto", "GEOCOMM_CODECS": "int4"}, ["codecs", "int4", "site c"]),
    ],
)
def test_links_or_codecs_that_differ_are_refused_on_every_rank(
    tmp_path: Path, of_rank_2: dict[str, str], mentions: list[str]
) -> None:
    path = written(tmp_path, "links.json", links())
    written(tmp_path, "other.json", links(2e8))
    written(tmp_path, "regions.json", links().model_copy(update={"regions": ("x", "x", "y")}))
    if of_rank_2.get("GEOCOMM_LINKS"):
        of_rank_2 = {"GEOCOMM_LINKS": str(tmp_path / of_rank_2["GEOCOMM_LINKS"])}
    variables = {"GEOCOMM_LINKS": path, "GEOCOMM_CODEC": "auto"}
    with Ranks(["a", "b", "c"], environment=variables, environment_of={2: of_rank_2}) as ranks:
        for outcome in ranks.try_init():
            message = outcome.require("InvalidArgumentError").message
            for mention in mentions:
                assert mention in message, message


def test_links_that_one_rank_cannot_read_are_refused_on_every_rank(tmp_path: Path) -> None:
    path = written(tmp_path, "links.json", links())
    missing = {"GEOCOMM_LINKS": str(tmp_path / "missing.json")}
    with Ranks(["a", "b"], environment={"GEOCOMM_LINKS": path}, environment_of={1: missing}) as ranks:
        for outcome in ranks.try_init():
            assert "missing.json" in outcome.require("InvalidArgumentError").message


def test_links_without_a_site_of_the_group_are_refused_on_every_rank(tmp_path: Path) -> None:
    path = written(tmp_path, "links.json", links())
    with Ranks(["a", "d"], environment={"GEOCOMM_LINKS": path}) as ranks:
        for outcome in ranks.try_init():
            assert "d" in outcome.require("InvalidArgumentError").message
