// The stock process groups over the ranks of a site.
#pragma once

#include <map>

#include "binding/torch/torch_prelude.h"

namespace geocomm::binding {

// Gloo or NCCL: one for each stage inside the site. One for all in a group inside one site.
struct InnerPair {
  BackendPtr pre;
  BackendPtr post;
};
using InnerBackends = std::map<c10::DeviceType, InnerPair>;

}  // namespace geocomm::binding
