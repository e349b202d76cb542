#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "core/status.h"

namespace geocomm::core {
namespace {

TEST(Status, test_status_default_is_ok) {
  const Status status;
  EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::Ok);
  EXPECT_EQ(status.to_string(), "Ok");
}

TEST(Status, test_status_codes_keep_their_numbers_and_names) {
  EXPECT_EQ(static_cast<int>(StatusCode::CorruptData), 5);
  EXPECT_EQ(static_cast<int>(StatusCode::Internal), 12);
  std::set<std::string_view> names;
  for (int code = 0; code <= 12; ++code) names.insert(to_string(static_cast<StatusCode>(code)));
  EXPECT_EQ(names.size(), 13u);
}

TEST(Status, test_status_builders_fill_in_what_is_missing) {
  const Status status =
      Status(StatusCode::Timeout, "gone").with_peer("rank 3").with_op("all_reduce", 7).with_errno(ETIMEDOUT);
  EXPECT_EQ(status.peer(), "rank 3");
  EXPECT_EQ(status.op(), "all_reduce");
  EXPECT_EQ(status.seq(), 7);
  EXPECT_EQ(status.sys_errno(), ETIMEDOUT);
  for (const char* part : {"Timeout", "gone", "all_reduce", "7", "rank 3"}) {
    EXPECT_NE(status.to_string().find(part), std::string::npos) << part;
  }
}

TEST(Status, test_corrupt_of_parts_is_corrupt_data_with_one_message) {
  const Status status = corrupt("chunk ", 3, " of ", std::string("rank 1"));
  EXPECT_EQ(status.code(), StatusCode::CorruptData);
  EXPECT_EQ(status.message(), "chunk 3 of rank 1");
}

TEST(Status, test_status_builders_keep_what_is_set) {
  const Status status = Status(StatusCode::Network, "x")
                            .with_peer("a")
                            .with_peer("b")
                            .with_op("first", 1)
                            .with_op("second", 2)
                            .with_errno(EPIPE)
                            .with_errno(EIO);
  EXPECT_EQ(status.peer(), "a");
  EXPECT_EQ(status.op(), "first");
  EXPECT_EQ(status.seq(), 1);
  EXPECT_EQ(status.sys_errno(), EPIPE);
}

Result<int> half_of(int value) {
  if (value % 2 != 0) return Status(StatusCode::InvalidArgument, "odd");
  return value / 2;
}

Result<int> quarter_of(int value) {
  GEOCOMM_ASSIGN_OR_RETURN(const int half, half_of(value));
  GEOCOMM_ASSIGN_OR_RETURN(const int quarter, half_of(half));
  return quarter;
}

Status check_even(int value) {
  GEOCOMM_RETURN_IF_ERROR(half_of(value).status());
  return Status::ok();
}

TEST(Result, test_result_value_and_error_are_told_apart) {
  EXPECT_EQ(*half_of(4), 2);
  EXPECT_TRUE(half_of(4).status().is_ok());
  EXPECT_FALSE(half_of(3).is_ok());
  EXPECT_EQ(half_of(3).status().code(), StatusCode::InvalidArgument);
}

TEST(Result, test_result_macros_return_the_first_error) {
  EXPECT_EQ(*quarter_of(8), 2);
  EXPECT_EQ(quarter_of(6).status().code(), StatusCode::InvalidArgument);
  EXPECT_TRUE(check_even(2).is_ok());
  EXPECT_EQ(check_even(1).code(), StatusCode::InvalidArgument);
}

TEST(Result, test_result_of_move_only_value_can_be_taken) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

}  // namespace
}  // namespace geocomm::core
