// Mail over real channels: order, bounds, peers that send something else, and who lets go of what.
#include <future>
#include <thread>

#include "transport/mail/mail.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {
namespace {

constexpr std::uint64_t kMaxMail = 32 << 20;
constexpr std::uint64_t kRoundGroup = std::uint64_t{1} << 63;

core::GrowingExecutor& mail_executor() {
  static core::GrowingExecutor executor("test-mail");
  return executor;
}

// Shuts its endpoint down when it is closed, as its last user does, or, if others use it, leaves it open.
std::unique_ptr<Mail> mail_over(const std::shared_ptr<Endpoint>& endpoint, bool shared = false,
                                std::uint64_t max_bytes = kMaxMail) {
  const auto release = [endpoint, shared](std::chrono::milliseconds patience) {
    if (!shared) (void)endpoint->shutdown(Deadline::after(patience));
    return !shared;
  };
  return std::make_unique<Mail>(endpoint, release, token(1), max_bytes, mail_executor());
}

// What becomes of one receive.
class Letter {
 public:
  Mail::Then then() {
    return [state = state_](const core::Result<core::Buffer>& content) { state->set_value(content); };
  }
  core::Result<core::Buffer> wait() {
    auto future = state_->get_future();
    if (future.wait_for(kPatience) == std::future_status::ready) return future.get();
    return Status(StatusCode::Timeout, "no word of the letter");
  }
  std::vector<std::byte> bytes() {
    const auto content = wait();
    EXPECT_TRUE(content.is_ok()) << content.status().to_string();
    if (!content.is_ok()) return {};
    const auto span = content->span();
    return {span.begin(), span.end()};
  }
  StatusCode code() { return wait().status().code(); }

 private:
  std::shared_ptr<std::promise<core::Result<core::Buffer>>> state_ =
      std::make_shared<std::promise<core::Result<core::Buffer>>>();
};

// Two processes that know each other.
struct MailPair {
  explicit MailPair(bool shared = false) {
    for (auto& endpoint : endpoints) endpoint = make_endpoint();
    for (int i = 0; i < 2; ++i) mails[i] = mail_over(endpoints[i], shared);
    introduce();
  }
  ~MailPair() {
    for (auto& mail : mails) mail.reset();
    for (auto& endpoint : endpoints) (void)endpoint->shutdown(Deadline::after(kPatience));
  }
  void introduce() {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(mails[i]->peer(address_of(*endpoints[1 - i], "the other")).is_ok());
    }
  }
  const ProcessId& id(int i) const { return endpoints[i]->id(); }
  Status send(std::uint64_t round, std::uint64_t part, std::size_t bytes, std::uint64_t seed) {
    return mails[0]->send(id(1), round, part, buffer_of(pattern(bytes, seed)));
  }
  Status receive(std::uint64_t round, std::uint64_t part, Letter& letter) {
    return mails[1]->receive(id(0), round, part, letter.then());
  }

  std::array<std::shared_ptr<Endpoint>, 2> endpoints;
  std::array<std::unique_ptr<Mail>, 2> mails;
};

TEST(Mail, test_content_of_any_length_arrives_by_its_name_in_whatever_order_it_is_asked_for) {
  MailPair pair;
  const std::size_t sizes[] = {0, 1, 8, 4 << 20, (4 << 20) + 1, 9 << 20};
  std::uint64_t part = 0;
  for (const std::size_t size : sizes) ASSERT_TRUE(pair.send(7, part++, size, size).is_ok());
  std::vector<Letter> letters(part);
  while (part-- > 0) ASSERT_TRUE(pair.receive(7, part, letters[part]).is_ok());
  for (std::size_t i = 0; i < letters.size(); ++i) {
    EXPECT_EQ(letters[i].bytes(), pattern(sizes[i], sizes[i])) << sizes[i];
  }
}

TEST(Mail, test_receive_before_the_send_and_before_the_connection_gets_the_content) {
  auto endpoint = std::shared_ptr<Endpoint>(make_endpoint());
  auto other = std::shared_ptr<Endpoint>(make_endpoint());
  const auto mail = mail_over(endpoint);
  const auto theirs = mail_over(other);
  ASSERT_TRUE(mail->peer(address_of(*other, "the other")).is_ok());
  Letter letter;
  ASSERT_TRUE(mail->receive(other->id(), 1, 1, letter.then()).is_ok());
  ASSERT_TRUE(theirs->peer(address_of(*endpoint, "the first")).is_ok());
  ASSERT_TRUE(theirs->send(endpoint->id(), 1, 1, buffer_of(pattern(100, 1))).is_ok());
  EXPECT_EQ(letter.bytes(), pattern(100, 1));
}

