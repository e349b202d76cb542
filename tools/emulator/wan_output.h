// Copies what the sites print to the emulator's own stdout and stderr, line by line with the site's name in
// front.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "core/status.h"
#include "core/thread.h"
#include "emulator/wan_fd.h"

namespace geocomm::emulator {

class OutputPump {
 public:
  OutputPump() = default;
  ~OutputPump();
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // Before start(). `source` is a pipe's read end; what it says goes to `target_fd`.
  void add(const std::string& site, UniqueFd source, int target_fd);
  // Starts the thread, which ends when every pipe has ended.
  core::Status start();
  // True when all has been written. A reader of stdout that is stuck keeps this false.
  bool done() const { return done_; }

 private:
  struct Stream {
    std::string prefix;
    UniqueFd source;
    int target_fd = -1;
    std::string partial_line;
  };
  void run();
  // False: nobody reads the target any more.
  static bool forward(Stream& stream, std::string_view text);

  std::vector<Stream> streams_;
  std::atomic<bool> done_{true};
  std::thread thread_;
};

}  // namespace geocomm::emulator
