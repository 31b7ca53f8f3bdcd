/* How much memory reading something takes, and the limit that hostile input must stay under.
 *
 * Under AddressSanitizer every allocation is counted; otherwise the address space may grow by the limit and no further,
 * so that what would pass it fails as LB_ERR_NOMEM, which the tests take for a failure. */
#ifndef LB_TESTS_HELD_MEMORY_H
#define LB_TESTS_HELD_MEMORY_H
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define MEMORY_LIMIT (64l << 20)

#if defined(__has_feature) /* clang's way of saying it */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#elif __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
size_t __sanitizer_get_allocated_size(const volatile void *p);
void __sanitizer_malloc_hook(const volatile void *p, size_t n);
void __sanitizer_free_hook(const volatile void *p);
static _Atomic long held, most;
void __sanitizer_malloc_hook(const volatile void *p, size_t n)
{
    (void)p;
    long now = held += (long)n;
    if (now > most) most = now;
}
void __sanitizer_free_hook(const volatile void *p)
{
    held -= (long)__sanitizer_get_allocated_size(p);
}
static long held_before;
static void forget_memory(void)
{
    most = held_before = held;
}
/* Bytes held at most since forget_memory. */
static long memory_used(void)
{
    return most - held_before;
}

#elif defined(__SANITIZE_THREAD__)
static void forget_memory(void) {}
static long memory_used(void)
{
    return 0;
}

#else
/* The first call sets the limit: what the process had then, and MEMORY_LIMIT more. */
static void forget_memory(void)
{
    static int limited;
    long pages = 0;
    if (limited++) return;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) abort();
    fclose(file);
    rlim_t bytes = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + MEMORY_LIMIT);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}) != 0) abort();
}
static long memory_used(void)
{
    return 0;
}
#endif
#endif
