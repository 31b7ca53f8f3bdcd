// An accelerator for PyTorch that computes on the CPU, over memory that the host cannot read at the addresses that tensors have.
//
// One file in memory is mapped twice: tensors get addresses of the first mapping, where every access faults, and kernels run on the
// same bytes through the second one. An op that has no kernel here runs as PyTorch's own CPU kernel on tensors over the second
// mapping, with the same sizes, strides and offsets: so the same op gives the same bits as on the CPU.
//
// A graph holds what its ops are called with, as addresses. A capture leaves memory and generator as they were; what it allocates comes
// from the graph's pool, where freed memory is used again by later ops of the capture and by graphs that share the pool, as on CUDA.
//
// Copies between pinned memory and the device with non_blocking=True are late: standin_stream.h. On the stand-in driver of
// CUDA all is: standin_on_driver.h.
#include "standin_stream.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/op_registration/op_registration.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include "standin_on_driver.h"
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#endif

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace
{

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr size_t SPACE = on_driver::SPACE, GRAIN = 256;
constexpr int FREED = 0xCB;

// ---- memory

struct Pool {
    std::map<size_t, std::vector<size_t>> freed; // by size
    int graphs = 0;
    bool is_private = false;
};
using PoolRef = std::shared_ptr<Pool>;

struct Memory {
    char *seen = nullptr, *real = nullptr; // what tensors have; where the bytes are
    char *sent = nullptr, *twin = nullptr; // on a driver: what was queued to be written, and where that is written to
    size_t used = 0, most = SPACE;
    PoolRef common = std::make_shared<Pool>(), current = common;
    std::map<int64_t, PoolRef> of_streams; // on a driver: what is freed is used again by its stream alone
    std::mutex lock;

    Memory()
    {
        if (const char *bytes = getenv("STANDIN_MEMORY")) most = strtoull(bytes, nullptr, 10);
#ifdef STANDIN_ON_DRIVER
        void *kernels_see;
        seen = static_cast<char *>(on_driver::memory(&kernels_see));
        twin = static_cast<char *>(kernels_see);
        for (char **bytes : {&real, &sent})
            *bytes = static_cast<char *>(
                mmap(nullptr, SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        return;
#endif
        const int file = memfd_create("standin", 0);
        TORCH_CHECK(file >= 0 && ftruncate(file, SPACE) == 0, "no memory for the stand-in device");
        seen = static_cast<char *>(mmap(nullptr, SPACE, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
        real = static_cast<char *>(mmap(nullptr, SPACE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
        close(file);
        TORCH_CHECK(seen != MAP_FAILED && real != MAP_FAILED, "no address space for the stand-in device");
    }

    static size_t rounded(size_t bytes) { return (bytes + GRAIN - 1) / GRAIN * GRAIN; }

    void *take(size_t bytes, PoolRef &pool)
    {
        std::lock_guard<std::mutex> guard(lock);
        pool = current;
        if (on_driver::is && pool == common) {
            pool = of_streams[on_driver::current()];
            if (!pool) of_streams[on_driver::current()] = pool = std::make_shared<Pool>();
        }
        for (auto *list : {&pool->freed[rounded(bytes)], &common->freed[rounded(bytes)]}) {
            if (list->empty()) continue;
            const size_t at = list->back();
            list->pop_back();
            return seen + at;
        }
        TORCH_CHECK_WITH(OutOfMemoryError, used + rounded(bytes) <= most, "the stand-in device is out of memory");
        used += rounded(bytes);
        return seen + used - rounded(bytes);
    }

    // What is freed is overwritten at once, so that whoever reads it later finds something else there.
    void give(void *address, size_t bytes, const PoolRef &pool)
    {
        std::lock_guard<std::mutex> guard(lock);
        const size_t at = size_t(static_cast<char *>(address) - seen);
        if (!pool->is_private) memset(real + at, FREED, rounded(bytes));
        (pool->is_private && pool->graphs == 0 ? common : pool)->freed[rounded(bytes)].push_back(at);
    }

    void give_back(Pool &pool)
    {
        std::lock_guard<std::mutex> guard(lock);
        for (auto &[size, list] : pool.freed)
            common->freed[size].insert(common->freed[size].end(), list.begin(), list.end());
        pool.freed.clear();
    }

    // On a driver: adds what changed of these bytes since it was asked last.
    void add_changes(on_driver::Patches &to, const void *address, size_t bytes)
    {
        const size_t first = size_t(static_cast<const char *>(address) - seen) / GRAIN * GRAIN;
        const size_t end = first + rounded(bytes + size_t(static_cast<const char *>(address) - seen) - first);
        std::lock_guard<std::mutex> guard(lock);
        for (size_t at = first, last; at < end; at = last + GRAIN) {
            for (last = at; last < end && memcmp(real + last, sent + last, GRAIN) != 0;) last += GRAIN;
            if (last == at) continue;
            to.push_back({twin + at, {real + at, real + last}});
            memcpy(sent + at, real + at, last - at);
        }
    }

    void *there(const void *address) const { return real + (static_cast<const char *>(address) - seen); }
    bool holds(const void *address) const { return address >= real && address < real + SPACE; }
};

Memory &memory()
{
    static Memory *one = new Memory;
    return *one;
}

struct Block {
    void *address;
    size_t bytes;
    PoolRef pool;
    int64_t stream;                 // where it was allocated
    std::set<int64_t> used_by = {}; // others that were told of (record_stream)
};

void free_block(void *context)
{
    auto *block = static_cast<Block *>(context);
#ifdef STANDIN_ON_DRIVER
    for (const int64_t other : block->used_by) {
        void *event = nullptr;
        standin_device_record(&event, on_driver::native(other));
        standin_device_block(event, on_driver::native(block->stream));
    }
#endif
    memory().give(block->address, block->bytes, block->pool);
    delete block;
}

struct StandinAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        const c10::Device device(KIND, c10::DeviceIndex(on_driver::device));
        if (bytes == 0) return {nullptr, nullptr, nullptr, device};
        PoolRef pool;
        void *address = memory().take(bytes, pool);
        auto *block = new Block{address, bytes, pool, on_driver::current()};
        return {block->address, block, free_block, device};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        memcpy(memory().there(to), memory().there(from), bytes);
    }
};

StandinAllocator allocator;
REGISTER_ALLOCATOR(KIND, &allocator);

// ---- devices: one, with one stream; on a driver as many as that has

// As long as it lives the thread is at this device: where it is named, and one of ours.
class At
{
  public:
    explicit At(std::optional<c10::Device> device) : before(on_driver::device)
    {
        if (device && device->type() == KIND && device->index() >= 0) on_driver::device = device->index();
    }
    ~At() { on_driver::device = before; }

  private:
    int before;
};

StandinStream &stream()
{
    static StandinStream *one = new StandinStream;
    return *one;
}

// The host waits for what the current stream has queued.
void wait_for_stream()
{
#ifdef STANDIN_ON_DRIVER
    standin_device_wait(on_driver::native(on_driver::current()));
#else
    stream().wait();
#endif
}

// On a driver: what changed of them is written there when the current stream comes to it.
on_driver::Patches changes_of(const std::vector<at::Tensor> &tensors)
{
    on_driver::Patches changed;
    auto add = [&changed](const at::Tensor &t) {
        if (t.storage().nbytes()) memory().add_changes(changed, t.storage().data(), t.storage().nbytes());
    };
    for (const at::Tensor &t : tensors) {
        if (!on_driver::is || !t.defined() || t.device().type() != KIND) continue;
        if (!t.is_sparse()) {
            add(t);
            continue;
        }
        add(t._indices());
        add(t._values());
    }
    return changed;
}

thread_local bool captures = false; // an op runs that a graph will run

void send(const std::vector<at::Tensor> &tensors)
{
    if (captures) return;
    on_driver::Patches changed = changes_of(tensors);
    if (!changed.empty()) on_driver::call([changed = std::move(changed)] { on_driver::write(changed); });
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return KIND; }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        const c10::Device before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override { return {KIND, c10::DeviceIndex(on_driver::device)}; }
    void setDevice(c10::Device device) const override { on_driver::device = std::max(0, int(device.index())); }
    void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
    c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(on_driver::count()); }
#ifdef STANDIN_ON_DRIVER
    static c10::Stream numbered(int64_t number)
    {
        const auto device = c10::DeviceIndex(on_driver::stream_of(number).device);
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(KIND, device), number);
    }
    c10::Stream getStream(c10::Device device) const override
    {
        const At at(device);
        return numbered(on_driver::current());
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return numbered(std::max(0, int(device.index())));
    }
    c10::Stream getNewStream(c10::Device device, int) const override
    {
        const At at(device);
        return numbered(on_driver::make_stream());
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        const At at(stream.device());
        const int64_t before = on_driver::current();
        on_driver::current() = stream.id();
        return numbered(before);
    }
    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex, const c10::EventFlag) const override
    {
        standin_device_record(event, on_driver::native(stream.id()));
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        if (event) standin_device_block(event, on_driver::native(stream.id()));
    }
    bool queryEvent(void *event) const override { return !event || standin_device_has_passed(event); }
    void synchronizeEvent(void *event) const override
    {
        if (event) standin_device_wait_for_event(event);
    }
    bool queryStream(const c10::Stream &stream) const override
    {
        void *event = nullptr;
        standin_device_record(&event, on_driver::native(stream.id()));
        return standin_device_has_passed(event);
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        standin_device_wait(on_driver::native(stream.id()));
    }
    void synchronizeDevice(const c10::DeviceIndex) const override { standin_device_wait_for_all(); }
    void destroyEvent(void *, const c10::DeviceIndex) const noexcept override {}
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &stream) const override
    {
        auto *block = static_cast<Block *>(data.get_deleter() == free_block ? data.get_context() : nullptr);
        if (block && block->stream != stream.id()) block->used_by.insert(stream.id());
    }
#else
    c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
    c10::Stream getNewStream(c10::Device device, int) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
    void record(void **event, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override
    {
        if (!*event) *event = new uint64_t;
        *static_cast<uint64_t *>(*event) = stream().last();
    }
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *event) const override { return !event || stream().is_done(*static_cast<uint64_t *>(event)); }
    void synchronizeEvent(void *event) const override
    {
        if (event) stream().wait(*static_cast<uint64_t *>(event));
    }
    bool queryStream(const c10::Stream &) const override { return stream().is_done(UINT64_MAX); }
    void synchronizeStream(const c10::Stream &) const override { stream().wait(); }
    void synchronizeDevice(const c10::DeviceIndex) const override { stream().wait(); }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        delete static_cast<uint64_t *>(event);
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override {}
#endif
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(on_driver::count()); }
    c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(on_driver::device); }
    void setCurrentDevice(c10::DeviceIndex device) const override { on_driver::device = device; }
    // Draws come from the CPU's generator, so that the same seed draws the same on both.
    const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override
    {
        return at::detail::getDefaultCPUGenerator();
    }
    at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
    at::Device getDeviceFromPtr(void *) const override { return {KIND, 0}; }
    c10::Allocator *getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
    bool isPinnedPtr(const void *data) const override { return PinnedMemory::get().holds(data); }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        const At at(storage.device());
        c10::DataPtr grown = allocator.allocate(bytes);
        const size_t kept = std::min(bytes, storage.nbytes());
        if (kept) allocator.copy_data(grown.get(), storage.data(), kept);
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

