"""Which key exchange a site has, by the version of its OpenSSL."""

from __future__ import annotations

import pytest

from geocomm.observe.doctor import doctor_machine
from geocomm.observe.doctor.doctor_machine import State
from geocomm.security import key_exchange


@pytest.mark.parametrize(
    ("version", "name", "state"),
    [((3, 0), "X25519", State.NOTE), ((3, 5), "X25519MLKEM768", State.OK), ((4, 0), "X25519MLKEM768", State.OK)],
)
def test_hybrid_from_openssl_3_5_on(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], name: str, state: State
) -> None:
    for module in (key_exchange, doctor_machine):
        monkeypatch.setattr(module, "openssl_version", lambda: version)
    assert key_exchange.key_exchange() == name
    finding = doctor_machine.key_exchange_finding()
    assert (finding.value.split(",")[0].split(";")[0], finding.state) == (name, state)


def test_version_is_of_the_openssl_that_the_native_module_runs_with() -> None:
    assert key_exchange.openssl_version() >= (3, 0)
