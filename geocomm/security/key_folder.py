"""Keys between sites: the folder that a site holds, what its certificate says, and the TLS contexts made of it.

A folder of keys is what `geocomm keys` makes for a site and GEOCOMM_KEYS names. It vouches for a site of a job: the
certificate's URI is `geocomm://JOB/SITE`, and holds for every rank of that site. That of a *reader*, which may fetch
streams of weights and nothing else, is `geocomm-reader://JOB/NAME`: whoever does not know of readers finds no site.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from geocomm.core.bad_input import BadInput
from geocomm.core.options import from_environment
from geocomm.core.site import SiteNameError, check_name, check_site_name

if TYPE_CHECKING:
    from cryptography import x509

CA_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
REVOKED_FILE = "crl.pem"
"""Optional: certificates of the job that are no longer good."""
SITES_FILE = "sites.txt"
"""Optional: the sites of the job, one a line, in the order in which they got keys. Nobody is trusted for it."""

_URI = re.compile(r"geocomm(-reader)?://([^/]*)/(.*)", re.DOTALL)
_Stamp = tuple[int, int, int]


class KeysError(BadInput, ValueError):
    """A folder of keys that cannot be used, or a peer whose certificate is not good; the message says what to do."""


@dataclass(frozen=True)
class Identity:
    """Who a certificate speaks for."""

    job: str
    site: str
    """Or the reader's name."""
    is_reader: bool = False

    @property
    def uri(self) -> str:
        return f"geocomm{'-reader' if self.is_reader else ''}://{self.job}/{self.site}"

    @classmethod
    def of_uris(cls, uris: list[str], *, readers: bool = False) -> Self:
        """The one identity among the URIs of a certificate; KeysError if there is not exactly one, or it is a reader's
        where readers have nothing to do."""
        found = [match for uri in uris if (match := _URI.fullmatch(uri))]
        if len(found) != 1:
            raise KeysError("the certificate names no site of a geocomm job; make keys with geocomm keys create")
        reader, job, site = found[0].groups()
        identity = cls(job, site, bool(reader))
        check_identity(identity)
        if identity.is_reader and not readers:
            raise KeysError(f"the keys of {site} are a reader's: they may fetch streams of weights, and nothing else")
        return identity


def check_identity(identity: Identity) -> None:
    """KeysError where the name of its job or site breaks the rule of names (core/site.py)."""
    try:
        check_name(identity.job, "job")
        check_site_name(identity.site)
    except SiteNameError as error:
        raise KeysError(str(error)) from None


