#include "transport/endpoint.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "core/fork.h"
#include "core/must_not_throw.h"
#include "core/str.h"
#include "transport/io/io_loop.h"
#include "transport/io/socket.h"
#include "transport/io/tls_keys.h"
#include "transport/link/acceptor.h"
#include "transport/link/handshake.h"
#include "transport/link/stream_plan.h"
#include "transport/rdma/rdma_stream.h"
#include "transport/tcp_channel.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

constexpr std::chrono::milliseconds kDestructorPatience{1000};
// For what shutdown() and abort() do on the IO thread, which waits for no peer.
constexpr std::chrono::milliseconds kClosingPatience{2000};
// A channel that is half made, or half ended, would keep its operations waiting.
constexpr const char* kEndpointCall = "ended a call of an endpoint";

// Whoever lets go of a forgotten channel last: its timers are the IO thread's while that runs.
struct FreesChannel {
  void operator()(TcpChannel* gone) const {
    if (!mark.is_here()) return;  // it is the parent's
    core::must_not_throw(kEndpointCall, [&] {
      // Not as a TcpChannel, which would take this for an owner of its own.
      (void)loop->post([last = std::shared_ptr<void>(
                            gone, [](void* channel) { delete static_cast<TcpChannel*>(channel); })] {});
    });
  }
  std::shared_ptr<IoLoop> loop;
  core::ProcessMark mark{};
};

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(std::shared_ptr<ChannelContext> context, std::uint16_t port)
      : context_(std::move(context)), port_(port) {}

  ~TcpEndpoint() override {
    // What it leaves undone, its channels say.
    (void)shutdown(core::Deadline::after(kDestructorPatience));
    // The IO thread uses this object; its channels, which have shares of the loop, may outlive it.
    while (mark_.is_here() && !over_)
      over_ = context_->loop->stop(core::Deadline::after(kDestructorPatience));
  }

  Status start(Fd listener) {
    context_->on_closed = [this] {
      std::lock_guard lock(mutex_);
      --open_channels_;
      closed_.notify_all();
    };
    const Status accepting = core::without_throwing([&] {
      acceptor_ = std::make_unique<Acceptor>(
          *context_->loop, std::move(listener), context_->keys.get(),
          [this](const std::string& host) { return known_hosts_.contains(host); },
          [this](const LinkMark& mark) { return is_ours(mark); },
          [this](HalfOpen& half_open, const ReceivedHello& hello) { return on_hello(half_open, hello); });
      return acceptor_->start();
    });
    const Status running = context_->loop->start();  // also if that failed: the destructor needs it
    return accepting.is_ok() ? running : accepting;
  }

  const ProcessId& id() const override { return context_->self; }
  std::uint16_t port() const override { return port_; }

  void allow(const JobToken& token) override {
    std::lock_guard lock(mutex_);
    tokens_.insert(token);
  }

  Result<std::shared_ptr<Channel>> connect(const PeerAddress& peer, const JobToken& token) override;
  void forget(const ProcessId& process, const Status& why) override;
  void forget_others(const std::set<ProcessId>& kept, const Status& why) override;
  void close_group(std::uint64_t group, const Status& why, QueuedChunks queued) override;
  Status shutdown(core::Deadline deadline) override;
  void abort(const Status& why) override;
  bool is_over() const override { return over_; }

  std::vector<std::shared_ptr<Channel>> channels() const override {
    const auto all = snapshot();
    return {all.begin(), all.end()};
  }

 private:
  using ChannelPtr = std::shared_ptr<TcpChannel>;

  std::vector<ChannelPtr> snapshot() const {
    std::lock_guard lock(mutex_);
    std::vector<ChannelPtr> all;
    for (const auto& [id, channel] : channels_) all.push_back(channel);
    return all;
  }

  ChannelPtr find(const ProcessId& peer) const {
    std::lock_guard lock(mutex_);
    const auto found = channels_.find(peer);
    return found == channels_.end() ? nullptr : found->second;
  }
  ChannelPtr find_or_create(const ProcessId& peer, const std::string& description);
  ChannelPtr create_locked(const ProcessId& peer, const std::string& description);
  void run_to_end(core::Task task);
  bool is_ours(const LinkMark& mark) const;
  Status on_hello(HalfOpen& half_open, const ReceivedHello& hello);
  Status check_site(const Connection& connection, const ProcessId& sender);

  const std::shared_ptr<ChannelContext> context_;
  const std::uint16_t port_;
  std::unique_ptr<Acceptor> acceptor_;      // the IO thread's, once it runs
  std::map<ProcessId, TlsName> certified_;  // the IO thread's: of peers that have dialed
  std::set<std::string> known_hosts_;       // the IO thread's: where peers are, or dialed from

  const core::ProcessMark mark_;
  std::mutex shutdown_mutex_;  // held by shutdown(): a second call waits for the first one
  bool shut_down_ = false;
  std::atomic<bool> over_{false};

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable closed_;
  std::size_t open_channels_ = 0;  // whose link has not closed, also those that are forgotten
  Status refusal_;                 // why there are no new channels; Ok while there are
  std::set<JobToken> tokens_;      // allowed
  std::map<ProcessId, ChannelPtr> channels_;
  std::map<ProcessId, std::string> expected_sites_;
  std::set<ProcessId> forgotten_;  // by forget(), and not connected to since
};

