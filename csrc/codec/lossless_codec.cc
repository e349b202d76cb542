#include "codec/payload_codec.h"

namespace geocomm::codec {
namespace {

std::size_t bound_of(const CodecSpec&, core::DType, std::size_t) {
  return 0;
}

std::size_t encode_frame(const FrameInput&, std::byte*) {
  return kResortToNone;
}

bool is_possible_size(const CodecSpec&, core::DType, std::size_t, std::size_t) {
  return false;
}

core::Status decode_frame(const FrameView&, Sink, std::byte*) {
  return {core::StatusCode::CorruptData, "codec frame: not written by this version"};
}

}  // namespace

const PayloadCodec kLosslessCodec{bound_of, encode_frame, is_possible_size, decode_frame};

}  // namespace geocomm::codec
