// Records of a TLS session made by hand, to cut what OpenSSL says where it never would.
#pragma once

#include <gtest/gtest.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace geocomm::transport::testing {

// Of the dialer of a session by TLS_AES_256_GCM_SHA384. Speaks in its place, behind the records that it sent.
class DialerRecords {
 public:
  // Before the handshake; `this` stays where it is. Takes the app data of `ssl`.
  explicit DialerRecords(SSL& ssl) {
    SSL_set_app_data(&ssl, this);
    SSL_CTX_set_keylog_callback(SSL_get_SSL_CTX(&ssl), [](const SSL* session, const char* line) {
      static_cast<DialerRecords*>(SSL_get_app_data(session))->note(line);
    });
  }
  DialerRecords(const DialerRecords&) = delete;
  DialerRecords& operator=(const DialerRecords&) = delete;

  // `sent_before`: records of data under these keys.
  void send(int fd, std::uint8_t type, std::string_view content, std::uint64_t sent_before = 0) {
    ASSERT_EQ(secret_.size(), 48U) << "no handshake";
    std::string inside(content);
    inside += static_cast<char>(type);
    std::string record("\x17\x03\x03", 3);  // data, by its looks
    const std::size_t bytes = inside.size() + kTagBytes;
    record += static_cast<char>(bytes >> 8);
    record += static_cast<char>(bytes);
    record += seal(inside, record, sent_before + sent_++);
    ASSERT_EQ(::send(fd, record.data(), record.size(), MSG_NOSIGNAL), static_cast<ssize_t>(record.size()));
  }
  // Behind a KeyUpdate.
  void change_keys() {
    secret_ = derive("traffic upd", secret_.size());
    sent_ = 0;
  }

 private:
  static constexpr std::size_t kTagBytes = 16;

  void note(std::string_view line) {
    if (!line.starts_with("CLIENT_TRAFFIC_SECRET_0 ")) return;
    const std::string_view hex = line.substr(line.rfind(' ') + 1);
    secret_.clear();
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      secret_ += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    }
  }
  // RFC 8446, 7.1: HKDF-Expand-Label(secret, label, "", bytes).
  std::string derive(std::string label, std::size_t bytes) {
    const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
        EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_TLS1_3_KDF, nullptr), &EVP_KDF_free);
    const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(kdf.get()),
                                                                            &EVP_KDF_CTX_free);
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    std::string digest = "SHA384";
    std::string prefix = "tls13 ";
    const std::array<OSSL_PARAM, 6> parameters = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret_.data(), secret_.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, prefix.data(), prefix.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_LABEL, label.data(), label.size()),
        OSSL_PARAM_construct_end()};
    std::string derived(bytes, '\0');
    EXPECT_EQ(EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(derived.data()), bytes,
                             parameters.data()),
              1);
    return derived;
  }
  std::string seal(const std::string& inside, const std::string& header, std::uint64_t number) {
    const std::string key = derive("key", 32);
    std::string nonce = derive("iv", 12);
    for (std::size_t i = 0; i < 8; ++i) {
      nonce[11 - i] = static_cast<char>(nonce[11 - i] ^ static_cast<char>(number >> (8 * i)));
    }
    const auto bytes_of = [](const std::string& text) {
      return reinterpret_cast<const unsigned char*>(text.data());
    };
    const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(),
                                                                                  &EVP_CIPHER_CTX_free);
    std::string sealed(inside.size() + kTagBytes, '\0');
    auto* out = reinterpret_cast<unsigned char*>(sealed.data());
    int count = 0;
    EXPECT_EQ(EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, bytes_of(key), bytes_of(nonce)),
              1);
    EXPECT_EQ(
        EVP_EncryptUpdate(context.get(), nullptr, &count, bytes_of(header), static_cast<int>(header.size())),
        1);
    EXPECT_EQ(
        EVP_EncryptUpdate(context.get(), out, &count, bytes_of(inside), static_cast<int>(inside.size())), 1);
    EXPECT_EQ(EVP_EncryptFinal_ex(context.get(), out + count, &count), 1);
    EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, int{kTagBytes}, out + inside.size()),
              1);
    return sealed;
  }

  std::string secret_;
  std::uint64_t sent_ = 0;
};

}  // namespace geocomm::transport::testing
