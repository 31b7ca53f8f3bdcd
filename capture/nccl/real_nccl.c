/* Finding the real NCCL: see real_nccl.h. */
#define _GNU_SOURCE /* RTLD_NEXT, dladdr */
#include "real_nccl.h"

#include "calls/shim_settings.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define NAME(name, parameters, arguments) "p" #name,
    LB_NCCL_ROWS(NAME) LB_NCCL_OTHERS(NAME)
#undef NAME
};
static _Atomic(void *) found[LB_NCCL_ENTRIES];
static _Atomic(void *) library;

/* Loaded as libnccl.so.2 we may find ourselves. */
static bool is_ours(void *address)
{
    Dl_info at, here;
    return dladdr(address, &at) && dladdr((void *)&names, &here) && at.dli_fbase == here.dli_fbase;
}

static void *look(void *in, const char *name)
{
    void *address = dlsym(in, name);
    if (!address || is_ours(address)) address = dlsym(in, name + 1);
    return address && !is_ours(address) ? address : NULL;
}

static void *open_library(const char *name, int how)
{
    void *handle = dlopen(name, how | RTLD_LAZY | RTLD_LOCAL);
    if (handle && !look(handle, "pncclGetVersion")) handle = NULL;
    return handle;
}

/* The library behind ours in the order of loading. */
static void *next_library(void)
{
    Dl_info at;
    void *address = look(RTLD_NEXT, "pncclGetVersion");
    return address && dladdr(address, &at) ? open_library(at.dli_fname, RTLD_NOLOAD) : NULL;
}

/* One for all calls, though a process may have several: what one of them made another cannot use. It is held, so that
 * what it gave stays where it is. */
static void *one_library(void)
{
    void *handle = atomic_load_explicit(&library, memory_order_acquire), *none = NULL;
    const char *named = getenv("LASTBIT_NCCL");
    if (handle) return handle;
    if (named && *named) {
        handle = open_library(named, 0);
    } else {
        handle = next_library();
        if (!handle) handle = open_library("libnccl.so.2", RTLD_NOLOAD);
        if (!handle) handle = open_library("libnccl.so.2", 0);
        if (!handle) handle = open_library("libnccl.so", 0);
    }
    return handle && !atomic_compare_exchange_strong(&library, &none, handle) ? none : handle;
}

static void say_that_there_is_none(void)
{
    static _Atomic bool said;
    const char *named = getenv("LASTBIT_NCCL");
    if (atomic_exchange(&said, true)) return;
    if (named && *named)
        lb_shim_say("LASTBIT_NCCL names no library of NCCL: %s; its calls fail", named);
    else
        lb_shim_say("no NCCL is behind lastbit's, so that its calls fail; name the real one in LASTBIT_NCCL");
}

void *lb_nccl_real(lb_nccl_entry entry)
{
    void *address = atomic_load_explicit(&found[entry], memory_order_acquire), *handle;
    if (address) return address;
    handle = one_library();
    if (handle)
        address = look(handle, names[entry]);
    else
        say_that_there_is_none();
    atomic_store_explicit(&found[entry], address, memory_order_release);
    return address;
}