TEST(Mail, test_rounds_and_parts_with_equal_low_bits_are_different_mail) {
  MailPair pair;
  Letter letters[3];
  ASSERT_TRUE(pair.receive(Mail::kMostRounds - 1, Mail::kMostParts - 1, letters[0]).is_ok());
  ASSERT_TRUE(pair.receive(0, 0, letters[1]).is_ok());
  ASSERT_TRUE(pair.receive(0, 1, letters[2]).is_ok());
  ASSERT_TRUE(pair.send(0, 1, 30, 3).is_ok());
  ASSERT_TRUE(pair.send(0, 0, 20, 2).is_ok());
  ASSERT_TRUE(pair.send(Mail::kMostRounds - 1, Mail::kMostParts - 1, 10, 1).is_ok());
  EXPECT_EQ(letters[0].bytes(), pattern(10, 1));
  EXPECT_EQ(letters[1].bytes(), pattern(20, 2));
  EXPECT_EQ(letters[2].bytes(), pattern(30, 3));
}

TEST(Mail, test_names_beyond_their_bounds_are_invalid_arguments) {
  MailPair pair;
  Letter letter;
  EXPECT_EQ(pair.send(Mail::kMostRounds, 0, 1, 1).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(pair.receive(0, Mail::kMostParts, letter).code(), StatusCode::InvalidArgument);
  EXPECT_EQ(pair.mails[0]->end_round(Mail::kMostRounds).code(), StatusCode::InvalidArgument);
}

TEST(Mail, test_content_beyond_the_receivers_bound_is_corrupt_and_the_next_arrives) {
  auto endpoint = std::shared_ptr<Endpoint>(make_endpoint());
  auto other = std::shared_ptr<Endpoint>(make_endpoint());
  const auto narrow = mail_over(endpoint, false, 1000);
  const auto theirs = mail_over(other);
  ASSERT_TRUE(narrow->peer(address_of(*other, "the other")).is_ok());
  ASSERT_TRUE(theirs->peer(address_of(*endpoint, "the narrow one")).is_ok());
  Letter most, more, next;
  const auto receive = [&](std::uint64_t part, Letter& letter) {
    ASSERT_TRUE(narrow->receive(other->id(), 1, part, letter.then()).is_ok());
  };
  receive(0, most);
  receive(1, more);
  receive(2, next);
  for (const auto& [part, bytes] : {std::pair(0, 1000), {1, 1001}, {2, 5}}) {
    ASSERT_TRUE(theirs->send(endpoint->id(), 1, part, buffer_of(pattern(bytes, part))).is_ok());
  }
  EXPECT_EQ(most.bytes(), pattern(1000, 0));
  EXPECT_EQ(more.code(), StatusCode::CorruptData);
  EXPECT_EQ(next.bytes(), pattern(5, 2));
}

// A peer that speaks the transport's language but not mail's: what it announces and what it sends differ.
struct ForgingPeer {
  ForgingPeer() {
    endpoint = make_endpoint();
    forger = make_endpoint();
    mail = mail_over(endpoint);
    EXPECT_TRUE(mail->peer(address_of(*forger, "the forger")).is_ok());
    channel = *forger->connect(address_of(*endpoint, "the mail"), token(1));
  }
  ~ForgingPeer() { forger->abort({StatusCode::Aborted, "the test is over"}); }
  void announce(std::uint64_t part, std::uint64_t length, std::uint64_t descriptor = 0x4C49414D) {
    std::vector<std::byte> bytes(8);
    std::memcpy(bytes.data(), &length, 8);
    send({kRoundGroup | 1, 2 * part}, bytes, 0, 1, descriptor);
  }
  void send(OpKey key, const std::vector<std::byte>& bytes, std::uint32_t chunk, std::uint32_t count,
            std::uint64_t descriptor) {
    ASSERT_TRUE(channel->send(chunk_of(key, bytes, chunk, count, descriptor)).is_ok());
  }
  StatusCode received(std::uint64_t part) {
    Letter letter;
    EXPECT_TRUE(mail->receive(forger->id(), 1, part, letter.then()).is_ok());
    return letter.code();
  }

  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Endpoint> forger;
  std::unique_ptr<Mail> mail;
  std::shared_ptr<Channel> channel;
};

TEST(Mail, test_more_bytes_than_were_announced_are_corrupt) {
  ForgingPeer peer;
  peer.announce(0, 100);
  peer.send({kRoundGroup | 1, 1}, pattern(101, 1), 0, 1, 100);
  EXPECT_EQ(peer.received(0), StatusCode::CorruptData);
}

TEST(Mail, test_fewer_bytes_than_were_announced_are_corrupt) {
  ForgingPeer peer;
  peer.announce(0, 100);
  peer.send({kRoundGroup | 1, 1}, pattern(99, 1), 0, 1, 100);
  EXPECT_EQ(peer.received(0), StatusCode::CorruptData);
}

TEST(Mail, test_bytes_of_another_length_than_announced_are_corrupt) {
  ForgingPeer peer;
  peer.announce(0, 100);
  peer.send({kRoundGroup | 1, 1}, pattern(100, 1), 0, 1, 200);
  EXPECT_EQ(peer.received(0), StatusCode::CorruptData);
}

TEST(Mail, test_length_in_other_than_eight_bytes_or_of_something_else_is_corrupt) {
  ForgingPeer peer;
  peer.send({kRoundGroup | 1, 0}, pattern(9, 1), 0, 1, 0x4C49414D);
  EXPECT_EQ(peer.received(0), StatusCode::CorruptData);
  peer.announce(1, 100, 7);
  EXPECT_EQ(peer.received(1), StatusCode::CorruptData);
  peer.announce(2, 0);
  Letter letter;
  ASSERT_TRUE(peer.mail->receive(peer.forger->id(), 1, 2, letter.then()).is_ok());
  EXPECT_TRUE(letter.bytes().empty());
}

TEST(Mail, test_round_that_ends_ends_its_receives_and_no_others) {
  MailPair pair;
  Letter ended, late, other;
  ASSERT_TRUE(pair.receive(1, 0, ended).is_ok());
  ASSERT_TRUE(pair.receive(2, 0, other).is_ok());
  ASSERT_TRUE(pair.mails[1]->end_round(1).is_ok());
  EXPECT_EQ(ended.code(), StatusCode::Aborted);
  ASSERT_TRUE(pair.receive(1, 1, late).is_ok());
  EXPECT_EQ(late.code(), StatusCode::Aborted);
  ASSERT_TRUE(pair.send(1, 0, 10, 1).is_ok());
  ASSERT_TRUE(pair.send(2, 0, 10, 2).is_ok());
  EXPECT_EQ(other.bytes(), pattern(10, 2));
}

TEST(Mail, test_part_is_received_once) {
  MailPair pair;
  Letter first, again;
  ASSERT_TRUE(pair.receive(1, 0, first).is_ok());
  ASSERT_TRUE(pair.receive(1, 0, again).is_ok());
  EXPECT_EQ(again.code(), StatusCode::InvalidArgument);
  ASSERT_TRUE(pair.send(1, 0, 10, 1).is_ok());
  EXPECT_EQ(first.bytes(), pattern(10, 1));
}

TEST(Mail, test_unknown_and_forgotten_peers_get_nothing_and_a_known_again_one_does) {
  MailPair pair;
  Letter unknown, forgotten, again;
  ASSERT_TRUE(pair.mails[1]->receive(pair.id(1), 1, 0, unknown.then()).is_ok());
  EXPECT_EQ(unknown.code(), StatusCode::Aborted);
  ASSERT_TRUE(pair.receive(1, 0, forgotten).is_ok());
  ASSERT_TRUE(pair.mails[1]->forget(pair.id(0)).is_ok());
  EXPECT_EQ(forgotten.code(), StatusCode::Aborted);
  ASSERT_TRUE(pair.mails[0]->forget(pair.id(1)).is_ok());
  EXPECT_TRUE(pair.send(1, 1, 10, 1).is_ok());  // dropped without a word
  pair.introduce();
  ASSERT_TRUE(pair.receive(1, 2, again).is_ok());
  ASSERT_TRUE(pair.send(1, 2, 10, 2).is_ok());
  EXPECT_EQ(again.bytes(), pattern(10, 2));
}

TEST(Mail, test_what_is_queued_when_it_closes_still_arrives) {
  MailPair pair;
  Letter letter;
  ASSERT_TRUE(pair.send(1, 0, 20 << 20, 1).is_ok());
  std::thread closing([&] { EXPECT_TRUE(pair.mails[0]->close(kPatience).is_ok()); });
  ASSERT_TRUE(pair.receive(1, 0, letter).is_ok());
  EXPECT_EQ(letter.bytes(), pattern(20 << 20, 1));
  closing.join();
}

TEST(Mail, test_closed_mail_ends_its_receives_and_leaves_an_endpoint_that_others_use_open) {
  MailPair pair(true);
  Letter open, late;
  ASSERT_TRUE(pair.receive(1, 0, open).is_ok());
  ASSERT_TRUE(pair.mails[1]->close(kPatience).is_ok());
  EXPECT_EQ(open.code(), StatusCode::Aborted);
  ASSERT_TRUE(pair.receive(1, 1, late).is_ok());
  EXPECT_EQ(late.code(), StatusCode::Aborted);
  EXPECT_EQ(pair.mails[1]->peer(address_of(*pair.endpoints[0], "again")).code(), StatusCode::Aborted);
  EXPECT_TRUE(pair.mails[1]->close(kPatience).is_ok());
  EXPECT_FALSE(pair.endpoints[1]->is_over());
  const auto second = mail_over(pair.endpoints[1], true);
  ASSERT_TRUE(second->peer(address_of(*pair.endpoints[0], "the other")).is_ok());
  Letter letter;
  ASSERT_TRUE(second->receive(pair.id(0), 2, 0, letter.then()).is_ok());
  ASSERT_TRUE(pair.send(2, 0, 10, 1).is_ok());
  EXPECT_EQ(letter.bytes(), pattern(10, 1));
}

TEST(Mail, test_content_is_held_until_it_is_sent_and_no_longer) {
  MailPair pair;
  auto freed = std::make_shared<std::promise<void>>();
  auto data = pattern(5 << 20, 1);
  {
    const std::shared_ptr<std::byte> memory(data.data(), [freed](std::byte*) { freed->set_value(); });
    ASSERT_TRUE(pair.mails[0]->send(pair.id(1), 1, 0, core::Buffer::around(memory, data.size())).is_ok());
  }
  Letter letter;
  ASSERT_TRUE(pair.receive(1, 0, letter).is_ok());
  EXPECT_EQ(letter.bytes(), data);
  EXPECT_EQ(freed->get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(Mail, test_receive_may_ask_for_the_next_and_wait_for_it) {
  MailPair pair;
  Letter outer, inner;
  ASSERT_TRUE(pair.mails[1]
                  ->receive(pair.id(0), 1, 0,
                            [&, then = outer.then()](const core::Result<core::Buffer>& content) {
                              EXPECT_TRUE(pair.receive(1, 1, inner).is_ok());
                              EXPECT_EQ(inner.bytes(), pattern(10, 1));
                              then(content);
                            })
                  .is_ok());
  ASSERT_TRUE(pair.send(1, 0, 10, 0).is_ok());
  ASSERT_TRUE(pair.send(1, 1, 10, 1).is_ok());
  EXPECT_EQ(outer.bytes(), pattern(10, 0));
}

TEST(Mail, test_rows_name_the_peers_and_their_state) {
  MailPair pair;
  Letter letter;
  ASSERT_TRUE(pair.receive(1, 0, letter).is_ok());
  ASSERT_TRUE(pair.send(1, 0, 10, 1).is_ok());
  EXPECT_EQ(letter.bytes(), pattern(10, 1));
  const auto rows = pair.mails[1]->peers();
  ASSERT_TRUE(rows.is_ok());
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(rows->front().id, pair.id(0));
  EXPECT_EQ(rows->front().description, "the other");
  EXPECT_EQ(rows->front().state, "connected");
  EXPECT_GE(rows->front().stats.bytes_received, 18u);
}

}  // namespace
}  // namespace geocomm::transport::testing
