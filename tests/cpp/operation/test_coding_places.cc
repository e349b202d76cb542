// Where operations are coded once that has been measured.
#include <gtest/gtest.h>

#include "binding/operation/coding_places.h"

namespace geocomm::binding {
namespace {

TEST(CodingPlaces, test_operations_are_coded_where_it_was_measured_to_be_sooner) {
  CodingPlaces places;
  EXPECT_TRUE(places.is_on_device("int8", 1)) << "nobody has measured it";
  places.set_least_bytes("int8", 1000);
  places.set_least_bytes("bit1", CodingPlaces::kNever);
  places.set_least_bytes("int4", 0);
  EXPECT_FALSE(places.is_on_device("int8", 999));
  EXPECT_TRUE(places.is_on_device("int8", 1000));
  EXPECT_FALSE(places.is_on_device("bit1", CodingPlaces::kNever));
  EXPECT_TRUE(places.is_on_device("int4", 0));
  places.set_least_bytes("int8", CodingPlaces::kNever);
  EXPECT_FALSE(places.is_on_device("int8", 1000));
}

}  // namespace
}  // namespace geocomm::binding
