"""What launchers' variables say of a process, where less than a whole place is asked for."""

from __future__ import annotations

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.core.place import (
    find_place,
    local_rank,
    local_world_size,
    node_and_nodes,
    rank_and_world_size,
    rank_variables,
    require_rank,
    without_place,
    world_size,
)

ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_variables_of_a_rank_are_read_back() -> None:
    place = find_place(rank_variables(3, 8, 1, 2) | ADDRESS)
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (3, 8, 1, 2)


def test_node_of_the_emulator_becomes_the_one_rank_of_its_site() -> None:
    environ = {"NODE_RANK": "1", "NNODES": "3"}
    require_rank(environ)
    assert environ == {"NODE_RANK": "1", "NNODES": "3"} | rank_variables(1, 3, 0, 1)


@pytest.mark.parametrize("environ", [{}, {"RANK": "0"}, {"WORLD_SIZE": "2"}, {"NNODES": "2"}, {"RANK": ""}])
def test_process_without_a_rank_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=r"(RANK|WORLD_SIZE) is not set"):
        require_rank(environ)


def test_bad_number_of_a_node_is_named() -> None:
    with pytest.raises(BadInput, match="NODE_RANK is 'x'"):
        require_rank({"NODE_RANK": "x", "NNODES": "2"})


@pytest.mark.parametrize(
    ("environ", "ranks", "here", "number"),
    [
        ({}, 1, 1, 0),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 4, 2, 1),
        ({"NNODES": "3", "LOCAL_SIZE": "8"}, 3, 8, 0),
        ({"WORLD_SIZE": "", "LOCAL_WORLD_SIZE": "0", "LOCAL_RANK": ""}, 1, 1, 0),
    ],
)
def test_counts_are_one_where_no_launcher_says_more(
    environ: dict[str, str], ranks: int, here: int, number: int
) -> None:
    assert (world_size(environ), local_world_size(environ), local_rank(environ)) == (ranks, here, number)


def test_numbers_that_are_given_beat_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world_size() == (1, 2)
    assert rank_and_world_size("5", "8") == (5, 8)
    assert rank_and_world_size("0", None) == (0, 2)
    monkeypatch.delenv("RANK")
    with pytest.raises(KeyError):
        rank_and_world_size()


def test_node_is_read_of_its_variables() -> None:
    assert node_and_nodes({"NODE_RANK": "1", "NNODES": "2"}) == (1, 2)


def test_environment_without_place_keeps_the_rest() -> None:
    environ = rank_variables(0, 1, 0, 1) | {"NNODES": "1", "NODE_RANK": "0", "PATH": "/bin"} | ADDRESS
    assert without_place(environ) == {"PATH": "/bin"} | ADDRESS