TcpEndpoint::ChannelPtr TcpEndpoint::find_or_create(const ProcessId& peer, const std::string& description) {
  std::lock_guard lock(mutex_);
  if (const auto found = channels_.find(peer); found != channels_.end()) return found->second;
  if (!refusal_.is_ok() || forgotten_.contains(peer)) return nullptr;
  return create_locked(peer, description);
}

TcpEndpoint::ChannelPtr TcpEndpoint::create_locked(const ProcessId& peer, const std::string& description) {
  const ChannelPtr made(new TcpChannel(context_, peer, description), FreesChannel{context_->loop});
  channels_.emplace(peer, made);  // nobody finds one that could not be made
  ++open_channels_;
  return made;
}

Result<std::shared_ptr<Channel>> TcpEndpoint::connect(const PeerAddress& peer, const JobToken& token) {
  if (peer.id == context_->self) {
    return Status(StatusCode::InvalidArgument, "a process has no channel to itself");
  }
  const bool dials = context_->self > peer.id;
  if (peer.rdma && !context_->rdma) {
    return Status(StatusCode::InvalidArgument,
                  core::str("RDMA to ", peer.description, " was asked for, and this endpoint has none"));
  }
  if (dials && (peer.host.empty() || peer.port == 0)) {
    return Status(StatusCode::InvalidArgument, core::str("no address of ", peer.description, ": host '",
                                                         peer.host, "', port ", peer.port));
  }
  // A name is checked when it is resolved.
  const std::vector<SocketAddress> numeric = numeric_addresses(peer.host, peer.port);
  if (context_->loopback_only && !numeric.empty() && numeric.size() == hosts_of(peer.host).size() &&
      std::none_of(numeric.begin(), numeric.end(), [](const auto& one) { return one.is_loopback(); })) {
    return no_plaintext(core::str(peer.description, " at ", numeric.front().to_string()))
        .with_peer(std::string(peer.description));
  }
  ChannelPtr channel;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  if (!refusal_.is_ok()) return refusal_;
  tokens_.insert(token);
  forgotten_.erase(peer.id);
  if (!peer.site.empty()) expected_sites_[peer.id] = peer.site;
  const auto found = channels_.find(peer.id);
  const bool is_new = found == channels_.end();
  channel = is_new ? create_locked(peer.id, peer.description) : found->second;
  const Status asked = core::without_throwing([&] {
    channel->describe(peer.description);
    const bool runs = context_->loop->post([this, channel, peer, token, dials, numeric] {
      for (const SocketAddress& one : numeric) known_hosts_.insert(one.host());
      // It may have dialed before this process knew its site.
      const auto certified = certified_.find(peer.id);
      if (certified != certified_.end() && !peer.site.empty() && certified->second.site != peer.site) {
        return channel->link().fail(wrong_site(certified->second, peer.site));
      }
      channel->link().connect(peer, token, dials);
    });
    return runs ? Status::ok() : Status(StatusCode::Aborted, "this process has shut its endpoint down");
  });
  if (asked.is_ok()) return std::shared_ptr<Channel>(channel);
  // Nobody finds a channel that was not told to connect.
  if (is_new) open_channels_ -= channels_.erase(peer.id);
  return asked;
}

