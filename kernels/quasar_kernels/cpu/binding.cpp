// The Python face: functions that take addresses and sizes as integers. No torch headers, no array protocol: __init__.py checks tensors and
// hands over data_ptr()s, which costs well under a microsecond a call and builds with nothing but Python's own headers.
//
// A list of arguments is read by one small cursor; every call releases the GIL around the work.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <new>
#include <vector>

#include "dispatch.h"
#include "ops.h"
#include "pool.h"
#include "step.h"

namespace {

using namespace quasar;

// Reads positional arguments in order; check ok() once at the end.
class Arguments {
 public:
  Arguments(PyObject* const* args, Py_ssize_t count) : args_(args), count_(count) {}

  long integer() {
    PyObject* arg = take();
    return arg ? PyLong_AsLong(arg) : 0;
  }
  float real() {
    PyObject* arg = take();
    return arg ? static_cast<float>(PyFloat_AsDouble(arg)) : 0.0f;
  }
  template <class T>
  T* address() {
    PyObject* arg = take();
    return arg ? static_cast<T*>(PyLong_AsVoidPtr(arg)) : nullptr;
  }
  Transform transform() {  // inv_smooth, shift, rotation, side
    Transform t;
    t.inv_smooth = address<const float>();
    t.shift = address<const float>();
    t.rotation = address<const float>();
    t.side = integer();
    return t;
  }
  std::vector<long> integers() {  // a sequence, or None for an empty one
    std::vector<long> values;
    PyObject* arg = take();
    if (!arg || arg == Py_None) return values;
    PyObject* fast = PySequence_Fast(arg, "expected a sequence of integers");
    if (!fast) return values;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); ++i) values.push_back(PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, i)));
    Py_DECREF(fast);
    return values;
  }
  bool ok() {
    if (PyErr_Occurred()) return false;
    if (next_ == count_) return true;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", next_, count_);
    return false;
  }

 private:
  PyObject* take() {
    if (next_ < count_) return args_[next_++];
    ++next_;
    return nullptr;
  }

  PyObject* const* args_;
  Py_ssize_t count_;
  Py_ssize_t next_ = 0;
};

template <class Work>
PyObject* without_gil(const Work& work) {
  bool memory = true;
  Py_BEGIN_ALLOW_THREADS
  try {
    work();
  } catch (const std::bad_alloc&) {
    memory = false;
  }
  Py_END_ALLOW_THREADS
  if (!memory) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

PyObject* py_quantize_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto* x = a.address<const float>();
  const Transform transform = a.transform();
  const long rows = a.integer(), k = a.integer();
  auto* q = a.address<int8_t>();
  auto* scale = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { quantize_rows(x, transform, rows, k, q, scale); });
}

PyObject* py_rotate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto *x = a.address<const float>(), *rotation = a.address<const float>();
  const long side = a.integer(), rows = a.integer(), k = a.integer();
  auto* y = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { rotate(x, rotation, side, rows, k, y); });
}

PyObject* py_rmsnorm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto *x = a.address<const float>(), *w = a.address<const float>();
  const float eps = a.real();
  const long rows = a.integer(), k = a.integer();
  auto* y = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { rmsnorm(x, w, eps, rows, k, y); });
}

PyObject* py_rmsnorm_quantize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto *x = a.address<const float>(), *w = a.address<const float>();
  const float eps = a.real();
  const Transform transform = a.transform();
  const long rows = a.integer(), k = a.integer();
  auto* q = a.address<int8_t>();
  auto* scale = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { rmsnorm_quantize(x, w, eps, transform, rows, k, q, scale); });
}

PyObject* py_silu_mul(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto* x = a.address<const float>();
  const long rows = a.integer(), k = a.integer();
  auto* y = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { silu_mul(x, rows, k, y); });
}

PyObject* py_silu_mul_quantize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto* x = a.address<const float>();
  const Transform transform = a.transform();
  const long rows = a.integer(), k = a.integer();
  auto* q = a.address<int8_t>();
  auto* scale = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { silu_mul_quantize(x, transform, rows, k, q, scale); });
}

PyObject* py_linear_w8a8(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  Linear job = {};
  const auto* q = a.address<const int8_t>();
  job.scale = a.address<const float>();
  job.weight = a.address<const char>();
  job.wscale = a.address<const float>();
  job.bias = a.address<const float>();
  job.residual = a.address<const float>();
  job.rows = a.integer();
  job.outputs = a.integer();
  job.inputs = a.integer();
  job.y = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { linear_w8a8(q, job); });
}

