// Frames that lie anywhere, coded together: the CPU's bytes, whatever their sizes are, in as many kernels as
// one of them takes.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda_cases.h"
#include "simt.h"

namespace geocomm::codec {
namespace {

// Memory in which what lies behind `bytes` is looked at, too.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes, std::size_t shift = 0)
      : memory_(shift + bytes + kGuard), shift_(shift) {}
  explicit GuardedBytes(const Bytes& content, std::size_t shift = 0) : GuardedBytes(content.size(), shift) {
    std::ranges::copy(content, span().begin());
  }

  std::span<std::byte> span() const {
    return memory_.span().subspan(shift_, memory_.span().size() - shift_ - kGuard);
  }
  Bytes bytes() const { return {span().begin(), span().end()}; }
  bool is_whole() const {
    return std::ranges::all_of(memory_.span().last(kGuard),
                               [](std::byte byte) { return byte == std::byte{0x5A}; });
  }

 private:
  static constexpr std::size_t kGuard = 64;
  DeviceBytes memory_;
  std::size_t shift_;
};

using Memory = std::vector<std::unique_ptr<GuardedBytes>>;

// A batch with its memory.
struct BatchCase {
  cuda::Batch batch;
  std::vector<Bytes> elements;
  std::vector<Bytes> residuals;
  cuda::BatchFeedback feedback = {};
  Memory memory = {};
  std::unique_ptr<GuardedBytes> table = nullptr;
  std::unique_ptr<GuardedBytes> workspace = nullptr;

  std::span<std::byte> keep(std::unique_ptr<GuardedBytes> bytes) {
    memory.push_back(std::move(bytes));
    return memory.back()->span();
  }
  void take_room(bool is_received) {
    std::uint64_t largest = 0;
    for (const auto& frame : batch.frames) largest = std::max(largest, frame.elements);
    const std::size_t frames = batch.frames.size();
    table = std::make_unique<GuardedBytes>(cuda::batch_table_bytes(frames));
    workspace = std::make_unique<GuardedBytes>(
        cuda::batch_workspace_bytes(batch.spec, batch.dtype, largest, frames, is_received));
    batch.table = table->span();
    batch.workspace_dev = workspace->span();
  }
  bool is_whole() const {
    return table->is_whole() && workspace->is_whole() &&
           std::ranges::all_of(memory, [](const auto& bytes) { return bytes->is_whole(); });
  }
};

// To where in a frame of so many elements a value is put that its codec cannot carry; beyond: to nowhere.
std::vector<float> values_of(std::size_t elements, std::size_t special, std::uint32_t seed) {
  auto values = gaussian(elements, 1.0f, seed);
  for (std::size_t i = special; i < elements; i += 5000) values[i] = i % 2 == 0 ? kInf : kNan;
  return values;
}

BatchCase make_case(const CodecSpec& spec, DType dtype, std::span<const std::size_t> sizes,
                    bool has_residuals) {
  BatchCase test{{spec, dtype, {}}, {}, {}};
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    const auto seed = static_cast<std::uint32_t>(f + 1);
    // Every second frame has such values.
    test.elements.push_back(to_bytes(values_of(sizes[f], f % 2 == 0 ? sizes[f] : 37 * f, seed), dtype));
    cuda::BatchFrame frame;
    frame.elements = sizes[f];
    frame.elements_dev =
        test.keep(std::make_unique<GuardedBytes>(test.elements.back(), f % 3 * core::size_of(dtype))).data();
    frame.frame = test.keep(std::make_unique<GuardedBytes>(compress_bound(spec, dtype, sizes[f])));
    frame.seed = 99 + f;
    frame.first_element = 1000 * f + f % 4;
    if (has_residuals) {
      test.residuals.push_back(to_bytes(gaussian(sizes[f], 0.4f, 50 + seed)));
      frame.residual_dev = test.keep(std::make_unique<GuardedBytes>(test.residuals.back())).data();
      test.feedback.decay = 0.9f;
    }
    test.batch.frames.push_back(frame);
  }
  test.take_room(false);
  return test;
}

// The frame as the CPU makes it; its residual becomes the new one.
Bytes frame_of_cpu(BatchCase& test, std::size_t f) {
  const cuda::BatchFrame& frame = test.batch.frames[f];
  CompressOptions options;
  options.seed = frame.seed;
  options.first_element = frame.first_element;
  if (!test.residuals.empty()) {
    options.feedback = {test.residuals[f].data(), test.feedback.dtype, frame.elements, test.feedback.decay};
  }
  Bytes made(frame.frame.size());
  const auto size = compress(test.batch.spec, test.batch.dtype, test.elements[f], made, options);
  EXPECT_TRUE(size.is_ok()) << size.status().to_string();
  made.resize(*size);
  return made;
}