// The sender must have the certificate of the site to which this process knows it to belong, and the same one
// on all its streams.
Status TcpEndpoint::check_site(const Connection& connection, const ProcessId& sender) {
  const TlsName* name = connection.peer_name();
  if (name == nullptr) return Status::ok();
  const auto [certified, is_new] = certified_.try_emplace(sender, *name);
  if (!is_new && certified->second.site != name->site) return wrong_site(*name, certified->second.site);
  std::lock_guard lock(mutex_);
  // spec channel 2.2: "SITE MUST be that of the process id in the roll call."
  const auto expected = expected_sites_.find(sender);
  if (expected == expected_sites_.end() || expected->second == name->site) return Status::ok();
  if (is_new) certified_.erase(certified);
  return wrong_site(*name, expected->second);
}

bool TcpEndpoint::is_ours(const LinkMark& mark) const {
  const auto all = snapshot();
  return std::any_of(all.begin(), all.end(),
                     [&](const ChannelPtr& one) { return one->link().recognizes(mark); });
}

// What a stranger learns is "try again": everything else is said only to who knows a token.
Status TcpEndpoint::on_hello(HalfOpen& half_open, const ReceivedHello& received) {
  const HelloPayload& hello = received.payload;
  const SocketAddress from = SocketAddress::peer_of(half_open.fd());
  // spec channel 2.4: "both sides MUST refuse addresses beyond loopback."
  if (context_->loopback_only && !from.is_loopback()) {
    return no_plaintext(from.to_string());
  }
  {
    std::lock_guard lock(mutex_);
    if (!tokens_.contains(hello.token)) {
      if (received.version != kWireVersion) return version_mismatch(received.version);
      return {kTryAgain, "this process does not know the job's token (yet): is it a process of another job?"};
    }
    if (hello.receiver == context_->self && forgotten_.contains(hello.sender)) {
      return {kTryAgain, "this process has let go of that one, and may connect to it again"};
    }
  }
  if (hello.receiver != context_->self) {
    return {StatusCode::Network,
            core::str("this is process ", short_id(context_->self), ", not ", short_id(hello.receiver),
                      ": the address leads to another process than it should. Check GEOCOMM_ADDRESS and "
                      "GEOCOMM_PORT")};
  }
  GEOCOMM_RETURN_IF_ERROR(check_site(*half_open.connection(), hello.sender));
  known_hosts_.insert(from.host());
  if (const ChannelPtr known = find(hello.sender);
      known ? known->link().dials() : hello.sender <= context_->self) {
    if (known && known->link().closed())
      return {StatusCode::PeerLost, "the channel with this process has ended"};
    if (hello.generation == 0 || !known || known->link().was_ready()) {
      // It does not want a connection, but to know whether there still is a channel, and to be found.
      if (known) known->link().heard_from(from.host());
      return {StatusCode::InvalidArgument, "of two processes the one with the larger id dials first"};
    }
    if (hello.stream != 0 || !known->link().yields())
      return {kTryAgain, "the other end of this link connects already"};
  }
  const ChannelPtr channel =
      find_or_create(hello.sender, core::str("process ", short_id(hello.sender), " at ", from.to_string()));
  if (!channel) return {StatusCode::Aborted, "this process has shut its endpoint down"};
  if (received.version != kWireVersion) {
    Status mismatch = version_mismatch(received.version);
    channel->link().fail(Status(mismatch.code(), core::str(channel->peer(), ": ", mismatch.message())));
    return mismatch;
  }
  // spec channel 2.5: "It MUST close any other connection without an answer."
  if (!channel->link().is_bound(*half_open.connection(), hello)) {
    // Not told: an honest peer, whose control stream has just changed, dials again with a new proof.
    (void)half_open.take();
    return {StatusCode::Authentication,
            core::str("stream ", hello.stream, " does not prove that it belongs to ", channel->peer())};
  }
  GEOCOMM_RETURN_IF_ERROR(channel->link().admit(hello));
  tune_stream(half_open.fd(), channel->link().tuning());
  const HelloPayload welcome = channel->link().welcome(hello);
  if (Status sent = send_hello_packet(*half_open.connection(), PacketType::Welcome, welcome); !sent.is_ok()) {
    channel->link().not_adopted(hello.stream);
    return sent;
  }
  channel->link().adopt(half_open.take(), hello);
  channel->link().heard_from(from.host());
  return Status::ok();
}