PyObject* py_linear_bf16(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  Linear job = {};
  job.x = a.address<const float>();
  job.weight = a.address<const char>();
  job.bias = a.address<const float>();
  job.residual = a.address<const float>();
  job.rows = a.integer();
  job.outputs = a.integer();
  job.inputs = a.integer();
  job.y = a.address<float>();
  job.x_stride = job.inputs;
  if (!a.ok()) return nullptr;
  return without_gil([&] { linear_bf16(job); });
}

PyObject* py_rope_append(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  Rope job = {};
  job.qkv = a.address<const float>();
  job.rows = a.integer();
  job.heads = a.integer();
  job.groups = a.integer();
  job.size = a.integer();
  job.k_cache = a.address<float>();
  job.v_cache = a.address<float>();
  job.k_stride = a.integer();
  job.v_stride = a.integer();
  job.start = a.integer();
  job.cos = a.address<const float>();
  job.sin = a.address<const float>();
  job.q_norm = a.address<const float>();
  job.k_norm = a.address<const float>();
  job.eps = a.real();
  job.q = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { rope_append(job); });
}

// Whether every row's length is the prefix plus its depth in the tree, which the gathering of paths relies on.
bool lengths_fit(const std::vector<long>& lengths, const std::vector<long>& parents) {
  if (parents.size() != lengths.size()) return false;
  const long prefix = *std::min_element(lengths.begin(), lengths.end()) - 1;
  for (size_t row = 0; row < lengths.size(); ++row) {
    const long parent = parents[row];
    if (parent < -1 || parent >= static_cast<long>(row)) return false;
    if (lengths[row] != (parent < 0 ? prefix : lengths[static_cast<size_t>(parent)]) + 1) return false;
  }
  return true;
}

// Sets an exception and returns false unless a pass of these lengths stays inside a cache of `capacity` rows.
bool lengths_ok(const std::vector<long>& lengths, const std::vector<long>& parents, long capacity) {
  for (long length : lengths) {
    if (length >= 1 && length <= capacity) continue;
    PyErr_Format(PyExc_ValueError, "a length is %ld; accepted: 1 to the cache's capacity, %ld", length, capacity);
    return false;
  }
  if (parents.empty()) return true;
  if (!lengths_fit(lengths, parents)) {
    PyErr_SetString(PyExc_ValueError, "parents and lengths disagree; accepted: earlier rows or -1, each row one longer than its parent");
    return false;
  }
  // Row m of a tree lies at cache row prefix + m, however short its path is.
  const long prefix = *std::min_element(lengths.begin(), lengths.end()) - 1, rows = static_cast<long>(lengths.size());
  if (prefix + rows <= capacity) return true;
  PyErr_Format(PyExc_ValueError, "a tree of %ld rows does not fit behind %ld; the cache's capacity is %ld", rows, prefix, capacity);
  return false;
}

PyObject* py_attend(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  Attend job = {};
  job.q = a.address<const float>();
  job.heads = a.integer();
  job.groups = a.integer();
  job.size = a.integer();
  job.k_cache = a.address<const float>();
  job.v_cache = a.address<const float>();
  job.k_stride = a.integer();
  job.v_stride = a.integer();
  const long capacity = a.integer();
  const std::vector<long> lengths = a.integers(), parents = a.integers();
  const long window = a.integer();
  job.out = a.address<float>();
  if (!a.ok()) return nullptr;
  job.rows = static_cast<long>(lengths.size());
  if (!lengths_ok(lengths, parents, capacity)) return nullptr;
  return without_gil([&] { attend(job, lengths.data(), parents.empty() ? nullptr : parents.data(), window); });
}

PyObject* py_run_step(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  Step step = {};
  step.layers = a.address<const StepLayer>();
  const long layers = a.integer();
  step.heads = a.integer();
  step.groups = a.integer();
  step.size = a.integer();
  step.eps = a.real();
  step.window = a.integer();
  const std::vector<long> order = a.integers();
  auto* x = a.address<float>();
  step.k_cache = a.address<float>();
  step.v_cache = a.address<float>();
  step.capacity = a.integer();
  step.start = a.integer();
  step.cos = a.address<const float>();
  step.sin = a.address<const float>();
  const std::vector<long> lengths = a.integers(), parents = a.integers();
  if (!a.ok() || !lengths_ok(lengths, parents, step.capacity)) return nullptr;
  step.rows = static_cast<long>(lengths.size());
  step.lengths = lengths.data();
  step.parents = parents.empty() ? nullptr : parents.data();
  for (long index : order) {
    if (index >= 0 && index < layers) continue;
    PyErr_Format(PyExc_ValueError, "layer %ld does not exist; accepted: 0 to %ld", index, layers - 1);
    return nullptr;
  }
  if (step.start < 0 || step.start + step.rows > step.capacity) {
    PyErr_Format(PyExc_ValueError, "%ld rows do not fit behind %ld; the cache holds %ld", step.rows, step.start, step.capacity);
    return nullptr;
  }
  return without_gil([&] { run_step(step, order.data(), static_cast<long>(order.size()), x); });
}

