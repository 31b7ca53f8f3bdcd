/* Allocations of this program that fail when a test says so: the functions are defined here, in front of the C
 * library's.
 *
 *     for (long n = 1; fail_memory(n), read_it(), memory_failed(); n++) …   // each allocation in turn, then none
 *
 * A sanitizer has allocators of its own: with one `failing_memory` is false, and such a test is skipped. */
#ifndef LB_TESTS_FAILING_MEMORY_H
#define LB_TESTS_FAILING_MEMORY_H
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

static long memory_call, first_failing, last_failing;

/* Allocation n from now on fails, and those after it up to number `last`; 0: none does. */
static void fail_memory_until(long n, long last)
{
    memory_call = 0, first_failing = n, last_failing = last;
}
static inline void fail_memory(long n)
{
    fail_memory_until(n, n);
}
/* Ends it; whether an allocation has failed since. */
static inline bool memory_failed(void)
{
    const bool failed = first_failing && memory_call >= first_failing;
    first_failing = 0;
    return failed;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
enum { failing_memory = false };
#else
enum { failing_memory = true };

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static bool memory_fails(void)
{
    if (!first_failing) return false;
    const long call = __atomic_add_fetch(&memory_call, 1, __ATOMIC_RELAXED);
    if (call < first_failing || call > last_failing) return false;
    errno = ENOMEM;
    return true;
}
void *malloc(size_t n)
{
    return memory_fails() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return memory_fails() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *old, size_t n)
{
    return memory_fails() ? NULL : __libc_realloc(old, n);
}
void *aligned_alloc(size_t alignment, size_t n)
{
    return memory_fails() ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void **result, size_t alignment, size_t n)
{
    if (memory_fails()) return ENOMEM;
    *result = __libc_memalign(alignment, n);
    return *result ? 0 : ENOMEM;
}
#endif
#endif
