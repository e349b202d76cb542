#include "transport/rdma/ucx/ucx_names.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string_view>

namespace geocomm::transport {

namespace {

template <typename Print>
std::string printed(Print print) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string result(text, bytes);
  std::free(text);  // NOLINT: open_memstream's
  return result;
}

// Of lines that contain `mark`, the word before the first '/' that stands in a word of its own:
// "resource 1 : md 1 dev 1 flags -- tcp/lo", "lane[0]:  4:rc_mlx5/mlx5_0:1.0 md[5] -> md[5]/ib/sysdev[0] am".
std::vector<std::string> names_in(const std::string& text, std::string_view mark) {
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(mark) == std::string::npos) continue;
    const std::size_t end = line.find('/');
    if (end == std::string::npos) continue;
    std::size_t begin = end;
    while (begin > 0 &&
           (std::isalnum(static_cast<unsigned char>(line[begin - 1])) != 0 || line[begin - 1] == '_')) {
      --begin;
    }
    const std::string name = line.substr(begin, end - begin);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), name) != all.end();
}

bool begins_with_one_of(const std::string& name, std::initializer_list<std::string_view> all) {
  return std::any_of(all.begin(), all.end(), [&](std::string_view one) { return name.starts_with(one); });
}

}  // namespace

std::vector<std::string> transports_of(ucp_context_h context) {
  return names_in(printed([&](std::FILE* stream) { ucp_context_print_info(context, stream); }), "resource ");
}

std::vector<std::string> transports_of(ucp_ep_h endpoint) {
  return names_in(printed([&](std::FILE* stream) { ucp_ep_print_info(endpoint, stream); }), "lane[");
}

bool is_rdma(const std::string& transport) {
  return begins_with_one_of(transport, {"rc_", "dc_", "ud_", "gga_", "srd", "ugni"});
}

bool is_local(const std::string& transport) {
  return is_one_of(transport, {"self", "sysv", "posix", "cma", "knem", "xpmem"});
}

std::string listed(const std::vector<std::string>& transports) {
  std::string text;
  for (const std::string& one : transports) text += (text.empty() ? "" : ", ") + one;
  return text.empty() ? "none" : text;
}

}  // namespace geocomm::transport
