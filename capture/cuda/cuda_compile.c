/* The kernels compiled by NVRTC at run time (see cuda_kernel.h): every build of PyTorch for CUDA brings that library.
 * Prototypes are those of the public nvrtc.h. */
#define _GNU_SOURCE /* dl_iterate_phdr, dlinfo */
#include "cuda/cuda_kernel.h"
#include "cuda/kernel_cache.h"

#include <lastbit/text_stream.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct lb_nvrtc_program *program;

/* X(NAME, parameters): all return 0 or the number of an error. */
#define FUNCTIONS(X)                                                                                                   \
    X(Version, (int *, int *))                                                                                         \
    X(CreateProgram, (program *, const char *, const char *, int, const char *const *, const char *const *))           \
    X(DestroyProgram, (program *))                                                                                     \
    X(CompileProgram, (program, int, const char *const *))                                                             \
    X(GetCUBINSize, (program, size_t *))                                                                               \
    X(GetCUBIN, (program, char *))                                                                                     \
    X(GetProgramLogSize, (program, size_t *))                                                                          \
    X(GetProgramLog, (program, char *))

typedef struct nvrtc {
#define FIELD(NAME, parameters) int(*NAME) parameters;
    FUNCTIONS(FIELD)
#undef FIELD
} nvrtc;

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"};
#define N_NAMES (sizeof names / sizeof *names)

/* ---- finding it -------------------------------------------------------------------------------------------------- */