// ---- the same bytes as a tensor of the CPU, and back

at::Tensor on_host(const at::Tensor &t);

// A sparse tensor of the other device, with these parts.
at::Tensor with_parts(const at::Tensor &t, const at::Tensor &indices, const at::Tensor &values)
{
    at::AutoDispatchBelowADInplaceOrView below;
    return at::_sparse_coo_tensor_unsafe(indices, values, t.sizes(), values.options().layout(at::kSparse),
                                         t.is_coalesced());
}

at::Tensor on_host(const at::Tensor &t)
{
    if (!t.defined() || t.device().type() != KIND) return t;
    if (t.is_sparse()) return with_parts(t, on_host(t._indices()), on_host(t._values()));
    const c10::Storage &storage = t.storage();
    void *data = storage.nbytes() ? memory().there(storage.data()) : nullptr;
    c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(data, c10::Device(c10::kCPU)),
                      c10::GetAllocator(c10::kCPU), true);
    auto keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
    if (t.is_conj()) keys = keys.add(c10::DispatchKey::Conjugate);
    if (t.is_neg()) keys = keys.add(c10::DispatchKey::Negative);
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(host), keys, t.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
}

at::Tensor strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype)
{
    return at::detail::empty_strided_generic(sizes, strides, &allocator,
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

// A view of `t` like the one that the CPU's kernel made of what stood in for it, of another type perhaps.
at::Tensor view_like(const at::Tensor &t, const at::Tensor &result)
{
    const c10::DispatchKeySet bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    const auto keys = (t.key_set() - bits) | (result.key_set() & bits);
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()), keys,
                                                         result.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
    return made;
}

// A result of the CPU's kernel: a view of what came in, or new.
at::Tensor on_device(const at::Tensor &result, const std::vector<at::Tensor> &given)
{
    if (!result.defined() || result.device().type() != c10::kCPU) return result;
    if (result.is_sparse())
        return with_parts(result, on_device(result._indices(), given), on_device(result._values(), given));
    if (result.storage().nbytes() && memory().holds(result.storage().data())) {
        for (const at::Tensor &t : given)
            if (t.storage().nbytes() && memory().there(t.storage().data()) == result.storage().data())
                return view_like(t, result);
    }
    at::Tensor made = strided(result.sizes(), result.strides(), result.scalar_type());
    on_host(made).copy_(result);
    return made;
}

// `t` as the kernel left it in `host`, which was made of it.
void take_back(const at::Tensor &t, const at::Tensor &host)
{
    if (t.is_sparse()) return; // its parts are the host's
    if (t.sizes() != host.sizes()) at::native::resize_(t, host.sizes(), std::nullopt);
    const void *now = host.storage().nbytes() ? host.storage().data() : nullptr;
    if (now && !memory().holds(now)) on_host(t).copy_(host);
}

// ---- every op that has no kernel here

bool is_list_of_lists(const c10::IValue &value)
{
    return value.isList() && value.toList().elementType()->kind() == c10::TypeKind::ListType;
}

template <typename Change>
c10::IValue each(const c10::IValue &value, Change change)
{
    const c10::List<c10::IValue> list = value.toList();
    c10::impl::GenericList changed(list.elementType());
    for (const c10::IValue &item : list) changed.push_back(change(item));
    return changed;
}

struct Run {
    std::vector<at::Tensor> given, hosts; // tensors of the device, and what stood in for them

    c10::DispatchKeySet keys() const
    {
        const bool sparse = std::any_of(hosts.begin(), hosts.end(), [](const at::Tensor &t) { return t.is_sparse(); });
        return c10::DispatchKeySet(sparse ? c10::DispatchKey::SparseCPU : c10::DispatchKey::CPU);
    }

    at::Tensor in(const at::Tensor &t)
    {
        if (!t.defined() || t.device().type() != KIND) return t;
        given.push_back(t);
        hosts.push_back(on_host(t));
        return hosts.back();
    }

    c10::IValue in(const c10::IValue &value)
    {
        if (value.isTensor()) return in(value.toTensor());
        if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor &t : value.toTensorVector()) list.push_back(in(t));
            return list;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> list;
            for (const auto &t : value.toOptionalTensorVector())
                list.push_back(t.has_value() ? std::optional<at::Tensor>(in(*t)) : std::nullopt);
            return list;
        }
        if (is_list_of_lists(value)) return each(value, [this](const c10::IValue &item) { return in(item); });
        if (value.isDevice() && value.toDevice().type() == KIND) return c10::Device(c10::kCPU);
        return value;
    }

    at::Tensor out(const at::Tensor &t)
    {
        for (size_t i = 0; i < hosts.size(); i++)
            if (t.defined() && hosts[i].unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return given[i];
        return on_device(t, given);
    }

    c10::IValue out(const c10::IValue &value)
    {
        if (value.isTensor()) return out(value.toTensor());
        if (is_list_of_lists(value)) return each(value, [this](const c10::IValue &item) { return out(item); });
        if (!value.isTensorList()) return value;
        c10::List<at::Tensor> list;
        for (const at::Tensor &t : value.toTensorVector()) list.push_back(out(t));
        return list;
    }
};

