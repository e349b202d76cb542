#include "codec/cuda/block_encode.cuh"

namespace geocomm::codec::cuda {

core::Status encode_int_blocks(CodecId id, core::DType dtype, const BlockEncode& args, Stream stream) {
  return id == CodecId::Int8 ? launch_encode_blocks<IntCoder<CodecId::Int8>>(args, dtype, stream)
                             : launch_encode_blocks<IntCoder<CodecId::Int4>>(args, dtype, stream);
}

}  // namespace geocomm::codec::cuda
