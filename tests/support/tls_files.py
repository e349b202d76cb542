"""An authority and one certificate of it, for other programs' TLS on this machine."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_tls_files(folder: Path) -> dict[str, Path]:
    """Files "ca", "cert" and "key"; the certificate is for 127.0.0.1, at both ends of a connection."""
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a machine")])
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)

    def builder(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=1))
        )

    ca = builder(issuer, ca_key.public_key()).add_extension(x509.BasicConstraints(True, None), True)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = builder(subject, key.public_key()).add_extension(host, False)
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    contents = {
        "ca": ca.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        "cert": certificate.sign(ca_key, hashes.SHA256()).public_bytes(pem),
        "key": key.private_bytes(pem, *plain),
    }
    files = {name: folder / f"{name}.pem" for name in contents}
    for name, content in contents.items():
        files[name].write_bytes(content)
    return files
