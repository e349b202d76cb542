"""`geocomm keys`: what it makes, what it refuses, and which handshakes its keys allow (in memory, no sockets)."""

from __future__ import annotations

import errno
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from geocomm.security import job_ca
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Identity, Keys, KeysError, peer_identity, sites_of
from geocomm.wire.tls_stream import explain
from support.command_tree import APP


@pytest.fixture
def ca(tmp_path: Path) -> JobCa:
    return JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)


def certificate_of(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())


def keys(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(APP, ["keys", *arguments])
    return result.exit_code, result.output + result.stderr


def travel(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Makes certificates as if the CA's clock were `days` ahead."""

    class Elsewhen(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + timedelta(days=days)

    monkeypatch.setattr(job_ca, "datetime", Elsewhen)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A handshake, and one byte each way so that both have seen the other's verdict; raises the first ssl.SSLError."""
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    ends = [
        client.wrap_bio(pipes[0], pipes[1], server_side=False),
        server.wrap_bio(pipes[2], pipes[3], server_side=True),
    ]
    for step in (ssl.SSLObject.do_handshake, lambda end: end.write(b"x"), lambda end: end.read(1)):
        waiting = list(ends)
        while waiting:
            for end in list(waiting):
                try:
                    step(end)
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
                for source, target in ((pipes[1], pipes[2]), (pipes[3], pipes[0])):
                    target.write(source.read())
    return ends[0], ends[1]


def meet(client: Path, server: Path) -> tuple[Identity, Identity]:
    """The identities that each end sees of the other."""
    ours, theirs = _contexts(client, server)
    ends = handshake(ours, theirs)
    return peer_identity(ends[0]), peer_identity(ends[1])


def _contexts(client: Path, server: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    keys = [Keys(folder, Identity("run7", "?")) for folder in (client, server)]
    return keys[0].context(server=False), keys[1].context(server=True)


def test_certificate_names_job_and_site_and_is_for_both_ends(ca: JobCa) -> None:
    certificate = certificate_of(ca.folder / "a")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["geocomm://run7/a"]
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert timedelta(days=29) < certificate.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=30)
    root = x509.load_pem_x509_certificate((ca.folder / "a/ca.pem").read_bytes())
    certificate.verify_directly_issued_by(root)


def test_folders_hold_the_keys_of_one_site_unreadable_by_others(ca: JobCa) -> None:
    for site in ("a", "b"):
        assert sorted(os.listdir(ca.folder / site)) == ["ca.pem", "cert.pem", "key.pem", "sites.txt"]
        assert (ca.folder / site / "key.pem").stat().st_mode & 0o777 == 0o600
        assert Keys.load(ca.folder / site).identity == Identity("run7", site)
    assert (ca.folder / "ca-key.pem").stat().st_mode & 0o777 == 0o600


def test_sites_of_one_job_know_each_other(ca: JobCa) -> None:
    assert meet(ca.folder / "a", ca.folder / "b") == (Identity("run7", "b"), Identity("run7", "a"))


def test_all_folders_list_the_sites_in_the_order_in_which_they_came(ca: JobCa, tmp_path: Path) -> None:
    JobCa.open(ca.folder).add("0", 30)
    JobCa.open(ca.folder).renew("a", 30)
    assert {site: sites_of(ca.folder / site) for site in "ab0"} == {key: ["a", "b", "0"] for key in "ab0"}
    assert sites_of(tmp_path) == []


def test_folder_of_an_older_version_lists_its_sites_once_one_is_added(ca: JobCa) -> None:
    for path in ca.folder.rglob("sites.txt"):
        path.unlink()
    JobCa.open(ca.folder).renew("a", 30)
    assert sites_of(ca.folder / "a") == []
    JobCa.open(ca.folder).add("0", 30)
    assert sites_of(ca.folder / "b") == ["a", "b", "0"]


def test_list_of_sites_with_a_bad_name_is_refused(ca: JobCa) -> None:
    (ca.folder / "a/sites.txt").write_text("a\n../b\n")
    with pytest.raises(KeysError, match=r"site '\.\./b'"):
        sites_of(ca.folder / "a")


def test_site_that_is_added_later_is_let_in(ca: JobCa) -> None:
    JobCa.open(ca.folder).add("c", 30)
    assert meet(ca.folder / "c", ca.folder / "a")[1].site == "c"


def test_renewed_keys_are_others_and_are_let_in(ca: JobCa) -> None:
    before = certificate_of(ca.folder / "b")
    JobCa.open(ca.folder).renew("b", 30)
    assert certificate_of(ca.folder / "b").serial_number != before.serial_number
    assert certificate_of(ca.folder / "b").public_key() != before.public_key()
    meet(ca.folder / "a", ca.folder / "b")


def test_revoked_site_is_refused_by_both_ends_and_the_others_go_on(ca: JobCa, tmp_path: Path) -> None:
    old = tmp_path / "stolen"
    (ca.folder / "b").rename(old)
    JobCa.open(ca.folder).add("b", 30)
    JobCa.open(ca.folder).revoke("b")  # both sets of keys
    JobCa.open(ca.folder).renew("b", 30)
    for thief in ((old, ca.folder / "a"), (ca.folder / "a", old)):
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            meet(*thief)
        assert caught.value.verify_code == 23
        assert "revoked" in explain(caught.value)
    meet(ca.folder / "a", ca.folder / "b")
    listed = x509.load_pem_x509_crl((ca.folder / "a/crl.pem").read_bytes())
    assert certificate_of(old).serial_number in {entry.serial_number for entry in listed}


def test_second_revocation_keeps_the_first(ca: JobCa) -> None:
    for site in ("a", "b"):
        JobCa.open(ca.folder).revoke(site)
    assert len(x509.load_pem_x509_crl((ca.folder / "crl.pem").read_bytes())) == 2


@pytest.mark.parametrize(
    ("days", "says", "names"), [(-40, "expired", ["renew"]), (2, "not valid yet", ["clock"])], ids=["expired", "future"]
)
def test_certificate_out_of_its_time_is_refused(
    ca: JobCa, monkeypatch: pytest.MonkeyPatch, days: float, says: str, names: list[str]
) -> None:
    travel(monkeypatch, days)
    JobCa.open(ca.folder).renew("b", 30)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        meet(ca.folder / "a", ca.folder / "b")
    assert says in explain(caught.value)
    with pytest.raises(KeysError) as refused:
        Keys.load(ca.folder / "b")
    assert all(name in str(refused.value) for name in names)


def test_keys_of_another_ca_with_the_same_names_are_refused(ca: JobCa, tmp_path: Path) -> None:
    other = JobCa.create(tmp_path / "other", "run7", ["a", "b"], 30)
    for pair in ((ca.folder / "a", other.folder / "b"), (other.folder / "a", ca.folder / "b")):
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            meet(*pair)
        assert "not signed by this job's CA" in explain(caught.value)


def test_client_without_a_certificate_is_refused(ca: JobCa) -> None:
    client, server = _contexts(ca.folder / "a", ca.folder / "b")
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(ca.folder / "ca.pem")
    with pytest.raises(ssl.SSLError) as caught:
        handshake(bare, server)
    assert "no certificate" in explain(caught.value)
    del client


def test_client_of_tls_1_2_is_refused(ca: JobCa) -> None:
    client, server = _contexts(ca.folder / "a", ca.folder / "b")
    client.minimum_version, client.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(client, server)


def test_site_of_another_job_is_told_by_its_certificate(ca: JobCa) -> None:
    ends = handshake(*_contexts(ca.folder / "a", ca.folder / "b"))
    with pytest.raises(KeysError, match="site b of job run7, but this is job other"):
        Keys(ca.folder / "a", Identity("other", "a")).check_peer(ends[0])
    assert Keys(ca.folder / "a", Identity("run7", "a")).check_peer(ends[0]).site == "b"


def test_key_that_others_can_read_is_refused(ca: JobCa) -> None:
    (ca.folder / "a/key.pem").chmod(0o640)
    with pytest.raises(KeysError, match="chmod 600"):
        Keys.load(ca.folder / "a")


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_folder_with_a_bad_file_is_refused(ca: JobCa, name: str, damage: str) -> None:
    path = ca.folder / "a" / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\x00not a PEM file")
        path.chmod(0o600)
    with pytest.raises(KeysError):
        Keys.load(ca.folder / "a")


def test_key_of_another_certificate_is_refused(ca: JobCa) -> None:
    (ca.folder / "a/key.pem").write_bytes((ca.folder / "b/key.pem").read_bytes())
    with pytest.raises(KeysError):
        Keys.load(ca.folder / "a")


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["https://example.org/"],
        ["geocomm://job"],
        ["geocomm://job/"],
        ["geocomm:///a"],
        ["geocomm://job/a/3"],
        ["geocomm://job/../a"],
        ["geocomm://job/a\n"],
        ["geocomm://[job/a"],
        ["geocomm://job/a", "geocomm://job/b"],
    ],
)
def test_uris_that_name_no_single_site_are_refused(uris: list[str]) -> None:
    with pytest.raises(KeysError):
        Identity.of_uris(uris)


@pytest.mark.parametrize("sites", ["", "a,a", "a/b", "..", "a b", "issued", "ca.pem", "-a", "ä", "x" * 65])
def test_bad_site_names_are_refused_and_nothing_is_made(tmp_path: Path, sites: str) -> None:
    status, text = keys("create", "--out", str(tmp_path / "keys"), "--", *sites.split(","))
    assert status == 2
    assert "site" in text
    assert not list(tmp_path.iterdir())


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    status, text = keys("create", "a", "b", "--out", str(tmp_path))
    assert status == 2
    assert "exists already" in text
    assert os.listdir(tmp_path) == ["file"]


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    status, text = keys("create", "a", "b", "--out", str(tmp_path / "keys"))
    assert status == 2
    assert "No space left" in text
    assert not list(tmp_path.iterdir())


def test_full_disk_keeps_the_keys_that_were_to_be_renewed(ca: JobCa, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (ca.folder / "b/cert.pem").read_bytes()
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert keys("renew", "b", "--out", str(ca.folder))[0] == 2
    assert (ca.folder / "b/cert.pem").read_bytes() == before
    assert Keys.load(ca.folder / "b").identity.site == "b"


def test_command_makes_adds_renews_and_revokes(tmp_path: Path) -> None:
    out = str(tmp_path / "keys")
    status, text = keys("create", "a", "b", "--out", out, "--job", "run8", "--days", "10")
    assert status == 0
    assert "GEOCOMM_KEYS" in text
    assert "KEEP IT OFF THE SITES" in text
    assert keys("add", "c", "--out", out)[0] == 0
    assert keys("add", "c", "--out", out)[0] == 2
    assert keys("renew", "a", "--out", out)[0] == 0
    status, text = keys("revoke", "b", "--out", out)
    assert status == 0
    assert "EVERY" in text
    assert keys("revoke", "nobody", "--out", out)[0] == 2
    assert all((tmp_path / "keys" / site / "crl.pem").exists() for site in "abc")
    assert Keys.load(tmp_path / "keys/c").identity == Identity("run8", "c")


@pytest.mark.parametrize("arguments", [("add", "b"), ("create", "a", "--days", "0")])
def test_command_that_cannot_be_done_says_so(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    status, text = keys(*arguments, "--out", str(tmp_path / "keys"))
    assert status == 2
    assert "geocomm keys:" in text


@pytest.mark.parametrize("arguments", [("create",), ("renew",), ("add", "a", "b"), ("revoke", "a", "--days", "3")])
def test_command_with_wrong_arguments_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert keys(*arguments, "--out", str(tmp_path / "keys"))[0] == 2


def test_list_says_until_when_keys_hold_and_which_are_void(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert keys("create", "rome", "oslo", "--out", str(folder), "--days", "30", "--job", "run7")[0] == 0
    assert keys("revoke", "rome", "--out", str(folder))[0] == 0
    status, text = keys("list", "--out", str(folder))
    assert status == 0
    assert "Job run7" in text
    until = f"{datetime.now(UTC) + timedelta(days=30):%Y-%m-%d}"
    rows = [line.split() for line in text.splitlines()]
    assert [(row[0], row[2], row[3]) for row in rows if row and row[0] in ("rome", "oslo")] == [
        ("oslo", until, "good"),
        ("rome", until, "void"),
    ]


def test_create_without_a_name_of_the_job_says_what_it_is_for(tmp_path: Path) -> None:
    assert "The job is called job: " in keys("create", "a", "--out", str(tmp_path / "one"))[1]
    assert "The job is called" not in keys("create", "a", "--out", str(tmp_path / "two"), "--job", "run7")[1]
