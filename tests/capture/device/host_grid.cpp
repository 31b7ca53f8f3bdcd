/* See host_grid.h and cuda_on_host.h. */
#include "host_grid.h"
#include "cuda_on_host.h"

#include <stdio.h>
#include <stdlib.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
}
#define NO_SYNC 1 /* a switch by itself orders nothing */
#endif

namespace
{

constexpr size_t STACK = 128 << 10;
constexpr uint32_t WARP = 32, MOST_WARPS = 9;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "a kernel on the host: %s\n", what);
    abort();
}

/* What one thread orders before another one does, for ThreadSanitizer: it knows nothing of fibers but what it is
 * told. */
void ordered_before([[maybe_unused]] char *what)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_release(what);
#endif
}
void ordered_after([[maybe_unused]] char *what)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(what);
#endif
}

/* Splitmix64 (Steele, Lea, Flood 2014). */
struct chance {
    uint64_t state;
    /* A thread of the grid draws from its worker's at a fence. The two never run at once, which ThreadSanitizer is not told:
     * it would take fences for barriers. */
    [[gnu::noinline, gnu::no_sanitize_thread]] uint64_t next()
    {
        uint64_t z = state += 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        return z ^ z >> 31;
    }
    uint32_t below(size_t n) { return (uint32_t)(next() % n); }
    template <class T>
    void shuffle(std::vector<T> &all)
    {
        for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[below(i)]);
    }
};

/* Where a thread of the host, or a fiber, stands while another runs. A switch is some ten instructions: swapcontext asks
 * the kernel for signals each time. */
#if defined(__x86_64__)
struct stand {
    void *stack = nullptr;
};
extern "C" void lb_host_grid_switch(void **from, void *to);
__asm__(".text\n"
        ".globl lb_host_grid_switch\n"
        ".type lb_host_grid_switch, @function\n"
        "lb_host_grid_switch:\n"
        "    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp\n"
        "    ret\n"
        ".size lb_host_grid_switch, .-lb_host_grid_switch\n");
void switch_to(stand *from, stand *to)
{
    lb_host_grid_switch(&from->stack, to->stack);
}
void begin_at(stand *of, char *stack, size_t size, void (*entry)())
{
    void **top = (void **)((uintptr_t)(stack + size) & ~(uintptr_t)15);
    *--top = nullptr; /* where `entry` would return to, which it does not */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    of->stack = top;
}
#else
struct stand {
    ucontext_t context;
};
void switch_to(stand *from, stand *to)
{
    swapcontext(&from->context, &to->context);
}
void begin_at(stand *of, char *stack, size_t size, void (*entry)())
{
    getcontext(&of->context);
    of->context.uc_stack.ss_sp = stack;
    of->context.uc_stack.ss_size = size;
    of->context.uc_link = nullptr;
    makecontext(&of->context, entry, 0);
}
#endif

enum class state { ready, at_fence, at_warp, at_block, ended };

struct worker;

/* One thread of a block, and after its end one of another block. */
struct fiber {
    stand place;
    std::unique_ptr<char[]> stack{new char[STACK]};
    void *tsan = nullptr;
    worker *home = nullptr;
    host_index thread, block;
    std::atomic<state> now{state::ended};
    uint32_t calls; /* of of_warp */
    fiber();
    ~fiber();
};

/* Fibers that run nothing now: to make one costs more than a small kernel. */
struct pool {
    std::mutex lock;
    std::vector<std::unique_ptr<fiber>> idle;
    std::unique_ptr<fiber> take()
    {
        std::lock_guard<std::mutex> held(lock);
        if (idle.empty()) return std::make_unique<fiber>();
        std::unique_ptr<fiber> f = std::move(idle.back());
        idle.pop_back();
        return f;
    }
    void give(std::unique_ptr<fiber> f)
    {
        std::lock_guard<std::mutex> held(lock);
        idle.push_back(std::move(f));
    }
};
pool fibers;

/* One thread of the host, which runs one block at a time. */
struct worker {
    stand place;
    void *tsan = nullptr;
    const void *stack = nullptr;
    size_t stack_size = 0;
    std::vector<std::unique_ptr<fiber>> fibers;
    std::atomic<fiber *> current{nullptr};
    chance dice;
    void (*kernel)(void *);
    void *parameters;
    uint64_t values[2][MOST_WARPS * WARP]; /* see of_warp */
    char barriers[MOST_WARPS + 1];         /* ThreadSanitizer orders by their addresses; the last one is the block's */
};
thread_local worker *here;

fiber *self()
{
    return here->current.load(std::memory_order_relaxed);
}

/* A switch orders nothing for ThreadSanitizer, but where a fiber begins a block and where it ends one. */
void to_fiber(fiber *f, state before)
{
    here->current.store(f, std::memory_order_relaxed);
#if defined(__SANITIZE_ADDRESS__)
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack.get(), STACK);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(f->tsan, before == state::ended ? 0 : NO_SYNC);
#endif
    (void)before;
    switch_to(&here->place, &f->place);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void to_worker(fiber *f, state now)
{
    f->now.store(now, std::memory_order_relaxed);
#if defined(__SANITIZE_ADDRESS__)
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->home->stack, f->home->stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(f->home->tsan, now == state::ended ? 0 : NO_SYNC);
#endif
    switch_to(&f->place, &f->home->place);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &f->home->stack, &f->home->stack_size);
