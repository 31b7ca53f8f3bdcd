// The stand-in accelerator on the stand-in driver of CUDA, where it is compiled for it (-DSTANDIN_ON_DRIVER).
//
// Tensors then lie in that driver's memory, streams and events are its own, and a program that asks is told that the
// device is one of CUDA: the recorder reads it by its back end for CUDA. An op computes at once, on what memory will be
// when all that is queued has run; what it changed is written into the driver's memory by a kernel on the current
// stream, which is late. A reader that is not ordered behind the op finds other bytes there.
//
//     STANDIN_DEVICES=N          1 or 2; their memory is one, as of devices that reach each other's
//     STANDIN_SEED=N             of delays and orders
//     STANDIN_DELAY_US=N         operations begin up to so much later
//     STANDIN_LEFT=N             the program has taken all of the device but so many bytes
//     STANDIN_WRONG_STREAM=1     another stream than that of the ops is told as the current one: readers are early
//
// What is captured there becomes a graph of the driver with a node for each op. A replay computes all ops at once, as
// ever; what each of them changed is written by its node in that run.
#ifndef STANDIN_ON_DRIVER_H
#define STANDIN_ON_DRIVER_H

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace on_driver
{
struct Patch {
    char *to;
    std::vector<char> bytes;
};
using Patches = std::vector<Patch>;

inline void write(const Patches &patches)
{
    for (const Patch &patch : patches) memcpy(patch.to, patch.bytes.data(), patch.bytes.size());
}
} // namespace on_driver

#ifdef STANDIN_ON_DRIVER

#include "standin_device.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace on_driver
{
constexpr bool is = true;
constexpr size_t SPACE = size_t(512) << 20; // the driver's device has twice that

constexpr int MOST_DEVICES = 2;
struct Stream {
    void *native;
    int device;
};
inline std::mutex lock;
inline std::vector<Stream> streams{{nullptr, 0}, {nullptr, 1}}; // by torch's number: first the default ones
inline thread_local int device = 0;
inline thread_local int64_t currents[MOST_DEVICES] = {0, 1};

inline int64_t &current()
{
    return currents[device];
}

inline Stream stream_of(int64_t number)
{
    std::lock_guard<std::mutex> guard(lock);
    return streams.at(size_t(number));
}

// For a call of the driver that comes next: the thread is then in the stream's context.
inline void *native(int64_t number)
{
    const Stream stream = stream_of(number);
    standin_device_at(stream.device);
    return stream.native;
}

inline int64_t make_stream()
{
    standin_device_at(device);
    void *made = standin_device_stream();
    std::lock_guard<std::mutex> guard(lock);
    streams.push_back({made, device});
    return int64_t(streams.size()) - 1;
}

inline uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}

inline int count()
{
    return int(std::min(number_of("STANDIN_DEVICES", 1), uint64_t(MOST_DEVICES)));
}

inline void *memory(void **twin)
{
    standin_device_begin(count(), number_of("STANDIN_SEED", 1), unsigned(number_of("STANDIN_DELAY_US", 100)));
    void *memory = standin_device_memory(SPACE, twin);
    if (getenv("STANDIN_LEFT")) standin_device_leave(number_of("STANDIN_LEFT", 0));
    return memory;
}

// On the current stream, in a thread of the driver's.
inline void call(std::function<void()> act)
{
    auto run = [](void *of) {
        auto *act = static_cast<std::function<void()> *>(of);
        (*act)();
        delete act;
    };
    standin_device_call(native(current()), run, new std::function<void()>(std::move(act)));
}

inline void wait_for_all()
{
    standin_device_wait_for_all();
}
inline void launch(void *graph)
{
    standin_device_graph_launch(graph, native(current()));
}
inline void free_graph(void *graph)
{
    standin_device_graph_free(graph);
}

// A node of the graph that is being captured: what the op changed in each of its runs that are queued.
class Node
{
  public:
    Node() { standin_device_call(native(current()), run, this); }
    void queue(Patches changed)
    {
        std::lock_guard<std::mutex> guard(lock);
        runs.push_back(std::move(changed));
    }

  private:
    static void run(void *of)
    {
        Node *node = static_cast<Node *>(of);
        Patches changed;
        {
            std::lock_guard<std::mutex> guard(node->lock);
            TORCH_CHECK(!node->runs.empty(), "a graph runs that was not launched");
            changed = std::move(node->runs.front());
            node->runs.pop_front();
        }
        write(changed);
    }
    std::mutex lock;
    std::deque<Patches> runs;
};

// A capture on the current stream. The default one cannot be captured: a stream of its own, behind it, stands in.
class Capture
{
  public:
    Capture() : before(current())
    {
        if (before == 0) {
            static const int64_t own = make_stream();
            void *event = nullptr;
            standin_device_record(&event, native(0));
            current() = own;
            standin_device_block(event, native(own));
        }
        standin_device_capture_begin(native(current()));
    }
    // The graph; NULL: the capture was broken.
    void *end()
    {
        void *graph = standin_device_capture_end(native(current()));
        current() = before;
        return graph;
    }

  private:
    int64_t before;
};

// A caller of `function` calls `ours` instead: a jump over its first bytes.
inline void replace(void *function, void *ours)
{
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    char *from = reinterpret_cast<char *>(uintptr_t(function) / page * page);
    unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; // x86-64: mov rax, ours; jmp rax
    memcpy(jump + 2, &ours, sizeof ours);
    TORCH_CHECK(mprotect(from, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "code cannot be changed");
    memcpy(function, jump, sizeof jump);
}
} // namespace on_driver

#else

namespace on_driver
{
constexpr bool is = false;
constexpr size_t SPACE = size_t(8) << 30;
inline thread_local int device = 0;
inline int64_t current()
{
    return 0;
}
inline int count()
{
    return 1;
}
// Of graphs there is no more than what the accelerator itself holds.
struct Node {
    void queue(Patches) {}
};
struct Capture {
    void *end() { return this; }
};
inline void call(std::function<void()>) {}
inline void wait_for_all() {}
inline void launch(void *) {}
inline void free_graph(void *) {}
} // namespace on_driver

#endif
#endif
