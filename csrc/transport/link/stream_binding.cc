#include "transport/link/stream_binding.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/log.h"

namespace geocomm::transport {

namespace {

// Who records marks and plays them again has those of this many connections at most.
constexpr std::size_t kMostMarks = 4096;

// It fails only without memory, and then proves nothing.
StreamBinding::Proof hmac(const BindingKey& key, std::span<const std::uint8_t> text) {
  StreamBinding::Proof proof{};
  unsigned int bytes = 0;
  (void)HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(), proof.data(),
             &bytes);
  return proof;
}

StreamBinding::Proof prove(const BindingKey& key, std::uint16_t stream, std::uint32_t generation) {
  std::array<std::uint8_t, sizeof stream + sizeof generation> text;
  std::memcpy(text.data(), &stream, sizeof stream);
  std::memcpy(text.data() + sizeof stream, &generation, sizeof generation);
  return hmac(key, text);
}

// These HMACs and those of prove() are of texts of three lengths: none stands for another.
decltype(LinkMark::link) name_of(const BindingKey& key) {
  static constexpr std::array<std::uint8_t, 4> kText = {'l', 'i', 'n', 'k'};
  decltype(LinkMark::link) name;
  std::copy_n(hmac(key, kText).begin(), name.size(), name.begin());
  return name;
}

decltype(LinkMark::proof) prove_mark(const BindingKey& key, const decltype(LinkMark::number)& number) {
  decltype(LinkMark::proof) proof;
  std::copy_n(hmac(key, number).begin(), proof.size(), proof.begin());
  return proof;
}

}  // namespace

void StreamBinding::restart(const Connection& control) {
  if (control.peer_name() == nullptr) return;
  previous_ = std::exchange(now_, std::nullopt);
  const auto key = control.binding_key();
  if (!key.is_ok()) return core::log(core::LogLevel::Warning, key.status().message());
  now_ = Secret{*key, name_of(*key), {}};
}

StreamBinding::Proof StreamBinding::proof(std::uint16_t stream, std::uint32_t generation) const {
  return now_ ? prove(now_->key, stream, generation) : Proof{};
}

bool StreamBinding::holds(const Connection& connection, const HelloPayload& hello) const {
  if (connection.peer_name() == nullptr || hello.stream == 0) return true;
  for (const auto* secret : {&now_, &previous_}) {
    if (!*secret) continue;
    const Proof expected = prove((*secret)->key, hello.stream, hello.generation);
    if (CRYPTO_memcmp(expected.data(), hello.binding.data(), expected.size()) == 0) return true;
  }
  return false;
}

std::string StreamBinding::next_mark() {
  if (!now_) return {};
  LinkMark mark;
  mark.link = now_->name;
  std::memcpy(mark.number.data(), &++marks_, sizeof marks_);
  mark.proof = prove_mark(now_->key, mark.number);
  return server_name(mark);
}

bool StreamBinding::recognizes(const LinkMark& mark) {
  for (auto* secret : {&now_, &previous_}) {
    if (!*secret || (*secret)->name != mark.link || (*secret)->came.size() >= kMostMarks) continue;
    const auto expected = prove_mark((*secret)->key, mark.number);
    if (CRYPTO_memcmp(expected.data(), mark.proof.data(), expected.size()) != 0) return false;
    // spec channel 2.6: "A mark MUST count once."
    return (*secret)->came.insert(mark.number).second;
  }
  return false;
}

}  // namespace geocomm::transport
