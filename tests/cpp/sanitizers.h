// The sanitizers that a test is compiled with: GCC tells by macros, Clang by features.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define GEOCOMM_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GEOCOMM_UNDER_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define GEOCOMM_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GEOCOMM_UNDER_TSAN 1
#endif
#endif

namespace geocomm {

#ifdef GEOCOMM_UNDER_ASAN
inline constexpr bool kUnderAsan = true;
#else
inline constexpr bool kUnderAsan = false;
#endif
#ifdef GEOCOMM_UNDER_TSAN
inline constexpr bool kUnderTsan = true;  // it ends a forked child that starts a thread
#else
inline constexpr bool kUnderTsan = false;
#endif

}  // namespace geocomm