// ---- graphs

// The same address, owned by nobody.
at::Tensor alias_of(const at::Tensor &t)
{
    if (!t.defined()) return t;
    if (t.device().type() != KIND) return t.clone();
    c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                         c10::DataPtr(const_cast<void *>(t.storage().data()), t.device()), &allocator, false);
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), t.key_set(), t.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
}

c10::IValue aliases_of(const c10::IValue &value)
{
    if (value.isTensor()) return alias_of(value.toTensor());
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor &t : value.toTensorVector()) list.push_back(alias_of(t));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto &t : value.toOptionalTensorVector())
            list.push_back(t.has_value() ? std::optional<at::Tensor>(alias_of(*t)) : std::nullopt);
        return list;
    }
    if (is_list_of_lists(value)) return each(value, aliases_of);
    return value;
}

void flatten(const c10::IValue &value, std::vector<at::Tensor> &to)
{
    if (value.isTensor()) to.push_back(value.toTensor());
    if (value.isTensorList())
        for (const at::Tensor &t : value.toTensorVector()) to.push_back(t);
}

struct GraphNode {
    std::function<void()> run;
    std::vector<at::Tensor> changed; // as addresses
    std::unique_ptr<on_driver::Node> late = std::make_unique<on_driver::Node>();
};

struct Graph {
    std::vector<GraphNode> nodes;
    std::optional<on_driver::Capture> capture;
    void *launched = nullptr;
    PoolRef pool;
    std::vector<char> before; // memory, while it is captured
    at::Tensor generator;
    const char *broken = nullptr;

