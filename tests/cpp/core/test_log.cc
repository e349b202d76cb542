#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/str.h"

namespace geocomm::core {
namespace {

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
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "geocomm warning: link down\n");
  EXPECT_TRUE(lines_.empty());
}

TEST(Str, test_str_joins_parts) {
  EXPECT_EQ(str("a", 1, 'b', 2.5), "a1b2.5");
}

}  // namespace
}  // namespace geocomm::core
