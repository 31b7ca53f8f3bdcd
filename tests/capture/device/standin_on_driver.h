// The stand-in accelerator on the stand-in driver of CUDA, where it is compiled for it (-DSTANDIN_ON_DRIVER).
//
// Tensors then lie in that driver's memory, streams and events are its own, and a program that asks is told that the
// device is one of CUDA: the recorder reads it by its back end for CUDA. An op computes at once, on what memory will be
// when all that is queued has run; what it changed is written into the driver's memory by a kernel on the current
// stream, which is late. A reader that is not ordered behind the op finds other bytes there.
//
//     STANDIN_SEED=N             of delays and orders
//     STANDIN_DELAY_US=N         operations begin up to so much later
//     STANDIN_WRONG_STREAM=1     another stream than that of the ops is told as the current one: readers are early
//
// Graphs are not captured there.
#ifndef STANDIN_ON_DRIVER_H
#define STANDIN_ON_DRIVER_H

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <vector>

#ifdef STANDIN_ON_DRIVER

#include "standin_device.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace on_driver
{
constexpr bool is = true;
constexpr size_t SPACE = size_t(512) << 20; // the driver's device has twice that

inline std::mutex lock;
inline std::vector<void *> streams{nullptr}; // by torch's number
inline thread_local int64_t current = 0;

inline void *native(int64_t number)
{
    std::lock_guard<std::mutex> guard(lock);
    return streams.at(size_t(number));
}

inline int64_t make_stream()
{
    void *made = standin_device_stream();
    std::lock_guard<std::mutex> guard(lock);
    streams.push_back(made);
    return int64_t(streams.size()) - 1;
}

inline uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}

inline void *memory(void **twin)
{
    standin_device_begin(number_of("STANDIN_SEED", 1), unsigned(number_of("STANDIN_DELAY_US", 100)));
    return standin_device_memory(SPACE, twin);
}

// On the current stream, in a thread of the driver's.
inline void call(std::function<void()> act)
{
    auto run = [](void *of) {
        auto *act = static_cast<std::function<void()> *>(of);
        (*act)();
        delete act;
    };
    standin_device_call(native(current), run, new std::function<void()>(std::move(act)));
}

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
constexpr int64_t current = 0;
} // namespace on_driver

#endif
#endif