    void begin(uint64_t pool_id);
    void end();
    void replay() const
    {
        c10::impl::ExcludeDispatchKeyGuard unseen(
            c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
        stream().before_op();
        for (const GraphNode &node : nodes) {
            node.run();
            node.late->queue(changes_of(node.changed));
        }
        on_driver::launch(launched);
    }
    ~Graph() // as memory is given back to a driver: nothing that runs may use it any more
    {
        on_driver::wait_for_all();
        if (launched) on_driver::free_graph(launched);
        if (pool && --pool->graphs == 0) memory().give_back(*pool);
    }
};

Graph *capturing = nullptr;
std::map<uint64_t, std::weak_ptr<Pool>> pools;
uint64_t n_pools = 0;

void refuse_in_capture(const char *what)
{
    if (!capturing) return;
    capturing->broken = "operation failed due to a previous error during capture";
    TORCH_CHECK(false, what, ": operation not permitted when stream is capturing");
}

void Graph::begin(uint64_t pool_id)
{
    TORCH_CHECK(!capturing, "another graph is being captured");
    Memory &m = memory();
    pool = pools[pool_id].lock();
    if (!pool) pool = std::make_shared<Pool>();
    pools[pool_id] = pool;
    pool->is_private = true;
    pool->graphs++;
    generator = at::detail::getDefaultCPUGenerator().get_state();
    before.assign(m.real, m.real + m.used);
    m.current = pool;
    capturing = this;
    capture.emplace();
}

void Graph::end()
{
    TORCH_CHECK(capturing == this, "this graph is not being captured");
    Memory &m = memory();
    capturing = nullptr;
    launched = capture->end();
    if (!launched && !broken) broken = "the capture was broken";
    m.current = m.common;
    memcpy(m.real, before.data(), before.size());
    memset(m.real + before.size(), FREED, m.used - before.size());
    before.clear();
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(generator);
    if (broken) nodes.clear();
    TORCH_CHECK(!broken, broken);
}

// The op as it ran, on what lies there when the graph runs.
struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;
    std::vector<at::Tensor> made;

