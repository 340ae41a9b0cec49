// The kernels of one instruction set, gathered: included by isa_*.cpp inside its namespace, after simd_*.h and the tuning constants.
#include "vector.inl"
#include "rotate.inl"
#include "rowwise.inl"
#include "linear.inl"
#include "attention.inl"
#include "stream.inl"

static constexpr Kernels table(const char* name) {
  return {name,        quantize_row, rotate_row, rmsnorm_row,  silu_mul_row, int8_prepare,  tiles<Int8>,
          tiles<Bf16>, rope_row,     attend_block, attend_merge, attend_finish, top_part,     stream};
}
