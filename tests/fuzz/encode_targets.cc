#include <bit>
#include <cmath>

#include "codec/entropy/plane.h"
#include "codec/frames/codec.h"
#include "codec/frames/elements.h"
#include "decode_case.h"
#include "decode_check.h"
#include "encode_case.h"

namespace geocomm::fuzz {
namespace {

using codec::CodecId;
using codec::CodecSpec;
using core::DType;
using core::StatusCode;

constexpr DType kEncodedTypes[] = {DType::Float32, DType::Float16, DType::BFloat16};

struct EncodeCase {
  CodecSpec spec;
  DType dtype;
  std::size_t elements;
  Places places;
  std::vector<std::byte> src;
  bool has_feedback;
  DType residual_dtype;
  std::vector<std::byte> residual;
  codec::CompressOptions options;  // without residual
};

// What compress() leaves behind.
struct Encoded {
  StatusCode code = StatusCode::Ok;
  std::vector<std::byte> frame;
  std::vector<std::byte> residual;
};

float load(DType dtype, const std::byte* base, std::size_t index) {
  return codec::with_compressible(dtype,
                                  [&]<DType kType>() { return codec::load_element<kType>(base, index); });
}

std::vector<std::byte> make_residual(const EncodeCase& made, float scale) {
  std::vector<std::byte> residual(made.elements * core::size_of(made.residual_dtype));
  codec::with_compressible(made.residual_dtype, [&]<DType kType>() {
    for (std::size_t i = 0; i < made.elements; ++i) {
      codec::store_element<kType>(residual.data(), i,
                                  scale * load(made.dtype, made.src.data(), made.elements - 1 - i));
    }
  });
  return residual;
}

EncodeCase make_case(std::span<const CodecId> codecs, Input input) {
  InputReader reader(input);
  const auto head = reader.take<EncodeHead>();
  EncodeCase made{};
  made.spec = spec_of(codecs, head);
  made.dtype = dtype_of(made.spec.id, head);
  made.elements = ElementCount{head.elements_low, head.elements_high}.value();
  made.places = Places::of(head.places);
  made.src = make_content(head.fill, made.dtype, made.elements, reader.rest());
  made.options.seed = head.seed;
  made.options.first_element = head.first_element;
  made.options.feedback.decay = head.decay;
  made.has_feedback = head.residual % 3 != 0 && made.elements > 0 && core::is_compressible(made.dtype);
  made.residual_dtype = head.residual % 3 == 2 ? DType::BFloat16 : DType::Float32;
  if (made.has_feedback) {
    made.residual = make_residual(made, core::bfloat16_to_float(head.residual_scale));
  }
  return made;
}

Encoded compress_case(const EncodeCase& made) {
  const ExactBytes src(made.src, made.places.frame);
  ExactBytes dst(codec::compress_bound(made.spec, made.dtype, made.elements), made.places.dst);
  ExactBytes residual(made.residual, made.places.dst);
  Encoded encoded;
  codec::CompressOptions options = made.options;
  if (made.has_feedback) {
    options.feedback.residual = residual.data();
    options.feedback.dtype = made.residual_dtype;
    options.feedback.elements = made.elements;
  }
  const auto size = codec::compress(made.spec, made.dtype, src.span(), dst.span(), options);
  encoded.code = size.status().code();
  encoded.residual.assign(residual.span().begin(), residual.span().end());
  if (!size.is_ok()) return encoded;
  require(*size <= dst.span().size(), "the frame is longer than its bound");
  encoded.frame.assign(dst.span().begin(), dst.span().begin() + static_cast<std::ptrdiff_t>(*size));
  return encoded;
}

bool is_refused(const EncodeCase& made) {
  return made.has_feedback && !std::isfinite(made.options.feedback.decay);
}

void require_frame_fits(const EncodeCase& made, Input frame) {
  const auto view = codec::parse_frame(frame);
  require(view.is_ok(), "compress() gave a frame that parse_frame() refuses");
  require(codec::frame_bytes(*view) == frame.size(), "compress() gave more than a frame");
  require(view->dtype == made.dtype && view->elements == made.elements, "the frame is of something else");
  require(view->spec.id == CodecId::None || codec::same_frames(view->spec, made.spec),
          "the frame is of another codec");
}

// The input with what the last frame lost.
float value_at(const EncodeCase& made, std::size_t index) {
  const float value = load(made.dtype, made.src.data(), index);
  if (!made.has_feedback) return value;
  const float residual = load(made.residual_dtype, made.residual.data(), index);
  return value + made.options.feedback.decay * residual;
}

void require_kind_kept(const CodecSpec& spec, float value, float decoded) {
  if (spec.needs_feedback() && decoded == 0.0f) return;
  require(std::isfinite(decoded) || !std::isfinite(value), "a finite value became NaN or Inf");
  require(std::isnan(decoded) == std::isnan(value), "NaN did not arrive, or came from Inf");
  require(std::isnan(value) || std::isfinite(value) || value == decoded, "Inf did not arrive");
}

void require_residual(DType dtype, float value, float decoded, float residual) {
  const float lost = codec::residual_of(value, decoded);
  const float expected =
      dtype == DType::Float32 ? lost : core::bfloat16_to_float(core::float_to_bfloat16_saturated(lost));
  require(residual == expected, "the residual is not what was lost");
}

void require_round_trip(const EncodeCase& made, const Encoded& encoded) {
  const Decoded decoded = decode_everywhere(encoded.frame, made.dtype, made.elements, made.places);
  require(decoded.code == StatusCode::Ok, "compress() gave a frame that does not decode");
  if (made.spec.is_exact() && !made.has_feedback) {
    require(same_bytes(decoded.elements, made.src), "an exact codec lost something");
  }
  for (std::size_t i = 0; i < decoded.values.size(); ++i) {
    const float value = value_at(made, i);
    require_kind_kept(made.spec, value, decoded.values[i]);
    if (!made.has_feedback) continue;
    require_residual(made.residual_dtype, value, decoded.values[i],
                     load(made.residual_dtype, encoded.residual.data(), i));
  }
}

void require_short_dst_refused(const EncodeCase& made) {
  EncodeCase without = made;
  without.has_feedback = false;
  ExactBytes dst(codec::compress_bound(made.spec, made.dtype, made.elements) - 1, 0);
  const auto size = codec::compress(made.spec, made.dtype, made.src, dst.span());
  require(size.status().code() == StatusCode::OutputTooSmall, "dst of one byte too few is not refused");
}

void fuzz_encoder(std::span<const CodecId> codecs, Input input) {
  const EncodeCase made = make_case(codecs, input);
  if (!codec::has_stage(made.spec.entropy)) return;
  Encoded reference;
  at_every_cpu_level([&](core::CpuLevel level) {
    Encoded encoded = compress_case(made);
    if (level == core::CpuLevel::Scalar) {
      reference = std::move(encoded);
      return;
    }
    require(encoded.code == reference.code, "CPU levels disagree on the status");
    require(same_bytes(encoded.frame, reference.frame), "CPU levels disagree on the frame");
    require(same_bytes(encoded.residual, reference.residual), "CPU levels disagree on the residual");
  });
  if (reference.code != StatusCode::Ok) {
    require(is_refused(made) && reference.code == StatusCode::InvalidArgument, "compress() fails");
    require(same_bytes(reference.residual, made.residual), "an error changed the residual");
    return;
  }
  require(!is_refused(made), "a decay that is not finite is not refused");
  require_frame_fits(made, reference.frame);
  require_round_trip(made, reference);
  require_short_dst_refused(made);
}

}  // namespace

CodecSpec spec_of(std::span<const CodecId> codecs, const EncodeHead& head) {
  CodecSpec spec;
  spec.id = codecs[head.codec % codecs.size()];
  if (spec.has_rounding()) spec.rounding = static_cast<codec::Rounding>(head.choices & 1);
  if (spec.id != CodecId::None) spec.entropy = static_cast<codec::Entropy>(head.stage % 3);
  if (spec.id == CodecId::TopK) {
    if (spec.entropy == codec::Entropy::None) spec.entropy = codec::Entropy::Huffman;
    spec.k = 1u + head.k % 2048u;
    spec.values = static_cast<codec::Values>(head.choices >> 2 & 3);
  }
  if (spec.id == CodecId::Loco) {
    spec.entropy = codec::Entropy::None;
    spec.k = 1u + head.k % 2048u;
  }
  if (spec.has_blocks()) spec.block = codec::kMinBlock << head.block % 7u;
  if (spec.has_dead_zone()) {
    spec.step = 0.05f + static_cast<float>(head.step) * (7.95f / 256);
  }
  return spec;
}

DType dtype_of(CodecId id, const EncodeHead& head) {
  if (id == CodecId::None || id == CodecId::Lossless) {
    return static_cast<DType>(head.dtype % core::kDTypeCount);
  }
  return kEncodedTypes[head.dtype % 3];
}

void fuzz_encode_cast(Input input) {
  fuzz_encoder(kCastCodecs, input);
}
void fuzz_encode_int(Input input) {
  fuzz_encoder(kIntCodecs, input);
}
void fuzz_encode_bits(Input input) {
  fuzz_encoder(kBitsCodecs, input);
}
void fuzz_encode_dead_zone(Input input) {
  fuzz_encoder(kDeadZoneCodecs, input);
}
void fuzz_encode_top_k(Input input) {
  fuzz_encoder(kTopKCodecs, input);
}
void fuzz_encode_lossless(Input input) {
  fuzz_encoder(kLosslessCodecs, input);
}
void fuzz_encode_loco(Input input) {
  fuzz_encoder(kLocoCodecs, input);
}

}  // namespace geocomm::fuzz
