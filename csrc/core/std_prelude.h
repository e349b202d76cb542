// Precompiled for every layer: what most of their files include. A file still includes what it uses itself;
// builds without precompiled headers (sanitizers, ccache) hold it to that.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>
