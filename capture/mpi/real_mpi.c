/* Finding the MPI of the process: see real_mpi.h. */
#define _GNU_SOURCE /* RTLD_NEXT, dladdr, dl_iterate_phdr */
#include "mpi/real_mpi.h"

#include "calls/shim_settings.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Sonames since Open MPI 2 and MPICH 3.1; Intel's MPI and MVAPICH have MPICH's. Debian calls MPICH's libmpich. */
static const struct {
    const char *library, *adapter;
} families[] = {{"libmpi.so.40", "liblastbit_mpi_openmpi.so"},
                {"libmpich.so.12", "liblastbit_mpi_mpich.so"},
                {"libmpi.so.12", "liblastbit_mpi_mpich.so"}};
enum { FAMILIES = sizeof families / sizeof *families, PARTS = 16 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static lb_mpi_functions real;
static const lb_mpi_family *family;
static struct part {
    uintptr_t first, last;
    lb_mpi_caller caller;
} parts[PARTS];
static int n_parts;

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_ours(const void *address)
{
    Dl_info at, here;
    return dladdr(address, &at) && dladdr((void *)&families, &here) && at.dli_fbase == here.dli_fbase;
}

/* A program that is linked with MPI has its functions behind ours in the order of loading; one that loads it
 * privately, as Python's modules are loaded, has it under its name. */
static void *find_library(int *which)
{
    Dl_info at;
    void *next = dlsym(RTLD_NEXT, "PMPI_Init");
    if (next && !is_ours(next) && dladdr(next, &at)) {
        void *library = dlopen(at.dli_fname, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
        for (*which = 0; *which < FAMILIES; ++*which)
            if (strncmp(base_name(at.dli_fname), families[*which].library, strlen(families[*which].library)) == 0)
                break;
        if (library && *which < FAMILIES) return library;
    }
    for (*which = 0; *which < FAMILIES; ++*which) {
        void *library = dlopen(families[*which].library, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

static void fill(void *library)
{
#define FILL(name, parameters, arguments)                                                                              \
    *(void **)&real.name = dlsym(library, "PMPI_" #name);                                                              \
    if (real.name && is_ours(*(void **)&real.name)) real.name = NULL;
    LB_MPI_FUNCTIONS(FILL)
#undef FILL
}

/* The adapter names no library: it finds its functions and constants in the one that is there, which Python's modules
 * load for themselves alone, and which is therefore shown to all first. */
static void load_adapter(const char *library, const char *name)
{
    char path[PATH_MAX] = "";
    Dl_info here;
    const char *slash;
    const lb_mpi_family *(*get)(void) = NULL;
    if (dladdr((void *)&families, &here) && here.dli_fname && (slash = strrchr(here.dli_fname, '/')))
        snprintf(path, sizeof path, "%.*s/%s", (int)(slash - here.dli_fname), here.dli_fname, name);
    dlopen(library, RTLD_NOLOAD | RTLD_LAZY | RTLD_GLOBAL);
    void *adapter = dlopen(*path ? path : name, RTLD_NOW | RTLD_LOCAL);
    if (adapter) *(void **)&get = dlsym(adapter, LB_MPI_FAMILY_SYMBOL);
    if (get)
        family = get();
    else
        lb_shim_turn_off(adapter ? "its adapter is of another version" : dlerror());
}

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static lb_mpi_caller caller_of(const char *name)
{
    static const char *const bindings[] = {"libmpi_mpifh", "libmpi_usempi", "libmpichfort", "libmpifort"};
    static const char *const own[] = {"libmpi.so", "libmpich.so", "mca_io_", "mca_osc_", "mca_coll_"};
    for (size_t i = 0; i < sizeof bindings / sizeof *bindings; i++)
        if (begins(name, bindings[i])) return LB_MPI_OF_FORTRAN;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (begins(name, own[i])) return LB_MPI_OF_ITSELF;
    return LB_MPI_OF_PROGRAM;
}

static int note_part(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    struct part part = {UINTPTR_MAX, 0, caller_of(base_name(info->dlpi_name))};
    if (part.caller == LB_MPI_OF_PROGRAM) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        if (at < part.first) part.first = at;
        if (at + info->dlpi_phdr[i].p_memsz > part.last) part.last = at + info->dlpi_phdr[i].p_memsz;
    }
    if (n_parts < PARTS) parts[n_parts++] = part;
    return 0;
}

void lb_mpi_real_look_again(void)
{
    n_parts = 0;
    dl_iterate_phdr(note_part, NULL);
}

static void find(void)
{
    int which = FAMILIES;
    void *library = find_library(&which);
    if (!library) {
        lb_shim_turn_off("no library of MPI was found behind lastbit's");
        return;
    }
    fill(library);
    lb_mpi_real_look_again();
    if (lb_shim_mode_now() != LB_SHIM_RECORDING) return;
    if (which < FAMILIES)
        load_adapter(families[which].library, families[which].adapter);
    else
        lb_shim_turn_off("this library of MPI is neither Open MPI's libmpi.so.40 nor one with MPICH's interface");
}

const lb_mpi_functions *lb_mpi_real(void)
{
    pthread_once(&once, find);
    return &real;
}

const lb_mpi_family *lb_mpi_real_family(void)
{
    pthread_once(&once, find);
    return family;
}

lb_mpi_caller lb_mpi_real_caller(const void *address)
{
    const uintptr_t at = (uintptr_t)address;
    for (int i = 0; i < n_parts; i++)
        if (at >= parts[i].first && at < parts[i].last) return parts[i].caller;
    return LB_MPI_OF_PROGRAM;
}
