#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <iomanip>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../sanitizers.h"
#include "core/log.h"
#include "core/str.h"

namespace geocomm::core {
namespace {

// A line without the time in front of it; all of it where that is not there, or not now.
std::string without_time(const std::string& line) {
  std::tm then{};
  std::istringstream text(line);
  text >> std::get_time(&then, "%Y-%m-%dT%H:%M:%SZ ");
  const std::time_t age = std::time(nullptr) - timegm(&then);
  return text.fail() || age < 0 || age > 3600 ? line : line.substr(static_cast<std::size_t>(text.tellg()));
}

class Log : public testing::Test {
 protected:
  Log() : before_(log_level()) {
    set_log_sink([this](LogLevel level, const std::string& line) { lines_.emplace_back(level, line); });
  }
  ~Log() override {
    set_log_sink(nullptr);
    set_log_level(before_);
  }

  LogLevel before_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(Log, test_log_at_or_above_level_reaches_the_sink) {
  set_log_level(LogLevel::Info);
  log(LogLevel::Debug, "unseen");
  log(LogLevel::Info, "rank ", 3, " of ", 8);
  log(LogLevel::Error, "bad");
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0], std::pair(LogLevel::Info, std::string("rank 3 of 8")));
  EXPECT_EQ(lines_[1].first, LogLevel::Error);
}

TEST_F(Log, test_log_when_off_is_silent) {
  set_log_level(LogLevel::Off);
  log(LogLevel::Error, "bad");
  write_log(LogLevel::Off, "not a level of a line");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(Log, test_log_without_sink_goes_to_stderr) {
  set_log_level(LogLevel::Warning);
  set_log_sink(nullptr);
  testing::internal::CaptureStderr();
  log(LogLevel::Warning, "link down");
  EXPECT_TRUE(flush_log(Deadline::after(std::chrono::seconds(60))));
  EXPECT_EQ(without_time(testing::internal::GetCapturedStderr()), "geocomm warning: link down\n");
  EXPECT_TRUE(lines_.empty());
}

// In a process of its own, since lines stay so.
TEST(JsonLog, test_lines_are_objects_with_the_fields_and_escaped_text) {
  EXPECT_EXIT(
      {
        set_log_json("\"site\":\"a\",\"rank\":3,");
        log(LogLevel::Error, "he said \"no\\yes\"\n", '\x01');
        write_log_line("{\"own\":1}");
        flush_log(Deadline::after(std::chrono::seconds(60)));
        std::_Exit(0);
      },
      testing::ExitedWithCode(0),
      "^\\{\"time\":\"20[0-9-]+T[0-9:]+Z\",\"level\":\"error\",\"pid\":[0-9]+,\"site\":\"a\",\"rank\":3,"
      "\"message\":\"he said .\"no..yes.\".u000a.u0001\"\\}\n\\{\"own\":1\\}\n$");
}

// stderr is a pipe that nobody reads, already full.
class FullStderr {
 public:
  FullStderr() : before_(dup(STDERR_FILENO)) {
    EXPECT_TRUE(flush_log(Deadline::after(std::chrono::seconds(60))));
    EXPECT_EQ(pipe(ends_.data()), 0);
    EXPECT_EQ(fcntl(ends_[1], F_SETFL, O_NONBLOCK), 0);
    const std::string block(4096, '.');
    while (write(ends_[1], block.data(), block.size()) > 0) {
    }
    EXPECT_EQ(fcntl(ends_[1], F_SETFL, 0), 0);
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
  }
  // Whoever still writes gets an error.
  ~FullStderr() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(ends_[0]);
  }

  // All that was and will be written until `last`.
  std::string read_until(const std::string& last) const {
    std::string text;
    std::array<char, 65536> block;
    while (text.find(last) == std::string::npos) {
      const ssize_t count = read(ends_[0], block.data(), block.size());
      if (count <= 0) break;
      text.append(block.data(), static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  const int before_;
  std::array<int, 2> ends_{};
};

std::size_t seen_lines(const std::string& text) {
  std::size_t seen = 0;
  for (std::size_t at = 0; (at = text.find("geocomm warning: line ", at)) != std::string::npos; ++at) ++seen;
  return seen;
}

// The sum of what the lines about lines that were left out say.
std::size_t left_out_lines(const std::string& text) {
  constexpr std::string_view kAfter = " log lines were left out";
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(kAfter, at)) != std::string::npos; ++at) {
    count += std::stoul(text.substr(text.rfind(' ', at - 1) + 1, at));
  }
  return count;
}

TEST(FullLog, test_log_when_stderr_is_full_returns_and_counts_what_it_leaves_out) {
  constexpr std::size_t kLines = 5000;
  const std::string padding(200, '-');
  const FullStderr stderr_is_full;
  log(LogLevel::Warning, "first");
  for (std::size_t i = 0; i < kLines; ++i) log(LogLevel::Warning, "line ", i, ' ', padding);
  EXPECT_FALSE(flush_log(Deadline::after(std::chrono::milliseconds(10))));

  // Every line is there or counted, in one place or, where the writer came late, in several.
  std::string text = stderr_is_full.read_until("log lines were left out");
  while (seen_lines(text) + left_out_lines(text) < kLines) text += stderr_is_full.read_until("\n");
  log(LogLevel::Warning, "last");
  text += stderr_is_full.read_until("last\n");
  EXPECT_TRUE(flush_log(Deadline::after(std::chrono::seconds(60))));
  EXPECT_NE(text.find("geocomm warning: first\n"), std::string::npos);
  const std::size_t seen = seen_lines(text);
  EXPECT_GT(seen * padding.size(), kLogRoomBytes / 2);
  EXPECT_LT(seen * padding.size(), 3 * kLogRoomBytes);  // what the writer holds, and what waits for it
  EXPECT_EQ(left_out_lines(text), kLines - seen);
  EXPECT_NE(text.find("geocomm warning: last\n"), std::string::npos);
}

// The parent's writer holds what waits; the child has neither its thread nor its lines.
TEST(FullLog, test_child_of_a_fork_logs_with_a_writer_of_its_own) {
  if (kUnderTsan) GTEST_SKIP() << "not under ThreadSanitizer: a forked child starts a thread";
  std::array<int, 2> ends;
  ASSERT_EQ(pipe(ends.data()), 0);
  pid_t child = 0;
  {
    const FullStderr stderr_is_full;
    log(LogLevel::Warning, "of the parent");
    child = fork();
    if (child == 0) {
      dup2(ends[1], STDERR_FILENO);
      log(LogLevel::Warning, "of the child");
      _exit(flush_log(Deadline::after(std::chrono::seconds(60))) ? 0 : 1);
    }
    EXPECT_NE(stderr_is_full.read_until("of the parent\n").find("of the parent"), std::string::npos);
    EXPECT_TRUE(flush_log(Deadline::after(std::chrono::seconds(60))));
  }
  close(ends[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::array<char, 256> text{};
  const ssize_t count = read(ends[0], text.data(), text.size());
  EXPECT_EQ(without_time(std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)))),
            "geocomm warning: of the child\n");
  close(ends[0]);
}

TEST(FullLogDeathTest, test_lines_are_written_before_the_process_exits) {
  EXPECT_EXIT(
      {
        log(LogLevel::Warning, "the last word");
        std::exit(3);
      },
      testing::ExitedWithCode(3), "geocomm warning: the last word");
}

TEST(Str, test_str_joins_parts) {
  EXPECT_EQ(str("a", 1, 'b', 2.5), "a1b2.5");
}

}  // namespace
}  // namespace geocomm::core