PyObject* py_top_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto* x = a.address<const float>();
  const long rows = a.integer(), n = a.integer(), k = a.integer();
  auto* values = a.address<float>();
  auto* ids = a.address<int64_t>();
  auto* log_sums = a.address<float>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { top_rows(x, rows, n, k, values, ids, log_sums); });
}

template <class From, class To, void (*convert)(const From*, long, long, To*)>
PyObject* py_convert(PyObject*, PyObject* const* args, Py_ssize_t count) {  // packing and unpacking
  Arguments a(args, count);
  const auto* from = a.address<const From>();
  const long n = a.integer(), k = a.integer();
  auto* to = a.address<To>();
  if (!a.ok()) return nullptr;
  return without_gil([&] { convert(from, n, k, to); });
}

PyObject* py_packed_bytes(PyObject*, PyObject* const* args, Py_ssize_t count) {  // n, k → (INT8 bytes, BF16 bytes)
  Arguments a(args, count);
  const long n = a.integer(), k = a.integer();
  if (!a.ok()) return nullptr;
  return Py_BuildValue("nn", static_cast<Py_ssize_t>(packed_int8_bytes(n, k)), static_cast<Py_ssize_t>(packed_bf16_bytes(n, k)));
}

PyObject* py_stream_read(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const auto* data = a.address<const char>();
  const long bytes = a.integer();
  if (!a.ok()) return nullptr;
  uint64_t sum = 0;
  PyObject* done = without_gil([&] { sum = stream_read(data, static_cast<size_t>(bytes)); });
  if (!done) return nullptr;
  Py_DECREF(done);
  return PyLong_FromUnsignedLongLong(sum);
}

PyObject* py_set_threads(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Arguments a(args, count);
  const long threads = a.integer();
  if (!a.ok()) return nullptr;
  if (threads < 1 || threads > kMostThreads) return PyErr_Format(PyExc_ValueError, "threads is %ld; accepted: 1 to %d", threads, kMostThreads);
  return without_gil([&] { set_threads(static_cast<int>(threads)); });
}

PyObject* py_get_threads(PyObject*, PyObject*) { return PyLong_FromLong(get_threads()); }

PyObject* py_isa(PyObject*, PyObject*) { return PyUnicode_FromString(kernels().name); }

PyObject* py_supported(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const Kernels* table : supported()) {
    PyObject* name = names ? PyUnicode_FromString(table->name) : nullptr;
    if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

PyObject* py_choose(PyObject*, PyObject* wanted) {  // a name or "" → what was refused
  const char* name = PyUnicode_AsUTF8(wanted);
  return name ? PyUnicode_FromString(choose(name).c_str()) : nullptr;
}

PyObject* py_use(PyObject*, PyObject* wanted) {
  const char* name = PyUnicode_AsUTF8(wanted);
  return name ? PyBool_FromLong(use(name)) : nullptr;
}

template <class Function>
PyMethodDef fast(const char* name, Function* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    fast("quantize_rows", py_quantize_rows),
    fast("rotate", py_rotate),
    fast("rmsnorm", py_rmsnorm),
    fast("rmsnorm_quantize", py_rmsnorm_quantize),
    fast("silu_mul", py_silu_mul),
    fast("silu_mul_quantize", py_silu_mul_quantize),
    fast("linear_w8a8", py_linear_w8a8),
    fast("linear_bf16", py_linear_bf16),
    fast("rope_append", py_rope_append),
    fast("attend", py_attend),
    fast("run_step", py_run_step),
    fast("top_rows", py_top_rows),
    fast("pack_int8", py_convert<int8_t, char, pack_int8>),
    fast("pack_bf16", py_convert<uint16_t, char, pack_bf16>),
    fast("unpack_int8", py_convert<char, int8_t, unpack_int8>),
    fast("unpack_bf16", py_convert<char, uint16_t, unpack_bf16>),
    fast("packed_bytes", py_packed_bytes),
    fast("stream_read", py_stream_read),
    fast("set_threads", py_set_threads),
    {"get_threads", py_get_threads, METH_NOARGS, nullptr},
    {"isa", py_isa, METH_NOARGS, nullptr},
    {"supported", py_supported, METH_NOARGS, nullptr},
    {"choose", py_choose, METH_O, nullptr},
    {"use", py_use, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "Kernels on raw addresses; see quasar_kernels.cpu.", -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