    void operator()() const
    {
        Run run;
        torch::jit::Stack stack;
        for (const c10::IValue &value : arguments) stack.push_back(run.in(value));
        op.redispatchBoxed(run.keys(), &stack);
        for (size_t i = 0; i < run.given.size(); i++) take_back(run.given[i], run.hosts[i]);
        std::vector<at::Tensor> results;
        for (const c10::IValue &value : stack) flatten(value, results);
        for (size_t i = 0; i < results.size() && i < made.size(); i++)
            if (results[i].defined() && !memory().holds(results[i].storage().data()))
                on_host(made[i]).copy_(results[i]);
    }
};

bool is_decided_by_data(const std::string &name)
{
    static const char *const names[] = {
        "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal",
        "aten::is_nonzero"};
    for (const char *other : names)
        if (name == other) return true;
    return false;
}

void run_on_host(const c10::OperatorHandle &op, torch::jit::Stack *stack);

void capture(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    Graph *graph = capturing;
    if (is_decided_by_data(op.schema().name())) refuse_in_capture(op.schema().name().c_str());
    Call call{op, {}, {}};
    std::vector<c10::IValue> given; // an `out` may be resized by the op
    const size_t n = op.schema().arguments().size(), n_results = op.schema().returns().size();
    for (size_t i = stack->size() - n; i < stack->size(); i++) {
        given.push_back((*stack)[i]);
        call.arguments.push_back(aliases_of((*stack)[i]));
    }
    capturing = nullptr;
    captures = true;
    try {
        run_on_host(op, stack);
    } catch (...) {
        capturing = graph;
        captures = false;
        throw;
    }
    capturing = graph;
    captures = false;
    for (size_t i = 0; i < n; i++)
        if (given[i].isTensor() && given[i].toTensor().defined() &&
            given[i].toTensor().sizes() != call.arguments[i].toTensor().sizes())
            call.arguments[i] = aliases_of(given[i]);
    std::vector<at::Tensor> results;
    for (size_t i = stack->size() - n_results; i < stack->size(); i++) flatten((*stack)[i], results);
    for (const at::Tensor &t : results) call.made.push_back(t.defined() && t.device().type() == KIND ? alias_of(t) : t);
    std::vector<at::Tensor> changed = call.made;
    for (const c10::IValue &value : call.arguments) flatten(value, changed);
    graph->nodes.push_back({call, changed});
}

// A collective goes on in a thread of the host's; what it brings is sent, as what any op makes.
void wait_for_work(const c10::FunctionSchema &schema, const torch::jit::Stack &stack)
{
    if (schema.name().rfind("c10d::", 0) != 0) return;
    for (size_t i = stack.size() - schema.returns().size(); i < stack.size(); i++)
        if (stack[i].isObject()) stack[i].toCustomClass<c10d::Work>()->wait();
}

