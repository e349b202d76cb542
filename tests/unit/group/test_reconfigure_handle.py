"""Handles: what is read of them, what is refused, and that ranks which were given others never meet."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from geocomm.core.errors import AuthenticationError, InvalidArgumentError
from geocomm.group.backend.reconfiguration import Handle, members_of
from geocomm.group.membership.rank_record import RankInfo


def _handle(member: str, site: str, *, store: str = "", authority: str = "ours", **of_rank: str) -> Handle:
    process_id = base64.b64encode(member.encode() * 16).decode()
    info = RankInfo(rank=9, global_rank=9, site=site, hosts=["10.0.0.1"], port=4000, process_id=process_id, **of_rank)
    return Handle(member=member, turn=3, authority=authority, store=store, rank=info)


A, B, C = _handle("1", "a"), _handle("2", "b"), _handle("3", "c")


def test_ranks_are_in_the_order_of_the_handles() -> None:
    members = members_of(B, 5, [C.text(), B.text(), A.text()])
    assert members.own == 1
    assert [(info.rank, info.global_rank, info.site) for info in members.infos] == [
        (0, 0, "c"),
        (1, 1, "b"),
        (2, 2, "a"),
    ]
    assert members.site_ranks == [1]


def test_set_is_ordered_alike_on_all_ranks() -> None:
    texts = {C.text(), A.text(), B.text()}
    orders = [[handle.member for handle in members_of(own, 5, texts).handles] for own in (A, B, C)]
    assert orders[0] == orders[1] == orders[2]


def test_group_differs_with_uuid_and_with_any_handle() -> None:
    moved = Handle(member="3", turn=3, authority="ours", store="", rank=replace(C.rank, port=4001))
    cases = [(5, [A, B, C]), (6, [A, B, C]), (5, [A, C, B]), (5, [A, B]), (5, [A, B, moved])]
    made = [members_of(A, uuid, [handle.text() for handle in handles]).infos[0] for uuid, handles in cases]
    assert len({info.group for info in made}) == len({info.token for info in made}) == len(cases)
    assert all(0 < info.group < 1 << 63 for info in made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gloo:0:1:0:",
        "null",
        "[" * 100_000,
        " " * ((1 << 20) + 1) + B.text(),
        json.dumps(json.loads(B.text()) | {"geocomm": 2}),
        json.dumps({name: value for name, value in json.loads(B.text()).items() if name != "rank"}),
        json.dumps(json.loads(B.text()) | {"rank": {"rank": 0, "global_rank": 0, "port": "one"}}),
        json.dumps(json.loads(B.text()) | {"rank": {"rank": 0, "global_rank": 0, "hosts": "10.0.0.1"}}),
    ],
    ids=["empty", "Gloo's", "null", "deep", "long", "newer", "without a rank", "port", "hosts"],
)
def test_handle_that_is_not_one_is_refused_with_its_number(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="handle 1 of reconfigure"):
        members_of(A, 5, [A.text(), text])


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 1 << 40},
        {"process_id": "!!"},
        {"process_id": ""},
        {"hosts": []},
        {"hosts": ["x" * 1000]},
        {"hosts": ["a\0b"]},
        {"site": None},
        {"site": "../b\x1b"},
    ],
)
def test_rank_that_the_transport_could_not_take_is_refused(wrong: dict[str, object]) -> None:
    changed = json.loads(B.text())
    changed["rank"] |= wrong
    with pytest.raises(InvalidArgumentError, match="handle 1 of reconfigure cannot be read"):
        members_of(A, 5, [A.text(), json.dumps(changed)])


def test_two_handles_of_one_process_are_refused() -> None:
    changed = json.loads(B.text())
    changed["rank"]["process_id"] = A.rank.process_id
    with pytest.raises(InvalidArgumentError, match="two handles name the same process"):
        members_of(A, 5, [A.text(), json.dumps(changed)])


def test_handles_without_this_rank_or_with_one_twice_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="do not hold this rank's"):
        members_of(A, 5, [B.text(), C.text()])
    with pytest.raises(InvalidArgumentError, match="rank 2 is there twice"):
        members_of(A, 5, [A.text(), B.text(), B.text()])


def test_own_handle_that_was_changed_is_refused() -> None:
    changed = Handle(member="1", turn=3, authority="ours", store="", rank=replace(A.rank, hosts=["10.6.6.6"]))
    with pytest.raises(InvalidArgumentError, match="changed on its way"):
        members_of(A, 5, [changed.text(), B.text()])
    with pytest.raises(InvalidArgumentError, match="before its last reconfigure"):
        members_of(A, 5, [A.model_copy(update={"turn": 2}).text(), B.text()])


@pytest.mark.parametrize(("authority", "words"), [("theirs", "with other keys"), ("", "with no keys")])
def test_handle_of_another_authority_is_refused(authority: str, words: str) -> None:
    with pytest.raises(AuthenticationError, match=words):
        members_of(A, 5, [A.text(), _handle("2", "b", authority=authority).text()])


def test_store_counts_where_a_site_meets_through_that_of_another() -> None:
    def hosts(*handles: Handle) -> list[str]:
        return [info.store_host for info in members_of(handles[0], 5, [one.text() for one in handles]).infos]

    def at(member: str, site: str, store: str) -> Handle:
        return _handle(member, site, store=store, store_host="10.0.0.9")

    assert hosts(at("1", "a", "s"), at("2", "a", "s"), at("3", "b", "s")) == ["10.0.0.9"] * 3
    assert hosts(at("1", "a", "s"), at("2", "a", "s"), at("3", "b", "t")) == [""] * 3
    assert hosts(at("1", "a", "s"), at("2", "b", "s")) == [""] * 2  # nobody meets in it
