// A fake CUDA device: the dispatch key CUDA in a CPU build of PyTorch, with the host's memory and the CPU's kernels.
//
// An operator of the key CUDA sees its tensors as CPU tensors over the same memory, runs the CPU's kernel, and gives
// back CUDA tensors. Autograd, autocast, optimizers and graphs above it are PyTorch's own. What a real GPU refuses is
// refused: tensors of two devices in one operator, a wait inside a capture, more memory than there is.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>

namespace {
using at::Tensor;
using c10::Device;
using c10::DeviceType;
using c10::IValue;
using c10::Storage;
using c10::Stream;
using Stack = torch::jit::Stack;
const Device GPU(DeviceType::CUDA, 0);
const c10::DispatchKeySet CUDA(c10::DispatchKey::CUDA), CPU(c10::DispatchKey::CPU);

// ---- Memory: counted, limited, and NaN until it is written

std::atomic<int64_t> used{0}, peak{0}, limit{INT64_MAX}, launches{0};

void take(int64_t bytes) {
  const int64_t now = used += bytes;
  if (now > limit) {
    used -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes / 1048576.0,
                     " MiB. GPU 0 has a total capacity of ", limit / 1048576.0, " MiB.");
  }
  for (int64_t old = peak; now > old && !peak.compare_exchange_weak(old, now);) {}
}

struct Block {  // what a CUDA storage holds: memory of its own, or a CPU kernel's result
  int64_t bytes;
  void* own;
  Storage result;
  static void free(void* block) {
    auto* it = static_cast<Block*>(block);
    used -= it->bytes;
    std::free(it->own);
    delete it;
  }
};

struct GpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &Block::free, GPU};
    take(bytes);
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    TORCH_CHECK(memory, "The host has no more memory.");
    std::memset(memory, 0xFF, bytes);
    return {memory, new Block{int64_t(bytes), memory, {}}, &Block::free, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} gpu_allocator;

std::mutex lock;
std::set<const void*> pinned;