static void *open_in(const char *folder, size_t length, const char *below)
{
    char path[4096];
    void *library = NULL;
    for (size_t i = 0; i < N_NAMES && !library; i++)
        if (snprintf(path, sizeof path, "%.*s/%s%s", (int)length, folder, below, names[i]) < (int)sizeof path)
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* Paths of libraries of CUDA are noted here; nothing may be loaded while they are enumerated. */
typedef struct neighbours {
    char paths[8][1024];
    size_t n;
} neighbours;

static int note(struct dl_phdr_info *library, size_t size, void *context)
{
    (void)size;
    neighbours *found = context;
    const char *const file = strrchr(library->dlpi_name, '/');
    const bool is_one = file && (strncmp(file, "/libcudart.so", 13) == 0 || strncmp(file, "/libcublas", 10) == 0 ||
                                 strncmp(file, "/libcufft.so", 12) == 0 || strncmp(file, "/libcusparse.so", 15) == 0);
    if (is_one && found->n < 8 && strlen(library->dlpi_name) < sizeof found->paths[0])
        strcpy(found->paths[found->n++], library->dlpi_name);
    return 0;
}

/* In a toolkit, and in NVIDIA's wheels for CUDA 13, all libraries lie in one folder; in the wheels before, each in one
 * of its own. */
static void *open_beside_others(void)
{
    neighbours found = {.n = 0};
    dl_iterate_phdr(note, &found);
    void *library = NULL;
    for (size_t i = 0; i < found.n && !library; i++) {
        const size_t folder = (size_t)(strrchr(found.paths[i], '/') - found.paths[i]);
        library = open_in(found.paths[i], folder, "");
        if (!library) library = open_in(found.paths[i], folder, "../../cuda_nvrtc/lib/");
    }
    return library;
}

static void *open_library(void)
{
    void *library = NULL;
    for (size_t i = 0; i < N_NAMES && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = open_beside_others();
    for (size_t i = 0; i < N_NAMES && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

bool lb_cuda_compiler(char *path, size_t size)
{
    struct link_map *map = NULL;
    void *library = open_library();
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return false;
    snprintf(path, size, "%s", map->l_name);
    return true;
}

static lb_status find(nvrtc *to, lb_err *err)
{
    void *library = open_library();
    if (!library)
        return lb_fail(err, LB_ERR_UNSUPPORTED,
                       "this lastbit was built without nvcc, and no libnvrtc.so is found to compile its kernels with: "
                       "add the folder of libnvrtc.so.12 or .13 to LD_LIBRARY_PATH, or build lastbit where nvcc is");
#define FIND(NAME, parameters)                                                                                         \
    if (!(*(void **)(void *)&to->NAME = dlsym(library, "nvrtc" #NAME)))                                                \
        return lb_fail(err, LB_ERR_UNSUPPORTED, "libnvrtc.so has no nvrtc" #NAME ": it is older than CUDA 11.1");
    FUNCTIONS(FIND)
#undef FIND
    return LB_OK;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static lb_status refused(const nvrtc *nvrtc, program program, lb_err *err)
{
    size_t size = 0;
    char *log = NULL;
    if (nvrtc->GetProgramLogSize(program, &size) == 0 && size > 0) log = calloc(1, size + 1);
    if (log && nvrtc->GetProgramLog(program, log) != 0) log[0] = 0;
    lb_fail(err, LB_ERR_UNSUPPORTED, "NVRTC does not compile the measuring kernels: %.600s",
            log ? log : "it does not say why");
    free(log);
    return LB_ERR_UNSUPPORTED;
}

static lb_status take_code(const nvrtc *nvrtc, program program, lb_digest key, void **code, lb_err *err)
{
    size_t size = 0;
    if (nvrtc->GetCUBINSize(program, &size) != 0 || size == 0) return refused(nvrtc, program, err);
    *code = malloc(size);
    if (!*code) return lb_fail(err, LB_ERR_NOMEM, "no memory for the measuring kernels");
    if (nvrtc->GetCUBIN(program, *code) == 0) {
        lb_kernel_cache_keep(key, *code, size);
        return LB_OK;
    }
    free(*code);
    return refused(nvrtc, program, err);
}

static void add_text(FILE *to, const char *text)
{
    fprintf(to, "%zu:%s", strlen(text), text);
}

/* Of all that the code is made of: each text with its length, so that no two lists of them are one. */
static bool key_of(lb_digest *key, const nvrtc *nvrtc, const lb_kernel_image *code, const char *const *options,
                   size_t n_options)
{
    int major = 0, minor = 0;
    char *text = NULL;
    size_t size = 0;
    FILE *to = nvrtc->Version(&major, &minor) == 0 ? lb_text_stream_open(&text, &size) : NULL;
    if (!to) return false;
    fprintf(to, "NVRTC %d.%d:", major, minor);
    for (size_t o = 0; o < n_options; o++) add_text(to, options[o]);
    add_text(to, code->source);
    for (size_t h = 0; h < LB_KERNEL_HEADERS && code->headers[h]; h++) {
        add_text(to, code->header_names[h]);
        add_text(to, code->headers[h]);
    }
    fclose(to);
    if (!text) return false;
    *key = lb_digest_bytes(text, size);
    free(text);
    return true;
}

lb_status lb_cuda_compile(const lb_kernel_image *code, int architecture, void **machine_code, lb_err *err)
{
    nvrtc nvrtc;
    LB_TRY(find(&nvrtc, err));

    char target[40];
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d", architecture);
    const char *const options[] = {target, LB_KERNEL_OPTIONS};
    program program;
    lb_digest key;
    if (!key_of(&key, &nvrtc, code, options, sizeof options / sizeof *options))
        return lb_fail(err, LB_ERR_UNSUPPORTED, "NVRTC does not say its version, or memory is short");
    if ((*machine_code = lb_kernel_cache_find(key))) return LB_OK;
    if (nvrtc.CreateProgram(&program, code->source, "digest_kernel.cu", LB_KERNEL_HEADERS, code->headers,
                            code->header_names) != 0)
        return lb_fail(err, LB_ERR_UNSUPPORTED, "NVRTC does not take the source of the measuring kernels");
    const lb_status status = nvrtc.CompileProgram(program, (int)(sizeof options / sizeof *options), options) == 0
                                 ? take_code(&nvrtc, program, key, machine_code, err)
                                 : refused(&nvrtc, program, err);
    nvrtc.DestroyProgram(&program);
    return status;
}