void expect_frames_of_cpu(BatchCase& test) {
  ASSERT_TRUE(cuda::compress_batch(test.batch, test.feedback, nullptr).is_ok());
  ASSERT_TRUE(test.is_whole());
  for (std::size_t f = 0; f < test.batch.frames.size(); ++f) {
    SCOPED_TRACE("frame " + std::to_string(f));
    const cuda::BatchFrame& frame = test.batch.frames[f];
    const Bytes expected = frame_of_cpu(test, f);
    const auto sealed = seal_frame(frame.frame);
    ASSERT_TRUE(sealed.is_ok()) << sealed.status().to_string();
    const Bytes made(frame.frame.begin(), frame.frame.begin() + static_cast<std::ptrdiff_t>(*sealed));
    ASSERT_EQ(made.size(), expected.size());
    ASSERT_TRUE(made == expected);
    if (test.residuals.empty()) continue;
    ASSERT_EQ(std::memcmp(frame.residual_dev, test.residuals[f].data(), test.residuals[f].size()), 0);
  }
}

// Frames of the CPU, some at odd addresses and with bytes behind them, and what they go to.
BatchCase received_case(const CodecSpec& spec, DType dtype, std::span<const std::size_t> sizes) {
  BatchCase made = make_case(spec, dtype, sizes, false);
  BatchCase test{{spec, dtype, {}}, made.elements, {}};
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    Bytes frame = frame_of_cpu(made, f);
    frame.resize(frame.size() + 40 * (f % 2), std::byte{0x77});
    cuda::BatchFrame to;
    to.elements = sizes[f];
    to.frame = test.keep(std::make_unique<GuardedBytes>(frame, 5 * (f % 3)));
    to.elements_dev = test.keep(std::make_unique<GuardedBytes>(to_bytes(gaussian(sizes[f], 3.0f, 9)))).data();
    test.batch.frames.push_back(to);
  }
  test.take_room(true);
  EXPECT_TRUE(cuda::write_table(test.batch).is_ok());
  return test;
}

std::vector<float> sums_of(const cuda::BatchFrame& frame) {
  std::vector<float> sums(frame.elements);
  if (!sums.empty()) std::memcpy(sums.data(), frame.elements_dev, 4 * sums.size());
  return sums;
}

void expect_equal(std::span<const float> got, std::span<const float> expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(got[i], expected[i]) << i;
    }
  }
}

constexpr std::size_t kMixed[] = {700, 20000, 1, 0, 16384, 129, 5000};

class CudaBatch : public testing::TestWithParam<std::string_view> {};

TEST_P(CudaBatch, test_frames_of_mixed_sizes_are_those_of_the_cpu) {
  for (const DType dtype : {DType::Float32, DType::BFloat16}) {
    for (const bool has_residuals : {false, true}) {
      SCOPED_TRACE(std::string(core::to_string(dtype)) + (has_residuals ? " with residuals" : ""));
      BatchCase test = make_case(spec_of(GetParam()), dtype, kMixed, has_residuals);
      expect_frames_of_cpu(test);
      if (HasFatalFailure()) return;
    }
  }
}

