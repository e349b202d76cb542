"""OpenSSL's own command line agrees with what `geocomm keys` says of its certificates."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from geocomm.security.job_ca import JobCa

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl program here")


def verified(folder: Path, purpose: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, *options]
    command += ["-CAfile", str(folder / "ca.pem"), str(folder / "cert.pem")]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("purpose", ["sslclient", "sslserver"])
def test_openssl_verifies_a_certificate_until_it_is_revoked(tmp_path: Path, purpose: str) -> None:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)
    assert verified(ca.folder / "a", purpose).returncode == 0
    ca.revoke("b")
    against_list = ("-crl_check", "-CRLfile", str(ca.folder / "a/crl.pem"))
    assert verified(ca.folder / "a", purpose, *against_list).returncode == 0
    refused = verified(ca.folder / "b", purpose, *against_list)
    assert refused.returncode != 0
    assert "certificate revoked" in refused.stderr
    ca.renew("b", 30)
    assert verified(ca.folder / "b", purpose, *against_list).returncode == 0


def test_openssl_reads_the_name(tmp_path: Path) -> None:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a"], 30)
    command = ["openssl", "x509", "-in", str(ca.folder / "a/cert.pem"), "-noout", "-ext", "subjectAltName"]
    assert "URI:geocomm://run7/a" in subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