#endif
}

/* It never returns: a fiber that has ended goes on with its thread of the next block. What it keeps across a switch is
 * nothing of the host's thread, which may be another one then. */
[[noreturn]] void fiber_main()
{
    fiber *f = self();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &f->home->stack, &f->home->stack_size);
#endif
    for (;;) {
        f->home->kernel(f->home->parameters);
        to_worker(f, state::ended);
    }
}

fiber::fiber()
{
#if defined(__SANITIZE_THREAD__)
    tsan = __tsan_create_fiber(0);
#endif
    begin_at(&place, stack.get(), STACK, fiber_main);
}

fiber::~fiber()
{
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan);
#endif
}

/* Each thread of a warp from one barrier to the next: where they stand then. A thread may stop at a fence on its way, for
 * a fence is no barrier: others come to theirs meanwhile, in this warp and in others. */
state run_warp(uint32_t warp)
{
    std::vector<fiber *> order, fenced;
    for (uint32_t i = 0; i < WARP; i++) {
        fiber *f = here->fibers[WARP * warp + i].get();
        (f->now.load(std::memory_order_relaxed) == state::at_fence ? fenced : order).push_back(f);
    }
    if (!fenced.empty()) order.swap(fenced);
    here->dice.shuffle(order);
    for (fiber *f : order) to_fiber(f, f->now.load(std::memory_order_relaxed));
    const state now = here->fibers[WARP * warp]->now.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < WARP; i++)
        if (here->fibers[WARP * warp + i]->now.load(std::memory_order_relaxed) == state::at_fence)
            return state::at_fence;
    for (uint32_t i = 0; i < WARP; i++)
        if (here->fibers[WARP * warp + i]->now.load(std::memory_order_relaxed) != now)
            fail("some threads of a warp stand at a barrier, and others at another one or at the end");
    return now;
}

void run_block(uint32_t block)
{
    std::vector<uint32_t> warps, waiting;
    for (uint32_t i = 0; i < here->fibers.size(); i++) {
        fiber *f = here->fibers[i].get();
        f->home = here;
        f->thread.x = i;
        f->block.x = block;
        f->calls = 0;
        if (i % WARP == 0) warps.push_back(i / WARP);
    }
    const size_t all = warps.size();
    while (!warps.empty()) {
        const uint32_t i = here->dice.below(warps.size());
        const state now = run_warp(warps[i]);
        if (now == state::at_warp || now == state::at_fence) continue;
        if (now == state::at_block) waiting.push_back(warps[i]);
        warps.erase(warps.begin() + i);
        if (!warps.empty() || waiting.empty()) continue;
        if (waiting.size() < all) fail("some warps of a block stand at its barrier, and others have ended");
        warps.swap(waiting);
    }
}

struct queue {
    std::vector<uint32_t> blocks;
    std::atomic<size_t> next{0};
};

void work(const host_grid *grid, void (*kernel)(void *), void *parameters, queue *all, uint32_t number)
{
    worker own;
    own.kernel = kernel;
    own.parameters = parameters;
    own.dice.state = grid->seed + number;
    here = &own;
    for (uint32_t i = 0; i < grid->threads; i++) own.fibers.push_back(fibers.take());
#if defined(__SANITIZE_THREAD__)
    own.tsan = __tsan_get_current_fiber();
#endif
    for (size_t i; (i = all->next++) < all->blocks.size();) run_block(all->blocks[i]);
    for (std::unique_ptr<fiber> &f : own.fibers) fibers.give(std::move(f));
    here = nullptr;
}

} // namespace

const host_index *host_thread_index()
{
    return &self()->thread;
}
const host_index *host_block_index()
{
    return &self()->block;
}

static void stop_at(uint32_t number, state now)
{
    char *barrier = &self()->home->barriers[number];
    ordered_before(barrier);
    to_worker(self(), now);
    ordered_after(barrier);
}

void __syncwarp()
{
    stop_at(self()->thread.x / WARP, state::at_warp);
}

/* It orders nothing for ThreadSanitizer: the counters that go with fences do. */
void __threadfence()
{
    if (here->dice.below(2)) to_worker(self(), state::at_fence);
}

void __threadfence_system()
{
    __threadfence();
}

void __syncthreads()
{
    stop_at(MOST_WARPS, state::at_block);
}

/* One call's values stand while the next one's are given. */
const uint64_t *of_warp(uint64_t value)
{
    fiber *f = self();
    uint64_t *all = f->home->values[f->calls++ % 2] + f->thread.x / WARP * WARP;
    all[f->thread.x % WARP] = value;
    __syncwarp();
    return all;
}

void host_grid_run(const host_grid *grid, void (*kernel)(void *), void *parameters)
{
    if (grid->threads % WARP || grid->threads > WARP * MOST_WARPS) fail("no such size of a block");
    queue all;
    for (uint32_t b = grid->first_block; b < grid->blocks; b++) all.blocks.push_back(b);
    chance dice = {~grid->seed};
    dice.shuffle(all.blocks);
    std::vector<std::thread> others;
    for (uint32_t i = 1; i < grid->workers; i++) others.emplace_back(work, grid, kernel, parameters, &all, i);
    work(grid, kernel, parameters, &all, 0);
    for (std::thread &other : others) other.join();
}
