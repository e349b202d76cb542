"""The certificate authority of a job: makes, renews and revokes the keys of its sites. Behind `geocomm keys`.

A folder DIR holds the CA (ca-key.pem, which signs and never leaves it; ca.pem), a copy of every certificate that was
issued (issued/), the list of sites (sites.txt), crl.pem once something was revoked, and one folder per site, which is
copied to that site as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from geocomm.core.file_systems import new_folder, write_whole
from geocomm.core.site import ISSUED_FOLDER
from geocomm.security.key_folder import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOKED_FILE,
    SITES_FILE,
    Identity,
    KeysError,
    check_identity,
    identity_of,
    sites_of,
)

CA_KEY_FILE = "ca-key.pem"
MAX_DAYS = 3650
_CLOCK_SKEW = timedelta(hours=1)
"""Clocks of the sites may be so far behind that of the CA."""
_PRIVATE = 0o700


@dataclass(frozen=True)
class IssuedCertificate:
    """What a CA has signed for a site."""

    site: str
    is_reader: bool
    begins: datetime
    ends: datetime
    revoked: bool


class JobCa:
    """A job's CA in its folder. Every method leaves the folder whole: files are replaced at once, or not at all."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.folder = folder
        self._key = key
        self._certificate = certificate

    @property
    def job(self) -> str:
        return str(self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    @property
    def sites(self) -> list[str]:
        """The sites and readers that have a folder here."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{CERTIFICATE_FILE}"))

    def certificates(self) -> list[IssuedCertificate]:
        """Every certificate that was issued here, by site, the oldest of a site first."""
        path = self.folder / REVOKED_FILE
        void = {one.serial_number for one in x509.load_pem_x509_crl(path.read_bytes())} if path.exists() else set[int]()
        found: list[IssuedCertificate] = []
        for one in self._issued():
            who, ends = identity_of(one, readers=True), one.not_valid_after_utc
            is_void = one.serial_number in void
            found.append(IssuedCertificate(who.site, who.is_reader, one.not_valid_before_utc, ends, is_void))
        return sorted(found, key=lambda one: (one.site, one.begins))

    @classmethod
    def create(cls, folder: Path, job: str, sites: Sequence[str], days: int) -> Self:
        """A new CA in `folder`, with keys for `sites`. KeysError for bad names or where the folder has something in it.

        BadInput (a full disk, say) leaves nothing behind.
        """
        _check_days(days)
        if not sites:
            raise KeysError("sites: none are named; write geocomm keys create a b c")
        for site in sites:
            check_identity(Identity(job, site))
            if list(sites).count(site) > 1:
                raise KeysError(f"sites: {site} occurs twice")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise KeysError(
                f"{folder} exists already; take another --out, or change the keys in it with "
                "geocomm keys add, renew or revoke"
            )
        with new_folder(folder, mode=_PRIVATE) as beside:
            key = ec.generate_private_key(ec.SECP256R1())
            ca = cls(beside, key, _self_signed(key, job))
            write_whole(beside / CA_KEY_FILE, _key_pem(key), 0o600)
            write_whole(beside / CA_FILE, _pem(ca._certificate))
            write_whole(beside / SITES_FILE, _lines(sites))
            for site in sites:
                ca._issue(site, days)
        ca.folder = folder
        return ca

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The CA that `create` made in `folder`; KeysError where there is none."""
        try:
            key = serialization.load_pem_private_key((folder / CA_KEY_FILE).read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate((folder / CA_FILE).read_bytes())
        except OSError as error:
            raise KeysError(
                f"{folder} holds no CA ({error.filename}: {error.strerror}); name with --out the folder that "
                "geocomm keys create made"
            ) from None
        except (ValueError, TypeError) as error:
            raise KeysError(f"the CA in {folder} cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise KeysError(f"{folder / CA_KEY_FILE} is not the key of {folder / CA_FILE}")
        return cls(folder, key, certificate)

    def add(self, site: str, days: int, *, reader: bool = False) -> Path:
        """Keys for a site that has none here; returns its folder. All folders list it then. reader: for a reader, which
        no folder lists."""
        check_identity(Identity(self.job, site))
        _check_days(days)
        if (self.folder / site).exists():
            raise KeysError(f"{self.folder / site} exists already; new keys for it: geocomm keys renew {site}")
        if reader:
            return self._issue(site, days, reader=True)
        known = sites_of(self.folder) or [name for name in self.sites if not self._is_reader(name)]
        write_whole(self.folder / SITES_FILE, _lines([*known, site]))
        added = self._issue(site, days)
        for name in self.sites:
            write_whole(self.folder / name / SITES_FILE, _lines([*known, site]))
        return added

    def renew(self, site: str, days: int) -> Path:
        """A new key and certificate for a site, in place; the old certificate stays good until it expires."""
        _check_days(days)
        self._check_known(site)
        return self._issue(site, days, reader=self._is_reader(site))

    def revoke(self, site: str) -> Path:
        """Put all certificates that were issued for `site` on the list of revoked ones, here and in every site's
        folder; returns the list's path. The list has to reach the sites to have an effect."""
        self._check_known(site)
        path = self.folder / REVOKED_FILE
        known: dict[int, x509.RevokedCertificate] = {}
        if path.exists():
            known = {entry.serial_number: entry for entry in x509.load_pem_x509_crl(path.read_bytes())}
        now = datetime.now(UTC)
        for certificate in self._issued():
            if identity_of(certificate, readers=True).site == site:
                entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now)
                known.setdefault(certificate.serial_number, entry.build())
        builder = x509.CertificateRevocationListBuilder(revoked_certificates=list(known.values()))
        builder = builder.issuer_name(self._certificate.subject).last_update(now - _CLOCK_SKEW)
        # A list that expired would refuse everybody, so it is good as long as the CA.
        builder = builder.next_update(self._certificate.not_valid_after_utc)
        crl = builder.add_extension(_authority(self._key), critical=False).sign(self._key, hashes.SHA256())
        pem = crl.public_bytes(serialization.Encoding.PEM)
        for target in (path, *(self.folder / name / REVOKED_FILE for name in self.sites)):
            write_whole(target, pem)
        return path

    def _check_known(self, site: str) -> None:
        if site not in self.sites:
            raise KeysError(f"{self.folder} has no site {site!r}; it has {', '.join(self.sites) or 'none'}")

    def _issued(self) -> list[x509.Certificate]:
        paths = sorted((self.folder / ISSUED_FOLDER).glob("*.pem"))
        return [x509.load_pem_x509_certificate(path.read_bytes()) for path in paths]

    def _is_reader(self, name: str) -> bool:
        certificate = x509.load_pem_x509_certificate((self.folder / name / CERTIFICATE_FILE).read_bytes())
        return identity_of(certificate, readers=True).is_reader

    def _issue(self, site: str, days: int, *, reader: bool = False) -> Path:
        """A key and a certificate for `site`, recorded before they are handed out: only so can they be revoked."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(key, Identity(self.job, site, reader), days)
        (self.folder / ISSUED_FOLDER).mkdir(exist_ok=True)
        write_whole(self.folder / ISSUED_FOLDER / f"{site}-{certificate.serial_number:x}.pem", _pem(certificate))
        beside_it = [name for name in (REVOKED_FILE, SITES_FILE) if (self.folder / name).exists()]
        # Files of one folder change together: key and certificate must fit each other at every moment.
        with new_folder(self.folder / site, replace=True, mode=_PRIVATE) as beside:
            write_whole(beside / CA_FILE, _pem(self._certificate))
            write_whole(beside / CERTIFICATE_FILE, _pem(certificate))
            write_whole(beside / KEY_FILE, _key_pem(key), 0o600)
            for name in beside_it:
                write_whole(beside / name, (self.folder / name).read_bytes())
        return self.folder / site

    def _sign(self, key: ec.EllipticCurvePrivateKey, identity: Identity, days: int) -> x509.Certificate:
        now = datetime.now(UTC)
        until = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        builder = _builder(identity.site, self.job, key, now - _CLOCK_SKEW, until)
        for extension, critical in (
            (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(digital_signature=True), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (_authority(self._key), False),
        ):
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256())


def _self_signed(key: ec.EllipticCurvePrivateKey, job: str) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = _builder(job, job, key, now - _CLOCK_SKEW, now + timedelta(days=MAX_DAYS))
    for extension, critical in (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(key_cert_sign=True, crl_sign=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256())


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    return builder.not_valid_before(start).not_valid_after(end)


def _key_usage(**uses: bool) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    names += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: uses.get(name, False) for name in names})


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _check_days(days: int) -> None:
    if not 1 <= days <= MAX_DAYS:
        raise KeysError(f"days: {days} is not within 1 to {MAX_DAYS}")