struct PinnedAllocator final : c10::Allocator {
  static void free(void* memory) {
    std::lock_guard<std::mutex> guard(lock);
    pinned.erase(memory);
    std::free(memory);
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::lock_guard<std::mutex> guard(lock);
    pinned.insert(memory);
    return {memory, memory, &free, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
} pinned_allocator;

bool is_pinned(const void* memory) {
  std::lock_guard<std::mutex> guard(lock);
  return pinned.count(memory) > 0;
}

// ---- The device: one GPU with one stream, and generators that draw the CPU's numbers

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream exchangeStream(Stream) const override { return Stream(Stream::DEFAULT, GPU); }
  void record(void**, const Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Generator final : c10::GeneratorImpl {
  c10::intrusive_ptr<at::CPUGeneratorImpl> cpu = c10::make_intrusive<at::CPUGeneratorImpl>(c10::default_rng_seed_val);
  Generator() : c10::GeneratorImpl(GPU, CUDA) {}
  void set_current_seed(uint64_t seed) override { cpu->set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu->current_seed(); }
  uint64_t seed() override { return cpu->seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { cpu->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu->get_state(); }
  Generator* clone_impl() const override {
    auto* copy = new Generator();
    copy->cpu->set_state(*cpu->get_state());
    return copy;
  }
};

at::Generator& default_generator() {
  static at::Generator own = at::make_generator<Generator>();
  return own;
}
}  // namespace

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return default_generator(); }
  Generator getNewGenerator(DeviceIndex) const override { return make_generator<::Generator>(); }
  Device getDeviceFromPtr(void*) const override { return GPU; }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Allocator* getCUDADeviceAllocator() const override { return &gpu_allocator; }
  void deviceSynchronize(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

namespace {
// ---- Graphs, and waits of the host for the GPU

struct Launch {
  c10::OperatorHandle op;
  Stack arguments, results;
};
struct Graph {
  std::vector<Launch> launches;
};
Graph* capture = nullptr;
bool waits_are_errors = false;
py::object* listener = nullptr;
std::vector<std::pair<Tensor, Tensor>> late;  // copies to pinned memory that nobody has waited for, and their values

void copy_into(const Tensor& to, const Tensor& from);

void arrive() {
  const auto copies = std::move(late);
  late.clear();
  for (const auto& [to, from] : copies) copy_into(to, from);
}

void wait(const std::string& what) {
  arrive();
  TORCH_CHECK(capture == nullptr, "CUDA error: operation not permitted when stream is capturing: ", what);
  TORCH_CHECK(!waits_are_errors, "called a synchronizing CUDA operation: ", what);
  if (listener == nullptr || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  (*listener)(what);
}

// ---- One operator: CUDA tensors as CPU tensors over the same memory, and back

Tensor over(Storage storage, const Tensor& like, c10::DispatchKeySet keys) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

IValue each_tensor(const IValue& value, const std::function<Tensor(const Tensor&)>& f) {
  if (value.isTensor()) return value.toTensor().defined() ? f(value.toTensor()) : value.toTensor();
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (Tensor& tensor : tensors) tensor = tensor.defined() ? f(tensor) : tensor;
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> tensors;
    for (std::optional<Tensor> tensor : value.toOptionalTensorList())
      tensors.push_back(tensor && tensor->defined() ? f(*tensor) : tensor);
    return tensors;
  }
  return value;
}

class Views {
 public:
  Tensor cpu(const Tensor& tensor) {
    if (!tensor.is_cuda()) return tensor;
    Storage storage;
    for (auto& [gpu, view] : pairs_)
      if (gpu.storage().is_alias_of(tensor.storage())) storage = view.storage();
    if (!storage) {
      c10::DataPtr memory(tensor.storage().mutable_data(), Device(DeviceType::CPU));
      storage = Storage(Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(memory),
                        c10::GetAllocator(DeviceType::CPU), true);
    }
    return pairs_.emplace_back(tensor, over(storage, tensor, CPU)).second;
  }

  Tensor gpu(const Tensor& result) {
    if (!result.device().is_cpu()) return result;
    for (auto& [gpu, view] : pairs_)
      if (view.is_same(result)) return gpu;
    for (auto& [gpu, view] : pairs_)
      if (view.storage().is_alias_of(result.storage())) return over(gpu.storage(), result, CUDA);
    Tensor made = over(adopted(result.storage()), result, CUDA);
    pairs_.emplace_back(made, result);
    return made;
  }

  void adopt_resized() {
    for (auto& [gpu, view] : pairs_) {
      auto* storage = gpu.storage().unsafeGetStorageImpl();
      if (view.storage().data() != storage->data() || view.storage().nbytes() != storage->nbytes()) {
        Storage larger = adopted(view.storage());
        storage->set_data_ptr_noswap(std::move(larger.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
        storage->set_nbytes(view.storage().nbytes());
      }
      if (view.sizes() != gpu.sizes() || view.strides() != gpu.strides())
        gpu.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
    }
  }

 private:
  static Storage adopted(const Storage& result) {
    const int64_t bytes = result.nbytes();
    take(bytes);
    c10::DataPtr memory(const_cast<void*>(result.data()), new Block{bytes, nullptr, result}, &Block::free, GPU);
    return Storage(Storage::use_byte_size_t(), bytes, std::move(memory), &gpu_allocator, true);
  }

  std::vector<std::pair<Tensor, Tensor>> pairs_;
};

// Runs the CPU's kernel. It has no product and no softmax that reads half precision and answers in float, and no
// gradient of one.
void call_cpu(const c10::OperatorHandle& op, Stack& stack, size_t first) {
  const std::string& name = op.schema().operator_name().name;
  c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  if ((name == "aten::_softmax" || name == "aten::_log_softmax") && stack[first + 2].toBool()) {
    stack[first] = stack[first].toTensor().to(at::kFloat);
    stack[first + 2] = false;
  }
  if (name == "aten::bmm" && op.schema().operator_name().overload_name == "dtype") {
    const at::ScalarType wide = stack.back().toScalarType();
    const Tensor product = at::bmm(stack[first].toTensor().to(wide), stack[first + 1].toTensor().to(wide));
    stack.erase(stack.begin() + first, stack.end());
    stack.push_back(product);
    return;
  }
  const bool gradient = name == "aten::_softmax_backward_data" || name == "aten::_log_softmax_backward_data";
  if (gradient && stack[first + 3].toScalarType() != stack[first].toTensor().scalar_type()) {
    const Tensor narrow = stack.back().toTensor(), wide = at::empty_like(stack[first].toTensor());
    stack[first + 3] = wide.scalar_type();
    stack.back() = wide;
    op.redispatchBoxed(CPU, &stack);
    stack.back() = narrow.copy_(wide);
    return;
  }
  op.redispatchBoxed(CPU, &stack);
}

void on_cpu(const c10::OperatorHandle& op, Stack& stack, Views& views) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = stack[first + i];
    if (value.isDevice()) value = Device(DeviceType::CPU);
    if (value.isNone() && arguments[i].name() == "generator") value = default_generator();
    if (value.isGenerator()) {
      const auto* own = dynamic_cast<Generator*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(own, "Expected a 'cuda' device type for generator but found 'cpu'");
      value = at::Generator(own->cpu);
    }
    value = each_tensor(value, [&](const Tensor& tensor) { return views.cpu(tensor); });
  }
  call_cpu(op, stack, first);
  views.adopt_resized();
}

std::set<std::string> takes_cpu_scalars;  // operators whose kernels read a CPU tensor of no dimension as a number
const std::set<std::string> WAITING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::nonzero.out", "aten::masked_select", "aten::masked_select.out",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount",
    "aten::equal", "aten::multinomial", "aten::multinomial.out", "aten::histc", "aten::_linalg_check_errors"};

// Writing at indices copies those of the CPU, and needs the number of a mask's true elements; reading calls operators
// that wait.
void wait_for_indices(const std::string& name, const Stack& stack, size_t first) {
  bool masked = false;
  for (std::optional<Tensor> index : stack[first + 1].toOptionalTensorList()) {
    if (!index || !index->defined()) continue;
    if (index->device().is_cpu()) wait(name + " with an index on the CPU");
    masked = masked || index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
  }
  if (!masked) return;
  const Tensor values = stack[first + 2].toTensor();
  if (values.numel() > 1) wait(name + " with a mask");
  else if (values.is_cuda()) wait(name + " with a number on the GPU");
}

void launch(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  std::string name = schema.operator_name().name;
  if (!schema.operator_name().overload_name.empty()) name += "." + schema.operator_name().overload_name;
  const size_t first = stack->size() - arguments.size();
  const bool indexes = name == "aten::index.Tensor" || name == "aten::index.Tensor_out" ||
                       name == "aten::_index_put_impl_" || name == "aten::index_put";
  bool on_gpu = false, on_host = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (indexes && arguments[i].name() == "indices") continue;
    each_tensor((*stack)[first + i], [&](const Tensor& tensor) {
      const bool number = tensor.dim() == 0 && (indexes || takes_cpu_scalars.count(name));
      (tensor.is_cuda() ? on_gpu : on_host) |= tensor.is_cuda() || !number;
      return tensor;
    });
  }
  TORCH_CHECK(!(on_gpu && on_host), "Expected all tensors to be on the same device, but found at least two devices, "
              "cuda:0 and cpu! (", name, ")");
  if (WAITING.count(name)) wait(name);
  if (name == "aten::repeat_interleave.Tensor" && stack->back().isNone()) wait(name + " without output_size");
  if (name == "aten::_index_put_impl_") wait_for_indices(name, *stack, first);
  ++launches;
  Stack given;
  if (capture) given.assign(stack->begin() + first, stack->end());
  Views views;
  on_cpu(op, *stack, views);
  const size_t results = stack->size() - schema.returns().size();
  if (name != "aten::equal" && name != "aten::_local_scalar_dense")
    for (size_t i = results; i < stack->size(); ++i)
      (*stack)[i] = each_tensor((*stack)[i], [&](const Tensor& tensor) { return views.gpu(tensor); });
  if (capture) capture->launches.push_back({op, std::move(given), {stack->begin() + results, stack->end()}});
}

void copy_into(const Tensor& to, const Tensor& from) {
  Views views;
  c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  views.cpu(to).copy_(views.cpu(from));
}

void copy(const c10::OperatorHandle& op, Stack* stack) {
  const bool blocking = !torch::jit::pop(*stack).toBool();
  const Tensor from = torch::jit::pop(*stack).toTensor(), to = torch::jit::pop(*stack).toTensor();
  stack->push_back(to);
  if (to.numel() == 0) return;
  if (to.is_cuda() && from.is_cuda()) {
    ++launches;
  } else if (to.is_cuda()) {
    TORCH_CHECK(capture == nullptr, "A copy from the host inside a capture reads the host's memory at each replay.");
    if (blocking) wait("copy to the GPU");
    else if (is_pinned(from.storage().data())) arrive();  // in the stream's order
  } else if (blocking || !is_pinned(to.storage().data())) {
    wait("copy to the host");
  } else {
    Tensor values = at::empty_like(from);
    copy_into(values, from);
    std::memset(to.storage().mutable_data(), 0xFF, to.storage().nbytes());
    late.emplace_back(to, values);
    return;
  }
  copy_into(to, from);
  if (capture) capture->launches.push_back({op, {to, from, !blocking}, {to}});
}

void replay(Graph& graph) {
  for (Launch& each : graph.launches) {
    ++launches;
    if (each.op.schema().operator_name().name == "aten::copy_") {
      copy_into(each.arguments[0].toTensor(), each.arguments[1].toTensor());
      continue;
    }
    Stack stack = each.arguments;
    Views views;
    on_cpu(each.op, stack, views);
    for (size_t i = 0; i < stack.size(); ++i) {
      std::vector<Tensor> made;
      each_tensor(stack[i], [&](const Tensor& tensor) { return made.emplace_back(tensor); });
      auto next = made.begin();
      each_tensor(each.results[i], [&](const Tensor& tensor) {
        Tensor view = views.cpu(tensor);
        if (view.data_ptr() != next->data_ptr()) view.copy_(*next);
        ++next;
        return tensor;
      });
    }
  }
}

// ---- Kernels that make or reshape memory

#define INTS(list) C10_AS_INTARRAYREF_SLOW(list)

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(INTS(size), &gpu_allocator, CUDA, c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(INTS(size), INTS(stride), &gpu_allocator, CUDA,
                                           c10::dtype_or_default(dtype));
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, INTS(size)); }
Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset) start = offset->expect_int();
  return at::native::as_strided_tensorimpl(self, INTS(size), INTS(stride), start);
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, INTS(size), INTS(stride));
}
const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, INTS(size), format);
}
Tensor& set_part(Tensor& self, Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                 c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, source, offset.expect_int(), INTS(size), INTS(stride));
}
Tensor& set_whole(Tensor& self, Storage source) {
  return at::native::set_storage_cpu_(self, source, 0, {int64_t(source.nbytes() / self.itemsize())}, {1});
}
Tensor& set_empty(Tensor& self) {
  return at::native::set_storage_cpu_(self, Storage(Storage::use_byte_size_t(), 0, &gpu_allocator, true), 0, {0}, {});
}
void record_stream(Tensor&, Stream) {}

