// The stream of the stand-in accelerator, and the memory of the host that it copies to and from late.
//
// Ops compute at once, and nobody can tell: memory of the device cannot be read, so that the host learns how far the
// device is only from what comes to it. That is late:
//
//     copy to pinned memory      takes its bytes when it is queued; they arrive when the host waits for the stream, or
//                                for an event behind the copy
//     copy from pinned memory    reads them when the device's next op needs them, or when the host waits
//     a device that is busy      makes whoever waits for it wait until then
//
// All streams are one queue: a copy may also arrive when one that was queued later on another stream is waited for.
#ifndef STANDIN_STREAM_H
#define STANDIN_STREAM_H

#include <c10/core/Allocator.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

class StandinStream
{
  public:
    // `copy` runs in the thread that waits, or that calls the op which needs it.
    void queue(bool to_device, std::function<void()> copy)
    {
        std::lock_guard<std::mutex> guard(lock);
        copies.push_back({++queued, to_device, std::move(copy)});
    }

    // For an event: everything that is queued by now.
    uint64_t last()
    {
        std::lock_guard<std::mutex> guard(lock);
        return queued;
    }

    // What an op of the device may read lies there, and nothing more than that has been done.
    void before_op()
    {
        uint64_t needed = 0;
        {
            std::lock_guard<std::mutex> guard(lock);
            for (const Copy &copy : copies)
                if (copy.to_device) needed = copy.number;
        }
        run(needed);
    }

    void wait(uint64_t number = UINT64_MAX)
    {
        std::this_thread::sleep_until(busy_until());
        run(number);
    }

    bool is_done(uint64_t number)
    {
        if (std::chrono::steady_clock::now() < busy_until()) return false;
        run(number);
        return true;
    }

    void stand_still(unsigned milliseconds)
    {
        std::lock_guard<std::mutex> guard(lock);
        until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    }

  private:
    struct Copy {
        uint64_t number;
        bool to_device;
        std::function<void()> run;
    };

    std::chrono::steady_clock::time_point busy_until()
    {
        std::lock_guard<std::mutex> guard(lock);
        return until;
    }

    void run(uint64_t number)
    {
        std::vector<Copy> done; // what they hold is let go without the lock: it may be Python's
        std::lock_guard<std::mutex> guard(lock);
        while (!copies.empty() && copies.front().number <= number) {
            copies.front().run();
            done.push_back(std::move(copies.front()));
            copies.pop_front();
        }
    }

    std::mutex lock;
    std::deque<Copy> copies;
    uint64_t queued = 0;
    std::chrono::steady_clock::time_point until;
};

// What is freed is overwritten, as memory of the device is.
class PinnedMemory final : public c10::Allocator
{
  public:
    c10::DataPtr allocate(size_t bytes) override
    {
        void *address = nullptr;
        TORCH_CHECK(posix_memalign(&address, 64, bytes ? bytes : 1) == 0, "no pinned memory");
        std::lock_guard<std::mutex> guard(lock);
        blocks[address] = bytes;
        return {address, address, give, c10::Device(c10::kCPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return give; }

    void copy_data(void *to, const void *from, size_t bytes) const override { memcpy(to, from, bytes); }

    bool holds(const void *address)
    {
        std::lock_guard<std::mutex> guard(lock);
        auto after = blocks.upper_bound(const_cast<void *>(address));
        if (after == blocks.begin()) return false;
        const auto &[begin, bytes] = *--after;
        return address < static_cast<char *>(begin) + (bytes ? bytes : 1);
    }

    static PinnedMemory &get()
    {
        static PinnedMemory *one = new PinnedMemory;
        return *one;
    }

  private:
    static void give(void *address)
    {
        PinnedMemory &all = get();
        {
            std::lock_guard<std::mutex> guard(all.lock);
            memset(address, 0xCB, all.blocks[address]);
            all.blocks.erase(address);
        }
        free(address);
    }

    std::mutex lock;
    std::map<void *, size_t> blocks; // bytes by address
};

#endif