// All are checked; then the first three are put, and the others added.
TEST_P(CudaBatch, test_frames_are_put_by_parts_as_the_cpu_puts_them) {
  for (const DType dtype : {DType::Float32, DType::Float16}) {
    SCOPED_TRACE(core::to_string(dtype));
    BatchCase test = received_case(spec_of(GetParam()), dtype, kMixed);
    const std::size_t frames = test.batch.frames.size();
    std::vector<std::vector<float>> expected;
    for (std::size_t f = 0; f < frames; ++f) {
      expected.push_back(sums_of(test.batch.frames[f]));
      const auto mode = f < 3 ? Accumulate::Assign : Accumulate::Add;
      const auto frame = test.batch.frames[f].frame;
      ASSERT_TRUE(decompress_accumulate(frame.first(frame.size() - 40 * (f % 2)), expected[f], mode).is_ok());
    }
    std::uint64_t verdict = ~std::uint64_t{0};
    ASSERT_TRUE(cuda::check_batch(test.batch, &verdict, nullptr).is_ok());
    ASSERT_EQ(verdict, 0u) << cuda::to_status(verdict).to_string();
    ASSERT_TRUE(cuda::put_batch(test.batch, 0, 3, Sink::Float32, &verdict, nullptr).is_ok());
    ASSERT_TRUE(cuda::put_batch(test.batch, 3, frames - 3, Sink::AddToFloat32, &verdict, nullptr).is_ok());
    ASSERT_EQ(verdict, 0u);
    ASSERT_TRUE(test.is_whole());
    for (std::size_t f = 0; f < frames; ++f) {
      SCOPED_TRACE("frame " + std::to_string(f));
      expect_equal(sums_of(test.batch.frames[f]), expected[f]);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaBatch, test_a_damaged_frame_is_named_and_nothing_is_written) {
  for (const std::size_t damaged : {std::size_t{1}, std::size_t{6}}) {
    BatchCase test = received_case(spec_of(GetParam()), DType::Float32, kMixed);
    std::vector<std::vector<float>> before;
    for (const auto& frame : test.batch.frames) before.push_back(sums_of(frame));
    // Its header names another number of elements; behind it all frames are sound.
    test.batch.frames[damaged].frame[12] ^= std::byte{1};
    std::uint64_t verdict = 0;
    ASSERT_TRUE(cuda::check_batch(test.batch, &verdict, nullptr).is_ok());
    ASSERT_TRUE(
        cuda::put_batch(test.batch, 0, test.batch.frames.size(), Sink::AddToFloat32, &verdict, nullptr)
            .is_ok());
    EXPECT_EQ(cuda::to_status(verdict).code(), StatusCode::CorruptData);
    EXPECT_NE(cuda::to_status(verdict).message().find("frame " + std::to_string(damaged)), std::string::npos)
        << cuda::to_status(verdict).message();
    for (std::size_t f = 0; f < before.size(); ++f)
      EXPECT_TRUE(sums_of(test.batch.frames[f]) == before[f]) << f;
    EXPECT_TRUE(test.is_whole());
  }
}

// Whatever bytes of the payloads are changed: no harm, and the verdict names a frame that was changed.
TEST_P(CudaBatch, test_damaged_payloads_do_no_harm) {
  constexpr std::size_t kSizes[] = {900, 640, 1100};
  for (unsigned round = 0; round < 12; ++round) {
    BatchCase test = received_case(spec_of(GetParam()), DType::Float32, kSizes);
    auto& changed = test.batch.frames[1];
    const std::size_t payload = changed.frame.size() - 40 - sizeof(FrameHeader);
    changed.frame[sizeof(FrameHeader) + round * payload / 12] ^= std::byte{0xA5};
    std::uint64_t verdict = 0;
    ASSERT_TRUE(cuda::check_batch(test.batch, &verdict, nullptr).is_ok());
    ASSERT_TRUE(cuda::put_batch(test.batch, 0, 3, Sink::Float32, &verdict, nullptr).is_ok());
    EXPECT_TRUE(test.is_whole());
    if (verdict != 0) {
      EXPECT_NE(cuda::to_status(verdict).message().find("frame 1"), std::string::npos);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, CudaBatch, testing::ValuesIn(kCudaSpecs),
                         [](const auto& info) { return case_name(info); });

TEST(CudaBatches, test_order_of_threads_does_not_matter) {
  simt::set_order(simt::Order::Backward);
  for (const std::string_view spec : {"int8", "int8+huffman", "deadzone", "bitplanes"}) {
    BatchCase test = make_case(spec_of(spec), DType::Float32, kMixed, true);
    expect_frames_of_cpu(test);
  }
  simt::set_order(simt::Order::Forward);
}

TEST(CudaBatches, test_bad_arguments_are_refused) {
  constexpr std::size_t kSizes[] = {300, 200};
  const auto code_after = [&](auto&& change) {
    BatchCase test = make_case(spec_of("int8"), DType::Float32, kSizes, false);
    change(test.batch);
    return cuda::compress_batch(test.batch, test.feedback, nullptr).code();
  };
  EXPECT_EQ(code_after([](cuda::Batch&) {}), StatusCode::Ok);
  EXPECT_EQ(code_after([](cuda::Batch& batch) { batch.frames.clear(); }), StatusCode::InvalidArgument);
  EXPECT_EQ(code_after([](cuda::Batch& batch) { batch.table = batch.table.first(8); }),
            StatusCode::InvalidArgument);
  EXPECT_EQ(code_after([](cuda::Batch& batch) {
              batch.workspace_dev = batch.workspace_dev.first(batch.workspace_dev.size() - 1);
            }),
            StatusCode::InvalidArgument);
  EXPECT_EQ(code_after([](cuda::Batch& batch) { batch.frames[1].frame = batch.frames[1].frame.subspan(4); }),
            StatusCode::InvalidArgument);
  EXPECT_EQ(code_after([](cuda::Batch& batch) { batch.frames[1].frame = batch.frames[1].frame.first(64); }),
            StatusCode::OutputTooSmall);
  EXPECT_EQ(code_after([](cuda::Batch& batch) { ++batch.frames[1].elements_dev; }),
            StatusCode::InvalidArgument);
  EXPECT_EQ(code_after([](cuda::Batch& batch) { batch.spec = spec_of("int8+zstd"); }),
            StatusCode::Unsupported);
  EXPECT_EQ(
      code_after([](cuda::Batch& batch) { batch.frames[1].residual_dev = batch.frames[0].elements_dev; }),
      StatusCode::InvalidArgument);
}

}  // namespace
}  // namespace geocomm::codec
