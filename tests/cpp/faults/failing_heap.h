// A heap of which one allocation fails, and children that meet it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace geocomm::faults {

// Of operator new, of all threads: the allocation after `before` more fails, and it alone.
void fail_after(std::int64_t before);
// Whether it was asked for by now. None fails any more.
bool stop_failing();

enum class Outcome : std::uint8_t { Right, Error, Wrong, Threw };

// Runs `scenario` in a forked child for the first allocation, the second, and so on until there are no more:
// each is to end as `may_abort` says, with a right answer or an error, or else by abort() with words on
// stderr. The scenario calls fail_after(before) once it is to begin. Every `stride`th allocation alone, where
// all take too long. Returns how many were tried.
std::int64_t try_each(const std::function<Outcome(std::int64_t before)>& scenario, bool may_abort,
                      std::int64_t stride);

}  // namespace geocomm::faults
