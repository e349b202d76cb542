"""Keys of readers: whoever does not ask for readers finds no site in them; and what sites sign."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from geocomm.security import job_ca
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Identity, Keys, KeysError, sites_of
from geocomm.security.signatures import Signature, signer_of
from support.command_tree import APP


@pytest.fixture
def ca(tmp_path: Path) -> JobCa:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)
    ca.add("serving", 30, reader=True)
    return ca


def test_keys_of_a_reader_are_refused_where_nobody_asks_for_readers(ca: JobCa) -> None:
    with pytest.raises(KeysError, match="may fetch streams of weights, and nothing else"):
        Keys.load(ca.folder / "serving")
    assert Keys.load(ca.folder / "serving", readers=True).identity == Identity("run7", "serving", True)
    assert Keys.load(ca.folder / "a", readers=True).identity == Identity("run7", "a")


def test_reader_is_in_no_list_of_sites_and_stays_one_when_renewed(ca: JobCa) -> None:
    ca.renew("serving", 30)
    ca.add("c", 30)
    assert sites_of(ca.folder / "c") == sites_of(ca.folder / "a") == ["a", "b", "c"]
    assert Keys.load(ca.folder / "serving", readers=True).identity.is_reader


def test_command_makes_and_lists_a_reader(ca: JobCa) -> None:
    run = CliRunner()
    assert run.invoke(APP, ["keys", "add", "eval", "--role", "reader", "--out", str(ca.folder)]).exit_code == 0
    rows = [line.split() for line in run.invoke(APP, ["keys", "list", "--out", str(ca.folder)]).output.splitlines()]
    roles = {row[0]: row[-1] for row in rows if row and row[0] in ("a", "eval", "serving")}
    assert roles == {"a": "site", "eval": "reader", "serving": "reader"}


def test_handshake_of_a_reader_is_refused_by_the_check_of_the_peer(ca: JobCa) -> None:
    site, reader = Keys.load(ca.folder / "a"), Keys.load(ca.folder / "serving", readers=True)
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    client = reader.context(server=False).wrap_bio(pipes[0], pipes[1], server_side=False)
    server = site.context(server=True).wrap_bio(pipes[1], pipes[0], server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    with pytest.raises(KeysError, match="nothing else"):
        site.check_peer(server)
    assert site.check_peer(server, readers=True).site == "serving"


def test_signature_of_a_site_names_it(ca: JobCa) -> None:
    made = Signature.make(Keys.load(ca.folder / "a"), b"weights")
    assert signer_of(made, b"weights", Keys.load(ca.folder / "serving", readers=True)) == "a"


@pytest.mark.parametrize("fault", ["other content", "a reader", "other job", "revoked", "expired", "no text"])
def test_signature_that_counts_for_nothing(
    ca: JobCa, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, content, signing = Keys.load(ca.folder / "b"), b"weights", ca.folder / "a"
    if fault == "other job":
        signing = JobCa.create(tmp_path / "others", "run7", ["a"], 30).folder / "a"
    if fault == "expired":

        class Earlier(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:
                return datetime.now(UTC) - timedelta(days=20)

        monkeypatch.setattr(job_ca, "datetime", Earlier)
        signing = ca.renew("a", 10)
    reader = fault == "a reader"
    made = Signature.make(Keys(ca.folder / "serving" if reader else signing, Identity("run7", "a")), content)
    if fault == "revoked":
        ca.revoke("a")
    if fault == "other content":
        content = b"weightt"
    if fault == "no text":
        made = made._replace(signed="!!")
    with pytest.raises(KeysError):
        signer_of(made, content, keys)
