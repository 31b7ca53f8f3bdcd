/* Whether a kernel finds what the host finds, in every case of device/kernel_cases.h: kernel_check [LIBRARY]
 *
 * LIBRARY has a host_kernel_measure of its own (test_kernel_mutants.py compiles some that are wrong). Exit 1, and the
 * case, at the first difference. */
#include "host_grid.h"
#include "device/kernel_cases.h"
#include "device/kernel_item.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void kernel(const lb_kernel_launch *launch, host_grid grid);

enum { MOST = 16 };

/* Cases of one launch. */
typedef struct lot {
    lb_measuring cases[MOST];
    lb_kernel_item items[MOST];
    lb_kernel_result results[MOST];
    void *scratch[MOST];
    size_t n;
} lot;

static bool is_same(const lb_measuring *host, const lb_kernel_result *result, const void *scratch)
{
    const lb_measured found = lb_kernel_measured(result);
    return result->ended == 0 && memcmp(&found.logical, &host->out.logical, sizeof found.logical) == 0 &&
           memcmp(&found.blob, &host->out.blob, sizeof found.blob) == 0 &&
           memcmp(&found.statistics, &host->out.statistics, sizeof found.statistics) == 0 &&
           (host->out.n_leaves == 0 || memcmp(scratch, host->out.leaves, 8 * host->out.n_leaves) == 0);
}

/* The cases from `first` on, as many as a launch holds. */
static bool begin(lot *lot, void *bytes, size_t first)
{
    uint32_t words = 0;
    memset(lot, 0, sizeof *lot);
    for (; lot->n < MOST && lb_kernel_case(first + lot->n, bytes, &lot->cases[lot->n]); lot->n++) {
        lb_kernel_item *item = &lot->items[lot->n];
        if (lb_kernel_item_of(item, &lot->cases[lot->n], NULL) != LB_OK) return false;
        words += lb_kernel_words(item);
        if (words > LB_KERNEL_WORDS) break;
        lot->scratch[lot->n] = calloc(1, lb_kernel_scratch_bytes(item));
        item->scratch = (uint64_t)(uintptr_t)lot->scratch[lot->n];
        item->slot = lot->n;
    }
    return true;
}

/* How many of them are the same, before the first that differs. */
static size_t measure_all(lot *lot, kernel *measure, uint64_t seed)
{
    size_t same = 0;
    lb_kernel_launch launch = {.results = (uint64_t)(uintptr_t)lot->results, .n_results = MOST};
    if (!lb_kernel_pack(&launch, lot->items, lot->n) || !lb_measure(lot->cases, lot->n)) return 0;
    measure(&launch, (host_grid){.blocks = launch.n_units, .workers = 1, .seed = seed});
    while (same < lot->n && is_same(&lot->cases[same], &lot->results[same], lot->scratch[same])) same++;
    for (size_t i = 0; i < lot->n; i++) {
        free(lot->cases[i].out.leaves);
        free(lot->scratch[i]);
    }
    return same;
}

int main(int argc, char **argv)
{
    kernel *measure = host_kernel_measure;
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        void *found = library ? dlsym(library, "host_kernel_measure") : NULL;
        if (!found) {
            fprintf(stderr, "kernel_check: %s\n", dlerror());
            return 2;
        }
        memcpy(&measure, &found, sizeof measure);
    }
    void *bytes = NULL;
    if (posix_memalign(&bytes, 16, LB_KERNEL_CASE_BYTES)) return 2;
    lb_kernel_case_fill(bytes);
    static lot lot;
    size_t i = 0;
    for (; begin(&lot, bytes, i) && lot.n; i += lot.n) {
        const size_t same = measure_all(&lot, measure, i);
        if (same == lot.n) continue;
        printf("case %zu, %s, differs\n", i + same, lb_dtype_name(lot.cases[same].tensor.dtype));
        free(bytes);
        return 1;
    }
    printf("%zu cases are the same\n", i);
    free(bytes);
    return 0;
}
