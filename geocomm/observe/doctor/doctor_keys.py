"""The part of `geocomm doctor` that looks at this site's folder of keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.observe.doctor.finding import Finding, State
from geocomm.security.key_exchange import CLASSIC, HYBRID, key_exchange, openssl_version

if TYPE_CHECKING:
    from cryptography import x509

_RENEW_BEFORE = timedelta(days=14)


def keys_findings(folder: str | None, site: str | None, *, insecure: bool) -> Iterator[Finding]:
    """Whether the keys in `folder` (None: there are none) let `site` into its job, now and for some time."""
    if insecure:
        yield Finding(
            "security", "insecure", State.WARNING, "what crosses the sites can be read and changed; see geocomm keys"
        )
    if folder is None:
        if not insecure:
            fix = "geocomm keys create makes them; then set GEOCOMM_KEYS. Without them only loopback is let through"
            yield Finding("keys", "none", State.WARNING, fix)
        return
    try:
        from cryptography import x509

        from geocomm.security.key_folder import CERTIFICATE_FILE, Keys, KeysError
    except ImportError as error:
        yield Finding("keys", str(error), State.BAD, "pip install cryptography")
        return
    path = Path(folder)
    try:
        keys = Keys.load(path)
        certificate = x509.load_pem_x509_certificate((path / CERTIFICATE_FILE).read_bytes())
        yield from _authority(path, certificate)
    except KeysError as error:
        yield Finding("keys", folder, State.BAD, str(error))
        return
    except (OSError, ValueError) as error:
        yield Finding("keys", folder, State.BAD, f"{error}; make new ones with geocomm keys create")
        return
    renew = f"geocomm keys renew {keys.identity.site} where the CA's key is, and copy the folder here"
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    value = f"{keys.identity.uri}, {left.days} days left"
    yield Finding("keys", value, *((State.OK, "") if left > _RENEW_BEFORE else (State.WARNING, renew)))
    if site is not None and site != keys.identity.site:
        fix = f"GEOCOMM_SITE={keys.identity.site}, or the folder of keys of site {site}"
        yield Finding("site of the keys", f"{keys.identity.site}, but GEOCOMM_SITE is {site}", State.BAD, fix)


def key_exchange_finding() -> Finding:
    """Whether what crosses the sites stays secret from who records it and has a quantum computer later."""
    if key_exchange() == HYBRID:
        return Finding("key exchange", f"{HYBRID}, {CLASSIC} with peers whose OpenSSL is older than 3.5", State.OK)
    version = ".".join(map(str, openssl_version()))
    return Finding("key exchange", f"{CLASSIC}; {HYBRID} needs OpenSSL 3.5, this is {version}", State.NOTE)


def _authority(folder: Path, certificate: x509.Certificate) -> Iterator[Finding]:
    """Whether the folder's CA signed the certificate, and has not revoked it."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    from geocomm.security.key_folder import CA_FILE, REVOKED_FILE

    signed = False
    authorities = x509.load_pem_x509_certificates((folder / CA_FILE).read_bytes())
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        signed = True
        if authority.not_valid_after_utc < datetime.now(UTC):
            yield Finding("job's CA", "expired", State.BAD, "new keys for all sites: geocomm keys create")
    if not signed:
        fix = "copy the whole folder of this site again: its files are of more than one geocomm keys create"
        yield Finding("job's CA", f"{CA_FILE} did not sign the certificate", State.BAD, fix)
    if not (folder / REVOKED_FILE).exists():
        return
    revoked = x509.load_pem_x509_crl((folder / REVOKED_FILE).read_bytes())
    newest = f"copy the newest {REVOKED_FILE} from where the CA's key is"
    if not any(revoked.is_signature_valid(authority.public_key()) for authority in authorities):  # type: ignore[arg-type]
        yield Finding(REVOKED_FILE, "not of this job's CA", State.BAD, newest)
    if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        yield Finding("keys", "revoked", State.BAD, "geocomm keys renew SITE, and copy the folder here")
    if revoked.next_update_utc is not None and revoked.next_update_utc < datetime.now(UTC):
        yield Finding(REVOKED_FILE, "expired", State.BAD, newest)
