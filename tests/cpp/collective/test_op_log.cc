// What the log keeps of operations, and that what it keeps is bounded.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/run/op_log.h"

namespace geocomm::collective {
namespace {

std::shared_ptr<OpRecord> issued_in(OpLog& log) {
  auto record = std::make_shared<OpRecord>(OpTimes());
  log.issue(record);
  return record;
}

TEST(OpLog, AnOperationUnderWayNamesWhoHasNotCome) {
  OpLog log;
  const auto record = issued_in(log);
  record->begins("");
  record->awaits(1, "rank 1", false);
  record->awaits(2, "rank 2", false);
  record->arrived(2, 100, 50);
  const std::vector<OpTimes> read = log.read(0);
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].number, 1U);
  EXPECT_EQ(read[0].ended, 0U);
  ASSERT_EQ(read[0].peers.size(), 2U);
  EXPECT_EQ(read[0].peers[0].first_in, 0U);
  EXPECT_GE(read[0].peers[1].first_in, read[0].began);
  EXPECT_GE(read[0].began, read[0].issued);
}

TEST(OpLog, TimesOfAnOperationFollowEachOther) {
  OpLog log;
  const auto record = issued_in(log);
  record->begins("int8");
  record->awaits(1, "rank 1", false);
  record->made_frame(OpRecord::now());
  record->sent(400, 100);
  record->arrived(1, 400, 100);
  const std::uint64_t first = record->times().peers[0].first_in;
  record->arrived(1, 400, 100);
  record->awaits(1, "rank 1", false);
  record->begins("");  // a second part, which moves bytes
  record->exchanged();
  record->wait_begins();
  record->wait_ends();
  record->ended(false);
  const OpTimes times = record->times();
  EXPECT_EQ(times.codec, "int8");
  EXPECT_EQ(times.raw_bytes_received, 800U);
  ASSERT_EQ(times.peers.size(), 1U);
  EXPECT_EQ(times.peers[0].first_in, first);
  EXPECT_GE(times.peers[0].last_in, first);
  EXPECT_LE(times.began, times.encoded);
  EXPECT_LE(times.encoded, times.peers[0].last_in);
  EXPECT_LE(times.peers[0].last_in, times.exchanged);
  EXPECT_LE(times.exchanged, times.ended);
  EXPECT_LE(times.wait_began, times.wait_ended);
}

TEST(OpLog, KeepsTheLastOnesAndReadsOnFromANumber) {
  OpLog log;
  for (std::size_t i = 0; i < OpLog::kKept + 10; ++i) issued_in(log);
  const std::vector<OpTimes> all = log.read(0);
  ASSERT_EQ(all.size(), OpLog::kKept);
  EXPECT_EQ(all.front().number, 11U);
  EXPECT_EQ(all.back().number, OpLog::kKept + 10);
  const std::vector<OpTimes> news = log.read(OpLog::kKept + 8);
  ASSERT_EQ(news.size(), 2U);
  EXPECT_EQ(news[0].number, OpLog::kKept + 9);
  EXPECT_TRUE(log.read(OpLog::kKept + 10).empty());
  EXPECT_TRUE(log.read(~std::uint64_t{0}).empty());
}

}  // namespace
}  // namespace geocomm::collective
