"""What TLS refuses, in words for a person."""

from __future__ import annotations

import ssl

from geocomm.security.keys import RENEW

# What OpenSSL found wrong with the peer's certificate (X509_V_ERR_*), and what it was told of ours (TLS alerts).
_FOUND = {
    7: "its certificate was not signed by this job's CA; are both folders from the same geocomm keys create?",
    9: "its certificate is not valid yet; set the clocks of both machines right",
    10: f"its certificate has expired; renew it: {RENEW}",
    12: "the list of revoked certificates here (crl.pem) has expired; copy the newest from where the CA's key is",
    18: "its certificate was not signed by this job's CA; are both folders from the same geocomm keys create?",
    19: "its certificate was not signed by this job's CA; are both folders from the same geocomm keys create?",
    20: "its certificate was not signed by this job's CA; are both folders from the same geocomm keys create?",
    23: "its certificate has been revoked (crl.pem)",
}
_TOLD = {
    "CERTIFICATE_EXPIRED": f"it says that this site's certificate has expired; renew it: {RENEW}",
    "CERTIFICATE_REVOKED": "it says that this site's certificate has been revoked",
    "UNKNOWN_CA": "it says that this site's certificate is not of its job's CA; are both of one geocomm keys create?",
    "DECRYPT_ERROR": "it says that this site's certificate is not of its job's CA; are both of one job?",
    "BAD_CERTIFICATE": "it says that this site's certificate is not good, perhaps not valid yet; compare the clocks",
    "CERTIFICATE_REQUIRED": "it asks for a certificate, and none was sent; set GEOCOMM_KEYS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no certificate; is GEOCOMM_KEYS set there?",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; is another program on that port, or a peer without keys?",
    "HTTP_REQUEST": "it speaks plain HTTP",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
}


def explain(error: ssl.SSLError) -> str:
    """Why a handshake failed, and what to do, in words for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _FOUND.get(error.verify_code, f"its certificate is not good: {error.verify_message}")
    reason = error.reason or ""
    for part, text in _TOLD.items():
        if reason.endswith(part):
            return text
    return f"TLS failed: {reason or error}"
