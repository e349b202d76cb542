// The driver of CUDA's streams, where this build, the driver and the device have what it takes. Knows nothing
// of torch.
#pragma once

#include "binding/operation/device_streams.h"

namespace geocomm::binding {

// Of the current device. nullptr: a stream cannot wait for the host there. Settled at the first call for the
// device.
DeviceStreams* cuda_streams();

// Whether `stream` (cudaStream_t) is being captured into a CUDA graph, where there can be no gate.
bool is_capturing(void* stream);

// While it lives, this thread's calls are none that a graph capture of another thread must forbid: what they
// enqueue is never part of it.
class BesideCapture {
 public:
  BesideCapture();
  ~BesideCapture();
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  int mode_;  // cudaStreamCaptureMode, which this thread had before
};

}  // namespace geocomm::binding