@dataclass(frozen=True)
class Keys:
    """A folder of keys that was looked at and found good."""

    folder: Path
    identity: Identity
    # By server or not: the files' state, and what was made of them.
    _contexts: dict[bool, tuple[list[_Stamp], ssl.SSLContext]] = field(
        default_factory=dict[bool, tuple[list[_Stamp], ssl.SSLContext]], repr=False, compare=False
    )

    @classmethod
    def load(cls, folder: str | Path, *, readers: bool = False) -> Self:
        """Check the files of `folder`: there, readable by the owner only, of one job, in force. KeysError if not.
        readers: those of one will do."""
        from cryptography import x509

        folder = Path(folder)
        pems = {name: _read(folder / name) for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)}
        if (mode := (folder / KEY_FILE).stat().st_mode) & 0o077:
            raise KeysError(
                f"{folder / KEY_FILE} can be read by others (mode {mode & 0o777:o}); run: chmod 600 {folder / KEY_FILE}"
            )
        try:
            certificate = x509.load_pem_x509_certificate(pems[CERTIFICATE_FILE])
        except ValueError as error:
            raise KeysError(f"{folder / CERTIFICATE_FILE} is not a certificate: {error}") from None
        keys = cls(folder, identity_of(certificate, readers=readers))
        _check_dates(certificate, folder / CERTIFICATE_FILE, keys.identity.site)
        keys.context(server=False)  # the key fits the certificate, the CA and the CRL can be read
        return keys

    @classmethod
    def given(cls, folder: str | Path | None, *, readers: bool = False) -> Self | None:
        """Those in `folder`, else in GEOCOMM_KEYS; None: neither is named. KeysError as above."""
        found = folder or from_environment("keys")
        return None if found is None else cls.load(found, readers=readers)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """TLS 1.3 with a certificate asked of the peer, made of the files as they are now; KeysError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the site's name counts, not the host's: peer_identity()
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET
        if server:
            context.num_tickets = 0
        try:
            context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE, password="")
            context.load_verify_locations(self.folder / CA_FILE)
            if (self.folder / REVOKED_FILE).exists():
                context.load_verify_locations(self.folder / REVOKED_FILE)
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise KeysError(f"the keys in {self.folder} cannot be used: {error}; make new ones: {RENEW}") from None
        return context

    def current_context(self, *, server: bool) -> ssl.SSLContext:
        """A context() made anew only when a file has changed; the last good one while the files are in disorder."""
        state = [_stamp(self.folder / name) for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE)]
        known = self._contexts.get(server)
        if known is not None and known[0] == state:
            return known[1]
        try:
            context = self.context(server=server)
        except KeysError:
            if known is None:
                raise
            context = known[1]
        self._contexts[server] = (state, context)
        return context

    def check_peer(self, connection: ssl.SSLObject, *, readers: bool = False) -> Identity:
        """Who the other end of a finished handshake is; KeysError unless it is a site of this job, or a reader where
        `readers` may come."""
        peer = peer_identity(connection, readers=readers)
        if peer.job != self.identity.job:
            raise KeysError(
                f"the peer's certificate is for site {peer.site} of job {peer.job}, but this is job {self.identity.job}"
            )
        return peer


RENEW = "geocomm keys renew SITE"
"""The command, for messages."""


def peer_identity(connection: ssl.SSLObject, *, readers: bool = False) -> Identity:
    """The identity that the peer proved; KeysError if its certificate names none."""
    names = (connection.getpeercert() or {}).get("subjectAltName", ())
    return Identity.of_uris([str(value) for kind, value in names if kind == "URI"], readers=readers)


def identity_of(certificate: x509.Certificate, *, readers: bool = False) -> Identity:
    """The identity that a certificate names; KeysError."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return Identity.of_uris([])
    return Identity.of_uris(names.get_values_for_type(x509.UniformResourceIdentifier), readers=readers)


def sites_of(folder: str | Path) -> list[str]:
    """The sites of the job, as a folder of keys lists them; empty where it does not. KeysError for a bad name."""
    try:
        names = (Path(folder) / SITES_FILE).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"cannot read {Path(folder) / SITES_FILE}: {error}") from None
    try:
        return [check_site_name(name) for name in dict.fromkeys(names)]
    except SiteNameError as error:
        raise KeysError(f"{Path(folder) / SITES_FILE}: {error}") from None


def certificate_ends(folder: str | Path) -> float | None:
    """When the certificate of a folder of keys expires, in Unix seconds; None: it cannot be read."""
    certificate = _certificate(folder)
    return None if certificate is None else certificate.not_valid_after_utc.timestamp()


def certificate_fault(folder: str | Path, now: float) -> str:
    """What is wrong with the dates of a folder's certificate at a moment, in Unix seconds: "is not valid before …";
    empty: nothing."""
    certificate = _certificate(folder)
    return "" if certificate is None else fault_of_dates(certificate, datetime.fromtimestamp(now, UTC))


def fault_of_dates(certificate: x509.Certificate, now: datetime) -> str:
    """What is wrong with a certificate's dates at a moment; empty: nothing."""
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def _certificate(folder: str | Path) -> x509.Certificate | None:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate((Path(folder) / CERTIFICATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def _stamp(path: Path) -> _Stamp:
    """Differs once a file was replaced or written to."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeysError(
            f"cannot read {path}: {error.strerror}; a folder of keys is one that geocomm keys create made for a site, "
            f"with {CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} in it"
        ) from None


def _check_dates(certificate: x509.Certificate, path: Path, site: str) -> None:
    now = datetime.now(UTC)
    if not (fault := fault_of_dates(certificate, now)):
        return
    if now < certificate.not_valid_before_utc:
        raise KeysError(f"{path} {fault}; this machine's clock says {now:%Y-%m-%d %H:%M}: set it right")
    raise KeysError(
        f"{path} {fault}; run geocomm keys renew {site} where the CA's key is, and copy the new folder here"
    )
