"""How a journal in etcd is named."""

from __future__ import annotations

import pytest

from geocomm.elastic.leading.etcd import EtcdAddress


@pytest.mark.parametrize("text", ["h:2379", "etcd://", "etcd://h:x", "etcd://h:1/", "etcd://h:1/a/b", "etcd://h,,g"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        EtcdAddress.parse(text)


def test_addresses_have_a_port_and_a_name() -> None:
    assert str(EtcdAddress.parse("etcd://a,b:7,[::1]/n-1")) == "etcd://a:2379,b:7,[::1]:2379/n-1"
    assert EtcdAddress.parse("etcd://a").name == "run"
