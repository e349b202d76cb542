"""What a site has signed with its key, so that others may pass it on and cannot change it."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import Field

from geocomm.security.key_folder import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOKED_FILE,
    Keys,
    KeysError,
    fault_of_dates,
    identity_of,
)

if TYPE_CHECKING:
    from cryptography import x509


class Signature(NamedTuple):
    """ECDSA over SHA-256 of a content, and the certificate of whoever made it."""

    certificate: Annotated[str, Field(max_length=16384)]
    """PEM."""
    signed: Annotated[str, Field(max_length=1024)]
    """Base64."""

    @classmethod
    def make(cls, keys: Keys, content: bytes) -> Self:
        """With the keys of a folder, as they are now. KeysError."""
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            key = serialization.load_pem_private_key((keys.folder / KEY_FILE).read_bytes(), password=None)
            certificate = (keys.folder / CERTIFICATE_FILE).read_text()
        except (OSError, ValueError) as error:
            raise KeysError(f"the keys in {keys.folder} cannot be used: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise KeysError(f"{keys.folder / KEY_FILE} is not one of geocomm keys create")
        return cls(certificate, base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode())


def signer_of(signature: Signature, content: bytes, keys: Keys) -> str:
    """The site of the job of `keys` that has signed this. KeysError: none has, or its certificate is not good."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        certificate = x509.load_pem_x509_certificate(signature.certificate.encode())
        signed = base64.b64decode(signature.signed, validate=True)
        public = certificate.public_key()
    except (ValueError, binascii.Error):
        raise KeysError("the signature cannot be read") from None
    _require_good(certificate, keys)
    identity = identity_of(certificate)
    if not isinstance(public, ec.EllipticCurvePublicKey) or identity.job != keys.identity.job:
        raise KeysError(f"it is of job {identity.job}, and this is job {keys.identity.job}")
    try:
        public.verify(signed, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise KeysError(f"the signature of site {identity.site} is for something else") from None
    return identity.site


def _require_good(certificate: x509.Certificate, keys: Keys) -> None:
    """KeysError unless the job's CA has issued it, it is in force, and not revoked."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        authority = x509.load_pem_x509_certificate((keys.folder / CA_FILE).read_bytes())
        revoked = keys.folder / REVOKED_FILE
        void = x509.load_pem_x509_crl(revoked.read_bytes()) if revoked.exists() else ()
    except (OSError, ValueError) as error:
        raise KeysError(f"the keys in {keys.folder} cannot be used: {error}") from None
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise KeysError("its certificate was not signed by this job's CA") from None
    if fault := fault_of_dates(certificate, datetime.now(UTC)):
        raise KeysError(f"its certificate {fault}")
    if any(one.serial_number == certificate.serial_number for one in void):
        raise KeysError("its certificate has been revoked (crl.pem)")
