#include "transport/stream_binding.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

#include "core/log.h"

namespace geocomm::transport {

namespace {

StreamBinding::Proof prove(const BindingKey& key, std::uint16_t stream, std::uint32_t generation) {
  std::array<unsigned char, sizeof stream + sizeof generation> text;
  std::memcpy(text.data(), &stream, sizeof stream);
  std::memcpy(text.data() + sizeof stream, &generation, sizeof generation);
  StreamBinding::Proof proof{};
  unsigned int bytes = 0;
  // It fails only without memory, and then proves nothing.
  (void)HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(), proof.data(),
             &bytes);
  return proof;
}

}  // namespace

void StreamBinding::restart(const Connection& control) {
  if (control.peer_name() == nullptr) return;
  previous_ = key_;
  key_.reset();
  const auto key = control.binding_key();
  if (!key.is_ok()) return core::log(core::LogLevel::Warning, key.status().message());
  key_ = *key;
}

StreamBinding::Proof StreamBinding::proof(std::uint16_t stream, std::uint32_t generation) const {
  return key_ ? prove(*key_, stream, generation) : Proof{};
}

bool StreamBinding::holds(const Connection& connection, const HelloPayload& hello) const {
  if (connection.peer_name() == nullptr || hello.stream == 0) return true;
  for (const auto& key : {key_, previous_}) {
    if (!key) continue;
    const Proof expected = prove(*key, hello.stream, hello.generation);
    if (CRYPTO_memcmp(expected.data(), hello.binding.data(), expected.size()) == 0) return true;
  }
  return false;
}

}  // namespace geocomm::transport