// The kernel of attention that an H100 chooses: 1 is flash, 2 memory-efficient, 0 plain products.
int64_t attention(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double,
                  bool causal, std::optional<double>, bool) {
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (q.dim() != 4 || q.numel() == 0 || k.numel() == 0 || q.scalar_type() == at::kDouble || q.size(-1) != v.size(-1))
    return 0;
  if (half && !(mask && mask->defined()) && q.size(-1) <= 256 && !(causal && q.size(-2) != k.size(-2))) return 1;
  return q.size(1) == k.size(1) && q.size(-1) % (half ? 8 : 4) == 0 ? 2 : 0;
}
}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&launch>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy>());
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("set_.source_Storage_storage_offset", &set_part);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_", &set_empty);
  m.impl("record_stream", &record_stream);
  // Composites that ask for cuDNN, that wait, or that are one kernel on a GPU.
  for (const char* name : {"convolution", "convolution_backward", "_index_put_impl_", "repeat_interleave.Tensor",
                           "_fused_rms_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&launch>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(DeviceType::CUDA, &gpu_allocator, 100);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention);
  m.def("listen", [](py::object f) { listener = new py::object(f); });
  m.def("takes_cpu_scalars", [](std::set<std::string> names) { takes_cpu_scalars = names; });
  m.def("limit", [](int64_t bytes) { limit = bytes; });
  m.def("used", [] { return used.load(); });
  m.def("arrive", &arrive);
  m.def("peak", [] { return peak.load(); });
  m.def("reset_peak", [] { peak = used.load(); });
  m.def("launches", [] { return launches.load(); });
  m.def("waits_are_errors", [] { return waits_are_errors; });
  m.def("set_waits_are_errors", [](bool value) { waits_are_errors = value; });
  m.def("is_capturing", [] { return capture != nullptr; });
  m.def("default_generator", [] { return default_generator(); });
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("capture_begin", [](Graph& graph) { capture = &graph; })
      .def("capture_end", [](Graph&) { capture = nullptr; })
      .def("launches", [](Graph& graph) { return graph.launches.size(); })
      .def("reset", [](Graph& graph) { graph.launches.clear(); })
      .def("replay", [](Graph& graph) {
        py::gil_scoped_release released;
        at::AutoDispatchBelowAutograd below;
        replay(graph);
      });
}
