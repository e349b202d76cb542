// The streams of a channel by number, the connection that each has now, and what the earlier ones counted.
//
// The IO thread's, but for the statistics.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "transport/io/io_loop.h"
#include "transport/io/link_stats.h"
#include "transport/link/channel_stats.h"
#include "transport/link/stream.h"

namespace geocomm::transport {

class StreamSet {
 public:
  explicit StreamSet(std::shared_ptr<IoLoop> loop) : loop_(std::move(loop)) {}

  // Of control stream and data streams together; 0 until the first connection says how many there are.
  std::size_t size() const { return slots_.size(); }
  // Never less than before.
  void set_data_streams(std::uint16_t count);
  // As at first. Precondition: no connection is open.
  void begin_anew();
  // Null while stream `index` has no open connection.
  Stream* open(std::size_t index) const;
  Stream* control() const { return open(0); }
  std::size_t open_count() const;
  // Every stream has had a connection.
  bool all_were_open() const;
  std::size_t open_data_count() const { return open_count() - (control() == nullptr ? 0 : 1); }

  // The newest generation there was; 0: none.
  std::uint32_t generation(std::uint16_t index) const;
  std::uint32_t next_generation(std::uint16_t index) { return ++slots_[index].generation; }
  // Takes the place of the older connection, which must be closed.
  Stream& put(std::unique_ptr<Stream> stream);
  // The object stays until the loop's next round: its method may be running. last_contact: with the peer,
  // over any stream; an outage begins then, since a line that is silent has carried nothing.
  void close(Stream& stream, Timers::Time last_contact);
  void close_all(Timers::Time last_contact);
  // No stream that has had a connection is without one.
  bool complete() const { return !incomplete_since_; }
  // The last one that has ended; zero: none has.
  Timers::Clock::duration last_outage() const { return last_outage_; }
  // How long to wait at most before `index` is dialed again: more and more after connections that did not
  // last.
  std::chrono::milliseconds pause_before_redial(std::uint16_t index) const;

  // Any thread: fills in what the kernel and the connections know.
  void add_stats(ChannelStats& stats) const;

 private:
  void note_complete();

  struct Slot {
    std::unique_ptr<Stream> stream;
    std::uint32_t generation = 0;
    bool connected_before = false;
    Timers::Time opened;
    unsigned short_lives = 0;  // connections in a row
  };

  const std::shared_ptr<IoLoop> loop_;
  mutable std::mutex mutex_;  // the IO thread holds it to change what is below, others to look at it
  std::vector<Slot> slots_;
  std::uint64_t resumes_ = 0;
  std::uint64_t outages_ = 0;
  Timers::Clock::duration outage_time_{};
  Timers::Clock::duration last_outage_{};
  std::optional<Timers::Time> incomplete_since_;  // a connection is missing since then
  LinkStats closed_;                              // sums over the connections that are gone
};

}  // namespace geocomm::transport
