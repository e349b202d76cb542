// A Connection of TLS 1.3 with mutual authentication. Made by TlsKeys.
#pragma once

#include <openssl/ossl_typ.h>

#include <memory>
#include <string>

#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/tls_keys.h"
#include "transport/io/tls_name.h"

namespace geocomm::transport {

// The peer's certificate must be trusted by `context` and be of the job of `own`. Authentication from its
// handshake() tells what is wrong with it, or what the peer finds wrong with ours; an acceptor may still
// write() (a Refuse) after it, unless the connection is broken.
core::Result<std::unique_ptr<Connection>> tls_connection(Fd fd, TlsRole role, SSL_CTX& context,
                                                         const TlsName& own, const RekeyLimits& rekey,
                                                         const std::string& server_name);
// For the verification callback of `context`: the peer's certificate (may be null) is not to be trusted.
void note_untrusted(SSL& ssl, const X509* certificate, int error);

}  // namespace geocomm::transport
