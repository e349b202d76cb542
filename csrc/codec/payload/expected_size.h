// How many bytes a codec is expected to make, before it has made them: for plans that all ranks must draw up
// alike, so it looks at no data.
#pragma once

#include "codec/spec/codec_spec.h"
#include "core/dtype.h"

namespace geocomm::codec {

// Bytes per element of `dtype` in frames of normal numbers. Within 3 % of what they take (tests measure it);
// gradients take less where there is an entropy stage. What a codec cannot take crosses as it is.
double expected_bytes_per_element(const CodecSpec& spec, core::DType dtype);

}  // namespace geocomm::codec
