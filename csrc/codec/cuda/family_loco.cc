// Loco: chunks choose as TopK's do, and each writes a record. Received ones go the other way: all is checked,
// then zeros are put where nothing was chosen, and the values to their places.
#include "codec/cuda/codec_family.h"
#include "codec/cuda/loco_stages.h"

namespace geocomm::codec::cuda {
namespace {

using core::Status;

bool is_supported(const CodecSpec& spec) {
  return spec.entropy == Entropy::None;
}

std::size_t room_bytes(const CodecSpec& spec, core::DType, const PayloadPlan& plan) {
  return loco_space_bytes(spec, plan);
}

Status encode(const EncodeRun& run) {
  const LocoEncode args = cut_loco_encoding(run.spec, run.input);
  GEOCOMM_RETURN_IF_ERROR(choose_elements(run.dtype, args.chosen, run.stream));
  GEOCOMM_RETURN_IF_ERROR(write_loco_records(args, run.stream));
  return place_sections(run, args.chosen.space.sections, false);
}

Status decode(const DecodeRun& run) {
  const LocoDecode args = cut_loco_decoding(run.args);
  GEOCOMM_RETURN_IF_ERROR(expect_loco_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(walk_sections(run, args.sections, LocoSection::Head, LocoSection::Records));
  GEOCOMM_RETURN_IF_ERROR(read_loco_heads(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(walk_sections(run, args.sections, LocoSection::Records, LocoSection::Raw));
  GEOCOMM_RETURN_IF_ERROR(check_loco_levels(args, run.stream));
  GEOCOMM_RETURN_IF_ERROR(walk_sections(run, args.sections, LocoSection::Raw, LocoSection::Count));
  GEOCOMM_RETURN_IF_ERROR(check_loco_places(args, run.stream));
  return put_loco_values(args, run.stream);
}

}  // namespace

const CodecFamily kLocoFamily{is_supported, room_bytes, encode, decode};

}  // namespace geocomm::codec::cuda
