#include "binding/calls/reduction.h"

#include <bit>

namespace geocomm::binding {

using core::StatusCode;

Reduction Reduction::of(const at::Tensor& tensor, const c10d::ReduceOp& op, int inside) {
  Reduction reduction;
  reduction.dtype = reduced_dtype(c10::toRealValueType(tensor.scalar_type()));
  const bool floating = core::is_floating(reduction.dtype);
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      break;
    case c10d::ReduceOp::AVG:
      reduction.op = collective::ReduceOp::Avg;
      if (reduction.dtype == core::DType::Float16 && inside > 1) {
        reduction.back = std::bit_ceil(static_cast<unsigned>(inside));
        reduction.factor = 1 / reduction.back;
      }
      break;
    case c10d::ReduceOp::PRODUCT:
      reduction.op = collective::ReduceOp::Product;
      reduction.inner = c10d::ReduceOp::PRODUCT;
      break;
    case c10d::ReduceOp::MIN:
      reduction.op = collective::ReduceOp::Min;
      reduction.inner = c10d::ReduceOp::MIN;
      break;
    case c10d::ReduceOp::MAX:
      reduction.op = collective::ReduceOp::Max;
      reduction.inner = c10d::ReduceOp::MAX;
      break;
    case c10d::ReduceOp::BAND:
    case c10d::ReduceOp::BOR:
    case c10d::ReduceOp::BXOR:
      if (floating)
        throw_status(StatusCode::InvalidArgument, "bitwise reductions need an integer or bool tensor");
      reduction.op = op.op_ == c10d::ReduceOp::BAND  ? collective::ReduceOp::BitAnd
                     : op.op_ == c10d::ReduceOp::BOR ? collective::ReduceOp::BitOr
                                                     : collective::ReduceOp::BitXor;
      reduction.inner = op.op_;
      break;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (supplement == nullptr)
        throw_status(StatusCode::InvalidArgument, "ReduceOp.PREMUL_SUM without a factor");
      if (!floating) throw_status(StatusCode::InvalidArgument, "ReduceOp.PREMUL_SUM needs a float tensor");
      if (supplement->tensor_factor.defined()) {
        reduction.factor_tensor = supplement->tensor_factor;
      } else {
        reduction.factor = supplement->double_factor;
      }
      break;
    }
    default:
      throw_status(StatusCode::Unsupported, "unknown ReduceOp");
  }
  // Whether any, or all: backends add up the bytes.
  if (reduction.dtype == core::DType::Bool && reduction.inner == c10d::ReduceOp::SUM) {
    reduction.inner = c10d::ReduceOp::MAX;
  }
  return reduction;
}

void Reduction::finish_sum(const at::Tensor& sum, int ranks) const {
  if (op != collective::ReduceOp::Avg) return;
  if (core::is_floating(dtype)) {
    sum.div_(ranks);
  } else {
    sum.copy_(at::div(sum.to(at::kLong), ranks, "trunc"));
  }
  scale_back(sum);
}

}  // namespace geocomm::binding