// Where an op runs: where its first tensor of ours lies, or where it is told to.
std::optional<c10::Device> place_of(const c10::IValue &value)
{
    if (value.isDevice()) return value.toDevice();
    std::vector<at::Tensor> tensors;
    flatten(value, tensors);
    for (const at::Tensor &t : tensors)
        if (t.defined() && t.device().type() == KIND) return t.device();
    return std::nullopt;
}

std::optional<c10::Device> place_of(const torch::jit::Stack &stack, size_t n)
{
    for (size_t i = stack.size() - n; i < stack.size(); i++) {
        const std::optional<c10::Device> place = place_of(stack[i]);
        if (place && place->type() == KIND) return place;
    }
    return std::nullopt;
}

void run_on_host(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
    if (capturing) return capture(op, stack);
    const At at(place_of(*stack, op.schema().arguments().size()));
    Run run;
    const auto &schema = op.schema();
    if (is_decided_by_data(schema.name()))
        wait_for_stream();
    else
        stream().before_op();
    const size_t begin = stack->size() - schema.arguments().size();
    for (size_t i = begin; i < stack->size(); i++) (*stack)[i] = run.in((*stack)[i]);
    op.redispatchBoxed(run.keys(), stack);
    if (on_driver::is) wait_for_work(schema, *stack);
    for (size_t i = 0; i < run.given.size(); i++) take_back(run.given[i], run.hosts[i]);
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) (*stack)[i] = run.out((*stack)[i]);
    std::vector<at::Tensor> changed = run.given;
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) flatten((*stack)[i], changed);
    send(changed);
}

// ---- kernels

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format)
{
    const At at(device);
    return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>)
{
    const At at(device);
    return strided(size, stride, c10::dtype_or_default(dtype));
}

// The same memory, held, and nothing else of the tensor.
at::Tensor held(const at::Tensor &t)
{
    const c10::DispatchKeySet bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    const auto kind = t.device().type() == KIND ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU;
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(t.storage()),
                                                         c10::DispatchKeySet(kind) | (t.key_set() & bits), t.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return made;
}

// Whoever waits runs it, outside of every op.
void copy_unseen(const at::Tensor &from, const at::Tensor &to)
{
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard unseen(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    on_host(to).copy_(on_host(from));
}

// Its tensors are let go in a thread of the program's: they may be Python's.
struct LateCopy {
    at::Tensor from, to;
    std::atomic<bool> arrived{false};
};

void queue_on_driver(const at::Tensor &from, const at::Tensor &to)
{
#ifdef STANDIN_ON_DRIVER
    static std::mutex lock;
    static std::vector<std::shared_ptr<LateCopy>> copies;
    auto late = std::make_shared<LateCopy>();
    late->from = from, late->to = to;
    std::vector<std::shared_ptr<LateCopy>> gone;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto end = std::partition(copies.begin(), copies.end(), [](const auto &copy) { return !copy->arrived; });
        gone.assign(end, copies.end());
        copies.erase(end, copies.end());
        copies.push_back(late);
    }
    on_driver::call([copy = late.get()] {
        copy_unseen(copy->from, copy->to);
        copy->arrived = true;
    });
#else
    (void)from, (void)to;
#endif
}

void queue_copy(const at::Tensor &self, const at::Tensor &to)
{
    const bool to_device = to.device().type() == KIND;
    at::Tensor from = held(self), there = held(to);
    if (!to_device) {
        stream().before_op();
        from = at::detail::empty_cpu(to.sizes(), to.scalar_type());
        from.copy_(on_host(self));
    }
    if (on_driver::is) return queue_on_driver(from, there);
    stream().queue(to_device, [from, there] { copy_unseen(from, there); });
}

// A copy runs on the stream of where it comes from; the streams of both devices are then as far as each other.
void join_streams(const c10::Device &behind, const c10::Device &before)
{
#ifdef STANDIN_ON_DRIVER
    void *event = nullptr;
    standin_device_record(&event, on_driver::native(on_driver::currents[before.index()]));
    standin_device_block(event, on_driver::native(on_driver::currents[behind.index()]));
#else
    (void)behind, (void)before;
#endif
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool non_blocking)
{
    const At at(self.device().type() == KIND ? self.device() : to.device());
    const bool between = self.device().type() == to.device().type() && self.device() != to.device();
    if (between) join_streams(self.device(), to.device());
    const bool from_host = self.device().type() != KIND, to_host = to.device().type() != KIND;
    if (capturing) {
        if (to_host) refuse_in_capture("copy to the host");
        const at::Tensor from = alias_of(self), there = alias_of(to);
        capturing->nodes.push_back({[from, there] { on_host(there).copy_(on_host(from)); }, {there}});
    } else if (non_blocking && (to_host ? to : self).is_pinned() && !(on_driver::is && !to_host)) {
        queue_copy(self, to);
        return to;
    } else if (to_host || (from_host && !non_blocking && !on_driver::is)) {
        wait_for_stream();
    } else {
        stream().before_op();
    }
    on_host(to).copy_(on_host(self));
    send({to});
    if (between) join_streams(to.device(), self.device());
    return to;
}

