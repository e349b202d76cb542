#include "transport/io/offload.h"

#include <atomic>
#include <cstdint>
#include <utility>

namespace geocomm::transport {

struct Offload::Piece {
  enum class Phase : std::uint8_t { Waits, Runs, Over };

  Piece(core::Task its_work, core::Task its_then) : work(std::move(its_work)), then(std::move(its_then)) {}

  std::atomic<Phase> phase{Phase::Waits};
  const core::Task work;
  core::Task then;  // the IO thread's; empty: cancelled
};

void Offload::begin(core::Task work, core::Task then) {
  piece_ = std::make_shared<Piece>(std::move(work), [this, then = std::move(then)] {
    piece_.reset();
    then();
  });
  threads_.submit([piece = piece_, &loop = loop_] {
    auto waits = Piece::Phase::Waits;
    if (!piece->phase.compare_exchange_strong(waits, Piece::Phase::Runs)) return;
    piece->work();
    piece->phase = Piece::Phase::Over;
    piece->phase.notify_all();
    (void)loop.post([piece] {
      if (const core::Task last = std::exchange(piece->then, nullptr)) last();
    });
  });
}

void Offload::cancel() {
  if (!piece_) return;
  auto waits = Piece::Phase::Waits;
  if (!piece_->phase.compare_exchange_strong(waits, Piece::Phase::Over))
    piece_->phase.wait(Piece::Phase::Runs);
  piece_->then = nullptr;
  piece_.reset();
}

}  // namespace geocomm::transport
