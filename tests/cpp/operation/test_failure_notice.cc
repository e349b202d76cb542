#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "binding/operation/failure_notice.h"
#include "transport/endpoint.h"

namespace geocomm::binding {
namespace {

using core::Status;
using core::StatusCode;
using namespace std::chrono_literals;  // NOLINT

Status example() {
  return Status(StatusCode::PeerLost, "lost rank 3: it died").with_peer("rank 3 (site b, 10.0.0.2:4000)");
}

TEST(FailureNoticeBytes, test_decode_of_an_encoded_status_keeps_code_peer_and_message) {
  for (int code = 0; code <= static_cast<int>(StatusCode::Internal); ++code) {
    const auto decoded =
        decode_notice(encode_notice(Status(static_cast<StatusCode>(code), "what").with_peer("who")));
    EXPECT_EQ(decoded.code(), static_cast<StatusCode>(code));
    if (code == 0) continue;
    EXPECT_EQ(decoded.message(), "what");
    EXPECT_EQ(decoded.peer(), "who");
  }
}

TEST(FailureNoticeBytes, test_decode_of_bytes_cut_before_the_message_is_corrupt_data) {
  const auto bytes = encode_notice(example());
  const std::size_t message_at = 4 + example().peer().size() + 1;
  for (std::size_t size = 0; size < message_at; ++size) {
    EXPECT_EQ(decode_notice(std::span(bytes).first(size)).code(), StatusCode::CorruptData) << size;
  }
  EXPECT_EQ(decode_notice(std::span(bytes).first(message_at)).code(), StatusCode::PeerLost);
}

TEST(FailureNoticeBytes, test_decode_of_an_unknown_code_is_corrupt_data) {
  auto bytes = encode_notice(example());
  for (const std::size_t at : {0U, 1U, 2U, 3U}) {
    auto changed = bytes;
    changed[at] = std::byte{0xff};
    EXPECT_EQ(decode_notice(changed).code(), StatusCode::CorruptData) << at;
  }
}

TEST(FailureNoticeBytes, test_encode_of_a_long_status_is_cut_to_the_cap) {
  const auto bytes =
      encode_notice(Status(StatusCode::Timeout, std::string(10'000, 'm')).with_peer(std::string(5'000, 'p')));
  EXPECT_EQ(bytes.size(), kMaxNoticeBytes);
  EXPECT_EQ(decode_notice(bytes).code(), StatusCode::Timeout);
  EXPECT_EQ(decode_notice(std::vector<std::byte>(kMaxNoticeBytes + 1)).code(), StatusCode::CorruptData);
}

// Two processes' endpoints in this one, with a notice of one group on each side of their channel.
class FailureNoticeTest : public ::testing::Test {
 protected:
  struct Side {
    std::unique_ptr<transport::Endpoint> endpoint;
    std::shared_ptr<FailureNotice> notice;
    // Shared with the callback, which may run while the test ends.
    std::shared_ptr<std::promise<Status>> heard = std::make_shared<std::promise<Status>>();
  };

  void SetUp() override {
    transport::EndpointOptions options;
    options.bind_address = "127.0.0.1";
    for (auto& side : sides_) {
      auto created = transport::Endpoint::create(options);
      ASSERT_TRUE(created.is_ok()) << created.status().to_string();
      side.endpoint = std::move(created).value();
      side.endpoint->allow(kToken);
    }
    std::vector<std::shared_ptr<transport::Channel>> channels;
    for (int i = 0; i < 2; ++i) {
      const auto& other = *sides_[1 - i].endpoint;
      auto channel = sides_[i].endpoint->connect(
          {other.id(), "127.0.0.1", other.port(), "rank " + std::to_string(1 - i) + " (site x)"}, kToken);
      ASSERT_TRUE(channel.is_ok()) << channel.status().to_string();
      channels.push_back(std::move(channel).value());
    }
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(channels[i]->wait_ready(core::Deadline::after(20s)).is_ok());
      sides_[i].notice = std::make_shared<FailureNotice>(7, std::vector{channels[i]}, executor_, buffers_);
      sides_[i].notice->listen([heard = sides_[i].heard](const Status& status) { heard->set_value(status); });
    }
  }