void record_stream(at::Tensor &self, c10::Stream by)
{
    Guard().recordDataPtrOnStream(self.storage().data_ptr(), by);
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &to)
{
    if (to.numel() == 0) at::native::resize_(to, self.sizes(), std::nullopt);
    return copy_from(self, to, false);
}

const at::Tensor &resize(const at::Tensor &self, at::IntArrayRef size, std::optional<at::MemoryFormat> format)
{
    return at::native::resize_(self, size, format);
}

at::Tensor &set_storage(at::Tensor &self, at::Storage source)
{
    const int64_t n = int64_t(source.nbytes() / self.dtype().itemsize());
    return at::native::set_storage_cpu_(self, source, 0, {n}, {});
}

at::Tensor &set_part(at::Tensor &self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride)
{
    return at::native::set_storage_cpu_(self, source, offset, size, stride);
}

at::Tensor &set_tensor(at::Tensor &self, const at::Tensor &source)
{
    return at::native::set_storage_cpu_(self, source.storage(), source.storage_offset(), source.sizes(),
                                        source.strides());
}

at::Tensor view(const at::Tensor &self, at::IntArrayRef size)
{
    return at::native::view(self, size);
}

at::Tensor as_strided(const at::Tensor &self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset)
{
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor &self, at::IntArrayRef size, at::IntArrayRef stride)
{
    return at::native::_reshape_alias(self, size, stride);
}

at::Tensor convolution(const at::Tensor &input, const at::Tensor &weight, const std::optional<at::Tensor> &bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups)
{
    const At at(input.device());
    stream().before_op();
    const auto of = bias.has_value() ? std::optional<at::Tensor>(on_host(*bias)) : std::nullopt;
    const at::Tensor made = on_device(at::convolution(on_host(input), on_host(weight), of, stride, padding, dilation,
                                                      transposed, output_padding, groups),
                                      {});
    send({made});
    return made;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor &gradient, const at::Tensor &input,
                                                                    const at::Tensor &weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> wanted)
{
    const At at(input.device());
    stream().before_op();
    const int64_t channels = weight.size(0);
    const auto [x, w, b] =
        at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef(channels), stride,
                                 padding, dilation, transposed, output_padding, groups, wanted);
    const std::tuple made{on_device(x, {}), on_device(w, {}), on_device(b, {})};
    send({std::get<0>(made), std::get<1>(made), std::get<2>(made)});
    return made;
}

} // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// Ops that have a kernel of the CPU and another one, made of other ops, for every device without its own: the CPU's runs here too.
void prefer_the_kernels_of_the_cpu(torch::Library &m, c10::DispatchKey cpu, c10::DispatchKey ours)
{
    for (const c10::OperatorName &name : c10::Dispatcher::singleton().getAllOpNames()) {
        const auto op = c10::Dispatcher::singleton().findOp(name);
        if (!op || name.name.rfind("aten::", 0) != 0 || !op->hasKernelForDispatchKey(cpu)) continue;
        if (op->hasKernelForDispatchKey(ours) ||
            !(op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
              op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)))
            continue;
        const std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
        m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("resize_", resize);
    m.impl("record_stream", record_stream);
    m.impl("set_.source_Storage", set_storage);
    m.impl("set_.source_Storage_storage_offset", set_part);
    m.impl("set_.source_Tensor", set_tensor);
    m.impl("view", view);
    m.impl("as_strided", as_strided);
    m.impl("_reshape_alias", reshape_alias);
    m.impl("convolution_overrideable", convolution);
    m.impl("convolution_backward_overrideable", convolution_backward);
    prefer_the_kernels_of_the_cpu(m, c10::DispatchKey::CPU, c10::DispatchKey::PrivateUse1);
}

// Sparse tensors are of the same class on every device; what is computed with them is the CPU's.
at::Tensor with_dims_and_tensors(int64_t n_sparse, int64_t n_dense, c10::SymIntArrayRef size, const at::Tensor &indices,
                                 const at::Tensor &values, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pinned, std::optional<bool> coalesced)
{
    return at::native::new_with_dims_and_tensor_sparse_symint(n_sparse, n_dense, size, indices, values, dtype, layout,
                                                              device, pinned, coalesced);
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m)
{
    m.impl("_sparse_coo_tensor_with_dims_and_tensors", with_dims_and_tensors);
    m.impl("copy_", at::native::copy_sparse_wrapper_);
    m.impl("_indices", at::native::_indices_sparse);
    m.impl("_values", at::native::_values_sparse);
    m.impl("is_coalesced", at::native::is_coalesced_sparse);
    m.impl("_coalesced_", at::native::_coalesced_sparse_);
    m.impl("sparse_dim", at::native::sparse_dim_sparse);
    m.impl("dense_dim", at::native::dense_dim_sparse);
    m.impl("_nnz", at::native::_nnz_sparse);
    prefer_the_kernels_of_the_cpu(m, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparsePrivateUse1);
}

