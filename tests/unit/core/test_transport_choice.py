"""The text of the option `transport`, and what it is refused together with."""

from __future__ import annotations

import pytest

from geocomm import InvalidArgumentError, Options
from geocomm.core.transport_choice import TransportChoice, TransportTextError


def test_tcp_is_tcp_everywhere() -> None:
    choice = TransportChoice.parse("tcp")
    assert not choice.any_rdma
    assert not choice.is_for("a")
    assert not choice.between("a", "b")


def test_rdma_is_rdma_between_all_sites_and_never_inside_one() -> None:
    choice = TransportChoice.parse("rdma")
    assert choice.any_rdma
    assert choice.is_for("a")
    assert choice.between("a", "b")
    assert not choice.between("a", "a")


def test_named_sites_use_rdma_among_themselves_only() -> None:
    choice = TransportChoice.parse("rdma: a,b ;c,d,e")
    assert [choice.is_for(site) for site in "abcdef"] == [True] * 5 + [False]
    pairs = {(x, y) for x in "abcdef" for y in "abcdef" if x < y and choice.between(x, y)}
    assert pairs == {("a", "b"), ("c", "d"), ("c", "e"), ("d", "e")}
    assert all(choice.between(x, y) == choice.between(y, x) for x in "abcdef" for y in "abcdef")
    assert choice.unknown_sites(["a", "b", "c"]) == ["d", "e"]


@pytest.mark.parametrize("text", ["", "rdma:", "rdma:a", "rdma:a,", "rdma:a,b;", "rdma:a,a", "tcp:a,b", "TCP", "ib"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(TransportTextError):
        TransportChoice.parse(text)


def test_rdma_under_required_security_wants_the_fabric_declared_trusted() -> None:
    with pytest.raises(InvalidArgumentError, match="GEOCOMM_RDMA_TRUSTED"):
        Options(transport="rdma", security="required", rdma_trusted=False).validate()
    Options(transport="rdma", security="required", rdma_trusted=True).validate()
    Options(transport="rdma", security="insecure", rdma_trusted=False).validate()


def test_rdma_with_a_cap_that_it_cannot_keep_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="max_pacing_bps"):
        Options(transport="rdma:a,b", rdma_trusted=True, max_pacing_bps=1_000_000).validate()