  static constexpr transport::JobToken kToken{1, 2, 3};
  core::GrowingExecutor executor_{"notice-test"};
  core::BufferPool buffers_;
  Side sides_[2];
};

// spec operations 6.1: "A rank MUST tell its neighbours when its group fails"
TEST_F(FailureNoticeTest, test_notice_sent_is_heard_once_with_who_told_it) {
  sides_[0].notice->send(example());
  sides_[0].notice->send(Status(StatusCode::Internal, "only the first counts"));
  auto future = sides_[1].heard->get_future();
  ASSERT_EQ(future.wait_for(20s), std::future_status::ready);
  const auto status = future.get();
  EXPECT_EQ(status.code(), StatusCode::PeerLost);
  EXPECT_EQ(status.peer(), example().peer());
  EXPECT_NE(status.message().find("rank 0"), std::string::npos);
}

TEST_F(FailureNoticeTest, test_notice_of_a_group_that_is_closed_at_once_is_heard_past_its_bulk) {
  const auto channel = sides_[0].endpoint->channels().front();
  auto payload = buffers_.acquire(std::size_t{1} << 20);
  payload.resize(std::size_t{1} << 20);
  for (std::uint32_t i = 0; i < 100; ++i) {  // more than the credit: nobody has posted it
    const Status queued =
        channel->send({.key = {.group = 7, .op = 1}, .chunk = i, .chunk_count = 100, .payload = payload});
    ASSERT_TRUE(queued.is_ok());
  }
  sides_[0].notice->send(example());
  sides_[0].endpoint->close_group(7, example(), transport::QueuedChunks::Drop);
  auto future = sides_[1].heard->get_future();
  ASSERT_EQ(future.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(future.get().code(), StatusCode::PeerLost);
  // Once the other side has ended the group as well, nothing of it is left on either.
  sides_[1].endpoint->close_group(7, example(), transport::QueuedChunks::Drop);
  const auto other = sides_[1].endpoint->channels().front();
  const auto end = std::chrono::steady_clock::now() + 20s;
  while ((channel->stats().early_bytes_sent > 0 || other->stats().early_bytes_held > 0) &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(channel->stats().early_bytes_sent, 0U);
  EXPECT_EQ(other->stats().early_bytes_held, 0U);
}

TEST_F(FailureNoticeTest, test_neighbour_that_dies_is_heard_as_lost) {
  sides_[0].endpoint->abort(Status(StatusCode::Aborted, "as a killed process would"));
  auto future = sides_[1].heard->get_future();
  ASSERT_EQ(future.wait_for(20s), std::future_status::ready);
  const auto status = future.get();
  EXPECT_EQ(status.code(), StatusCode::PeerLost);
  EXPECT_EQ(status.peer(), "rank 0 (site x)");
}

// spec operations 6.1: "and when it leaves."
TEST_F(FailureNoticeTest, test_neighbour_that_leaves_in_good_order_is_no_news) {
  sides_[0].notice->send(Status::ok());
  ASSERT_TRUE(sides_[0].endpoint->shutdown(core::Deadline::after(20s)).is_ok());
  ASSERT_TRUE(sides_[1].endpoint->shutdown(core::Deadline::after(20s)).is_ok());
  EXPECT_EQ(sides_[1].heard->get_future().wait_for(0s), std::future_status::timeout);
}

TEST_F(FailureNoticeTest, test_notice_closed_hears_nothing) {
  sides_[1].notice->close();
  sides_[0].notice->send(example());
  ASSERT_TRUE(sides_[0].endpoint->shutdown(core::Deadline::after(20s)).is_ok());
  ASSERT_TRUE(sides_[1].endpoint->shutdown(core::Deadline::after(20s)).is_ok());
  EXPECT_EQ(sides_[1].heard->get_future().wait_for(0s), std::future_status::timeout);
}

}  // namespace
}  // namespace geocomm::binding
