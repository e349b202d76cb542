#include "codec/cuda/block_encode.cuh"

namespace geocomm::codec::cuda {

core::Status encode_bit_blocks(CodecId id, core::DType dtype, const BlockEncode& args, Stream stream) {
  switch (id) {
    case CodecId::Bit2:
      return launch_encode_blocks<Bit2Coder>(args, dtype, stream);
    default:
      return launch_encode_blocks<Bit1Coder>(args, dtype, stream);
  }
}

}  // namespace geocomm::codec::cuda