void TcpEndpoint::forget(const ProcessId& process, const Status& why) {
  ChannelPtr channel;
  {
    std::lock_guard lock(mutex_);
    const auto found = channels_.find(process);
    if (found == channels_.end()) return;
    forgotten_.insert(process);  // first: it may throw
    channel = std::move(found->second);
    channels_.erase(found);
    expected_sites_.erase(process);
  }
  core::must_not_throw(kEndpointCall, [&] {
    run_to_end([this, channel, process, why] {
      certified_.erase(process);
      channel->link().fail(why);
    });
  });
}

// On the IO thread, and waits for it; if that asks, after the callback that does, which may be in the middle
// of a channel.
void TcpEndpoint::run_to_end(core::Task task) {
  if (context_->loop->in_loop()) {
    context_->loop->post(std::move(task));
  } else {
    (void)context_->loop->run(std::move(task), core::Deadline::after(kClosingPatience));
  }
}

void TcpEndpoint::forget_others(const std::set<ProcessId>& kept, const Status& why) {
  std::vector<ProcessId> gone;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, channel] : channels_) {
      if (!kept.contains(id) || !channel->status().is_ok()) gone.push_back(id);
    }
  }
  for (const ProcessId& id : gone) forget(id, why);
}

void TcpEndpoint::close_group(std::uint64_t group, const Status& why, QueuedChunks queued) {
  context_->closed_groups.add(group);
  for (const ChannelPtr& channel : snapshot()) channel->close_group(group, why, queued);
}

Status TcpEndpoint::shutdown(core::Deadline deadline) {
  if (!mark_.is_here()) return core::inherited_by_fork();
  if (context_->loop->in_loop()) {
    return {StatusCode::InvalidArgument, "shutdown() was called from a sink or a callback of the IO thread"};
  }
  std::lock_guard shutdown_lock(shutdown_mutex_);
  if (std::exchange(shut_down_, true)) return Status::ok();
  {
    std::lock_guard lock(mutex_);
    if (refusal_.is_ok()) refusal_ = Status(StatusCode::Aborted, "this process has shut its endpoint down");
  }
  const std::vector<ChannelPtr> all = snapshot();
  (void)context_->loop->run(
      [all] {
        for (const ChannelPtr& channel : all) channel->link().begin_close();
      },
      deadline);
  {
    std::unique_lock lock(mutex_);
    closed_.wait_until(lock, deadline.when(), [&] { return open_channels_ == 0; });
  }
  const core::Deadline closing = core::Deadline::after(kClosingPatience);
  const auto late = std::make_shared<std::string>();
  const bool closed = context_->loop->run(
      [this, all, late] {
        for (const ChannelPtr& channel : all) {
          if (channel->link().closed()) continue;
          *late += (late->empty() ? "" : ", ") + channel->peer();
          channel->link().fail({StatusCode::Aborted, "shut down before everything was sent"});
        }
        if (acceptor_) acceptor_->close();
      },
      closing);
  over_ = context_->loop->stop(closing);
  if (!closed || !over_) {
    return {StatusCode::Timeout,
            "shut down while the IO thread was held up: a callback of an operation did not return"};
  }
  if (late->empty()) return Status::ok();
  return {StatusCode::Timeout,
          core::str("shut down without a Close from ", *late, ": what was queued for them may be lost")};
}

