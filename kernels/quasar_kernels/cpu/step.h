// All layers of a pass in one call: the ops of ops.h in the decoder's order, without Python between them.
//
// Why. At 30 layers a pass is 200 ops of 5–50 µs; Python's share of each (allocate, check, call) would be a fifth of the step. Why not more:
// the embedding, the head and the choice of layers stay with the caller, and the same ops run in the same order, so a pass is bit for bit
// what the ops give one by one.
//
// The plan is plain memory that the caller fills with addresses: every field below is eight bytes, in this order.
#pragma once

#include "ops.h"

namespace quasar {

struct StepLinear {
  const char* weight;
  const float* wscale;  // null: the weight is BF16
  const float* bias;
  int64_t outputs, inputs;
  Transform transform;
};

struct StepLayer {
  const float* attention_norm;
  const float* q_norm;
  const float* k_norm;
  const float* mlp_norm;
  StepLinear qkv, o, gate_up, down;
};

static_assert(sizeof(StepLinear) == 9 * 8 && sizeof(StepLayer) == 40 * 8, "the plan is an array of 8-byte words");

struct Step {
  const StepLayer* layers;
  long rows, heads, groups, size;
  float eps;
  long window;
  float* k_cache;  // [layers, groups, capacity, size], dense
  float* v_cache;
  long capacity, start;
  const float* cos;
  const float* sin;
  const long* lengths;
  const long* parents;  // null: a chain
};

// x [rows, hidden] goes through the layers named in `order`, in place.
void run_step(const Step& step, const long* order, long count, float* x);

}  // namespace quasar
