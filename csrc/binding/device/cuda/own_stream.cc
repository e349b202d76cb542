#include <c10/cuda/CUDAStream.h>

#include "binding/device/device_side.h"

namespace geocomm::binding {

c10::Stream own_stream(StreamDriver::Stream stream, const at::Device& device) {
  return c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), device.index()).unwrap();
}

}  // namespace geocomm::binding
