/* Finding the real NCCL: see real_nccl.h. */
#define _GNU_SOURCE /* RTLD_NEXT, dladdr */
#include "real_nccl.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define NAME(name, parameters, arguments) "p" #name,
    LB_NCCL_ROWS(NAME) LB_NCCL_OTHERS(NAME)
#undef NAME
};
static _Atomic(void *) found[LB_NCCL_ENTRIES];
static _Atomic(void *) library; /* where it is no library behind ours */

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

/* The handle is held, so that what it gave stays where it is. */
static void *open_any(void)
{
    void *handle = atomic_load(&library);
    const char *named = getenv("LASTBIT_NCCL");
    if (handle) return handle;
    if (named && *named) handle = open_library(named, 0);
    if (!handle && !(named && *named)) handle = open_library("libnccl.so.2", RTLD_NOLOAD);
    if (!handle && !(named && *named)) handle = open_library("libnccl.so.2", 0);
    if (!handle && !(named && *named)) handle = open_library("libnccl.so", 0);
    atomic_store(&library, handle);
    return handle;
}

void *lb_nccl_real(lb_nccl_entry entry)
{
    void *address = atomic_load_explicit(&found[entry], memory_order_acquire);
    if (address) return address;
    const char *named = getenv("LASTBIT_NCCL");
    if (!named || !*named) address = look(RTLD_NEXT, names[entry]);
    void *handle = address ? NULL : open_any();
    if (handle) address = look(handle, names[entry]);
    atomic_store_explicit(&found[entry], address, memory_order_release);
    return address;
}