void TcpEndpoint::abort(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (refusal_.is_ok()) refusal_ = why;
  }
  core::must_not_throw(kEndpointCall, [&] {
    run_to_end([this, why] {
      if (acceptor_) acceptor_->close();
      for (const ChannelPtr& channel : snapshot()) channel->link().fail(why);
    });
  });
}

// The larger id dials: this byte is first.
constexpr std::uint8_t kDialsAll = 0xFF;

Result<ProcessId> random_id(bool outbound_only) {
  ProcessId id;
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) {
    return Status(StatusCode::Internal, "no random bytes from the kernel").with_errno(errno);
  }
  id[0] = outbound_only ? kDialsAll : static_cast<std::uint8_t>(id[0] % kDialsAll);
  return id;
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::create(const EndpointOptions& options) {
  if (options.streams < 0 || options.streams > static_cast<int>(kMaxDataStreams)) {
    return Status(StatusCode::InvalidArgument,
                  core::str("streams is ", options.streams, ", expected 1 to ", kMaxDataStreams, ", or 0"));
  }
  if (options.link_deadline <= std::chrono::milliseconds(0)) {
    return Status(StatusCode::InvalidArgument, "link_deadline must be positive");
  }
  if (options.security == Security::Insecure && !options.keys.empty()) {
    return Status(
        StatusCode::InvalidArgument,
        "keys and security=insecure contradict each other: leave GEOCOMM_SECURITY or GEOCOMM_KEYS out");
  }
  auto context = std::make_shared<ChannelContext>();
  if (!options.keys.empty()) {
    GEOCOMM_ASSIGN_OR_RETURN(context->keys, TlsKeys::load(options.keys));
    if (const TlsName& name = context->keys->name(); !options.site.empty() && name.site != options.site) {
      return Status(StatusCode::InvalidArgument,
                    core::str("the keys in ", options.keys, " are of ", name.uri(), ", but this is site '",
                              options.site, "': set GEOCOMM_KEYS to the folder of this site"));
    }
    if (options.tls_threads > 1) {
      auto threads = std::make_unique<core::ThreadPool>(options.tls_threads, "geocomm-tls");
      if (threads->thread_count() > 1) context->tls_threads = std::move(threads);
    }
  }
  if (!options.rdma.library.empty()) {
    if (options.security == Security::Required && !options.rdma.trusted) {
      return Status(
          StatusCode::Authentication,
          "transport=rdma sends plaintext over the RDMA fabric, which security=required forbids: "
          "declare that you trust the fabric (GEOCOMM_RDMA_TRUSTED=1), or use GEOCOMM_TRANSPORT=tcp");
    }
    GEOCOMM_ASSIGN_OR_RETURN(context->rdma, load_rdma_fabric(options.rdma));
    context->rdma_stream = [&context = *context](std::unique_ptr<Connection> connection,
                                                 const Carrier& carrier,
                                                 StreamDelegate& delegate) -> std::unique_ptr<Stream> {
      return std::make_unique<RdmaStream>(*context.loop, std::move(connection), carrier, delegate,
                                          *context.rdma);
    };
  }
  context->options = options;  // a link's part of them
  context->loopback_only = options.security == Security::Required && !context->keys;
  const int least = bbr_allowed() ? kStreamsWithBbr : kStreamsWithout;
  context->first_streams = static_cast<std::uint16_t>(options.streams == 0 ? least : options.streams);
  context->buffers = buffer_limits();
  GEOCOMM_ASSIGN_OR_RETURN(context->self, random_id(options.outbound_only));
  GEOCOMM_ASSIGN_OR_RETURN(Fd listener, open_listener(options.bind_address, options.port,
                                                      context->loopback_only, options.port_patience));
  GEOCOMM_ASSIGN_OR_RETURN(context->loop, IoLoop::create());
  const std::uint16_t port = SocketAddress::local_of(listener.get()).port();
  auto endpoint = std::make_unique<TcpEndpoint>(std::move(context), port);
  GEOCOMM_RETURN_IF_ERROR(endpoint->start(std::move(listener)));
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

}  // namespace geocomm::transport
