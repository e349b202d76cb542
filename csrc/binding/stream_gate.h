// A gate in a CUDA stream: the stream stops there until the host opens it. No kernel waits (the front end of
// the device polls a word of pinned memory), and opening needs no CUDA call, so it cannot wait for the device
// in turn. Knows nothing of torch.
#pragma once

#include <cstdint>
#include <memory>

namespace geocomm::binding {

class StreamGate {
 public:
  // Whether this build, driver and device can do it. Settled at the first call for the current device.
  static bool is_supported();

  // A closed gate, in no stream yet. nullptr: no pinned memory is left.
  static std::shared_ptr<StreamGate> create();

  // Stops `stream` (cudaStream_t) of the current device here until the gate is open. False: the driver
  // refused.
  bool enqueue(void* stream);

  // Whether `stream` is being captured into a CUDA graph, where there can be no gate.
  static bool is_capturing(void* stream);

  // Thread-safe, also before enqueue(); opening twice is no error. The last reference opens too: no stream is
  // left waiting.
  void open();
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

 private:
  StreamGate(std::uint32_t* word, std::uint32_t value) : word_(word), value_(value) {}

  std::uint32_t* const word_;  // pinned
  const std::uint32_t value_;  // the gate is open once the word has reached it
};

}  // namespace geocomm::binding
