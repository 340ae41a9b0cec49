// See step.h.
#include "step.h"

#include "scratch.h"

namespace quasar {
namespace {

Linear job_of(const StepLinear& linear, long rows, const float* residual, float* y) {
  return {nullptr, linear.inputs, linear.weight, rows, linear.outputs, linear.inputs, nullptr, linear.wscale, linear.bias, residual, y};
}

// The input of a linear in the form that it wants: rounded rows and their scales, or the floats themselves.
struct Input {
  const float* x;
  int8_t* q;
  float* scale;
};

Input room(const StepLinear& linear, long rows) {
  if (!linear.wscale) return {nullptr, nullptr, nullptr};
  return {nullptr, scratch_of<int8_t>(kStepRounded, rows * linear.inputs), scratch_of<float>(kStepScales, rows)};
}

void multiply(const StepLinear& linear, const Input& input, long rows, const float* residual, float* y) {
  Linear job = job_of(linear, rows, residual, y);
  if (linear.wscale) {
    job.scale = input.scale;
    linear_w8a8(input.q, job);
  } else {
    job.x = input.x;
    linear_bf16(job);
  }
}

void after_norm(const Step& step, const float* x, const float* gain, const StepLinear& linear, float* y) {
  Input input = room(linear, step.rows);
  if (linear.wscale) {
    rmsnorm_quantize(x, gain, step.eps, linear.transform, step.rows, linear.inputs, input.q, input.scale);
  } else {
    float* normed = scratch_of<float>(kStepFloats, step.rows * linear.inputs);
    rmsnorm(x, gain, step.eps, step.rows, linear.inputs, normed);
    input.x = normed;
  }
  multiply(linear, input, step.rows, nullptr, y);
}

void attention(const Step& step, const StepLayer& layer, long index, float* x) {
  const long heads = step.heads, size = step.size, slab = step.capacity * size;
  float* qkv = scratch_of<float>(kStepWide, step.rows * layer.qkv.outputs);
  after_norm(step, x, layer.attention_norm, layer.qkv, qkv);

  float *k = step.k_cache + index * step.groups * slab, *v = step.v_cache + index * step.groups * slab;
  float* q = scratch_of<float>(kStepQueries, step.rows * heads * size);
  rope_append({qkv, step.rows, heads, step.groups, size, k, v, slab, slab, step.start, step.cos, step.sin, layer.q_norm, layer.k_norm,
               step.eps, q});
  float* mixed = scratch_of<float>(kStepFloats, step.rows * heads * size);
  attend({q, step.rows, heads, step.groups, size, k, v, slab, slab, nullptr, 0, mixed}, step.lengths, step.parents, step.window);

  Input input = room(layer.o, step.rows);
  input.x = mixed;
  if (layer.o.wscale) quantize_rows(mixed, layer.o.transform, step.rows, layer.o.inputs, input.q, input.scale);
  multiply(layer.o, input, step.rows, x, x);
}

void mlp(const Step& step, const StepLayer& layer, float* x) {
  float* gate_up = scratch_of<float>(kStepWide, step.rows * layer.gate_up.outputs);
  after_norm(step, x, layer.mlp_norm, layer.gate_up, gate_up);

  Input input = room(layer.down, step.rows);
  if (layer.down.wscale) {
    silu_mul_quantize(gate_up, layer.down.transform, step.rows, layer.down.inputs, input.q, input.scale);
  } else {
    float* gated = scratch_of<float>(kStepFloats, step.rows * layer.down.inputs);
    silu_mul(gate_up, step.rows, layer.down.inputs, gated);
    input.x = gated;
  }
  multiply(layer.down, input, step.rows, x, x);
}

}  // namespace

void run_step(const Step& step, const long* order, long count, float* x) {
  for (long i = 0; i < count; ++i) {
    attention(step, step.layers[order[i]], order[i], x);
    mlp(step, step.layers[order[i]], x);
  }
}

}  // namespace quasar