// Its kernel reads and writes tensors that have these bits.
TORCH_LIBRARY_IMPL(aten, Conjugate, m)
{
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m)
{
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// Collectives are those of the host's process group, on the same bytes.
TORCH_LIBRARY_IMPL(c10d, PrivateUse1, m)
{
    for (const char *name :
         {"allreduce_", "broadcast_", "allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_",
          "_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_", "reduce_", "gather_",
          "scatter_", "alltoall_", "alltoall_base_", "barrier"})
        m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// Of a new graph in a pool (0: one of its own, which *pool is then); of what was captured. 0, or -1 with a message.
thread_local std::string message;

template <typename Do>
int tried(Do act)
{
    try {
        act();
        return 0;
    } catch (const c10::Error &error) {
        message = error.what_without_backtrace();
        return -1;
    }
}

extern "C" {
const char *standin_error()
{
    return message.c_str();
}
int standin_is_capturing()
{
    return capturing != nullptr;
}
void *standin_graph_new()
{
    return new Graph;
}
// A graph that goes while another one is captured stays until that is over: the capture would not survive the wait.
void standin_graph_free(Graph *graph)
{
    static std::vector<std::unique_ptr<Graph>> gone;
    gone.emplace_back(graph);
    if (!capturing) gone.clear();
}
uint64_t standin_pool()
{
    return ++n_pools;
}
int standin_graph_begin(Graph *graph, uint64_t pool)
{
    return tried([=] { graph->begin(pool); });
}
int standin_graph_end(Graph *graph)
{
    return tried([=] { graph->end(); });
}
int standin_graph_replay(Graph *graph)
{
    return tried([=] { graph->replay(); });
}
#ifdef STANDIN_ON_DRIVER
void *standin_native_stream(int64_t number)
{
    return on_driver::stream_of(number).native;
}
#endif
void standin_synchronize()
{
#ifdef STANDIN_ON_DRIVER
    standin_device_wait_for_all();
#else
    stream().wait();
#endif
}
#ifdef STANDIN_ON_DRIVER
// What torch tells of streams of CUDA, in its stable interface.
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **stream)
{
    static const int64_t wrong = getenv("STANDIN_WRONG_STREAM") ? on_driver::make_stream() : -1;
    *stream = on_driver::stream_of(wrong < 0 ? on_driver::currents[device] : wrong).native;
    return 0;
}
int32_t standin_device_type(const at::Tensor *t, int32_t *type)
{
    const auto kind = t->device().type();
    *type = int32_t(kind == KIND ? c10::DeviceType::CUDA : kind);
    return 0;
}
void standin_be_cuda()
{
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *asked = torch ? dlsym(torch, "aoti_torch_get_device_type") : nullptr;
    if (asked) on_driver::replace(asked, reinterpret_cast<void *>(&standin_device_type));
    memory(); // the driver begins
}
#endif
void standin_stand_still(unsigned milliseconds)
{
    stream().stand_still(milliseconds);
}
int standin_devices()
{
    return on_driver::count();
}
uint64_t standin_used()
{
    return memory().used;
}
}

// torch.accelerator.Graph
#if __has_include(<ATen/core/GraphImplInterface.h>)
struct AcceleratorGraph final : at::GraphImplInterface {
    explicit AcceleratorGraph(const at::GraphImplArgs &) {}
    void capture_begin(c10::MempoolId_t wanted, at::GraphCaptureMode) override
    {
        id = wanted.second ? wanted : c10::MempoolId_t{0, ++n_pools};
        graph = std::make_unique<Graph>();
        graph->begin(id.second);
    }
    void capture_end() override { graph->end(); }
    void instantiate() override {}
    void replay() override { graph->replay(); }
    void reset() override { graph.reset(); }
    c10::MempoolId_t pool() const override { return id; }
    void enable_debug_mode() override {}
    void debug_dump(const std::string &) override {}

    std::unique_ptr<Graph> graph;
    c10::MempoolId_t id{0, 0};
};

namespace at
{
REGISTER_GRAPH_IMPL(STANDIN, AcceleratorGraph)
}
#endif
