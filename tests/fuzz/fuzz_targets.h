/* All targets in one table, by which the fuzzers and the test of their corpora run them. */
#ifndef LB_TESTS_FUZZ_TARGETS_H
#define LB_TESTS_FUZZ_TARGETS_H
#include "reader_targets.h"

#ifdef FUZZ_lb_formats /* a fuzzer of its library alone */
#define RUN_TARGETS(X)
#else
#include "run_targets.h"

#include <omp.h>
#endif

typedef struct fuzz_target {
    const char *name;
    void (*read)(const uint8_t *bytes, size_t size);
    void (*repair)(uint8_t *bytes,
                   size_t size); /* puts checksums right, so that a mutation gets past them; NULL: there are none */
} fuzz_target;

static const fuzz_target fuzz_targets[] = {
#define FUZZ_TARGET(target, repair, text) {#target, target_##target, repair},
    READER_TARGETS(FUZZ_TARGET) RUN_TARGETS(FUZZ_TARGET)
#undef FUZZ_TARGET
};
enum { FUZZ_TARGET_COUNT = sizeof fuzz_targets / sizeof *fuzz_targets };

/* Small inputs that decode to more than this are bombs. */
static void fuzz_targets_begin(void)
{
#ifndef FUZZ_lb_formats
    omp_set_num_threads(1); /* a team costs more than what these inputs hold */
#endif
    lb_decode_limit_count_json();
    lb_decode_limit_set(16u << 20, 100);
}

/* After each run; what a reader leaves open adds up to a failure. */
static void fuzz_target_run(const fuzz_target *target, const uint8_t *bytes, size_t size)
{
    target->read(bytes, size);
    if (memory_files_open() == 0) return;
    fprintf(stderr, "%s: %u files or maps were left open\n", target->name, memory_files_open());
    abort();
}
#endif
