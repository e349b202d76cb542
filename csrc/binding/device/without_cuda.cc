// In place of device/cuda: the module without CUDA, which finds no streams that wait for the host and no
// kernels, so that what is behind them is never reached.
#include "binding/device/cuda_streams.h"
#include "binding/device/device_reduction.h"
#include "binding/device/device_side.h"
#include "binding/device/device_tensor_codec.h"

namespace geocomm::binding {
namespace {

[[noreturn]] void refuse() {
  throw_status(core::StatusCode::Unsupported, "this build of geocomm has no CUDA kernels");
}

}  // namespace

DeviceStreams* cuda_streams() {
  return nullptr;
}
bool is_capturing(void*) {
  return false;
}
BesideCapture::BesideCapture() : mode_(0) {}
BesideCapture::~BesideCapture() = default;

c10::Stream own_stream(StreamDriver::Stream, const at::Device&) {
  refuse();
}

class DeviceReduction::Kernels {};
class DeviceReduction::Batched {};

std::shared_ptr<DeviceReduction> DeviceReduction::create(collective::Exchange&, const collective::OpContext&,
                                                         collective::ReduceOp,
                                                         std::vector<collective::StripeData>,
                                                         std::optional<ResidualUse>) {
  return nullptr;
}
void DeviceReduction::enqueue_contributions() {}
core::Status DeviceReduction::exchange() {
  return core::Status::ok();
}
void DeviceReduction::enqueue_results() {}
core::Status DeviceReduction::wait_for_contributions(std::uint32_t, core::Deadline) {
  return core::Status::ok();
}
void DeviceReduction::contributions_arrived(std::uint32_t) {}
core::Status DeviceReduction::wait_for_results(std::uint32_t, core::Deadline) {
  return core::Status::ok();
}

bool has_device_codec(const codec::CodecSpec&, core::DType, const at::Device&) {
  return false;
}
at::Tensor compress_on_device(const codec::CodecSpec&, core::DType, const at::Tensor&,
                              const std::optional<at::Tensor>&, std::uint64_t, float) {
  refuse();
}
void decompress_on_device(const codec::PayloadInfo&, const at::Tensor&, const at::Tensor&, bool) {
  refuse();
}

}  // namespace geocomm::binding
