/* A subset of a program, as a program of its own: its tables hold what the kept ops use, and nothing else. */
#ifndef LB_BISECT_PROGRAM_SUBSET_H
#define LB_BISECT_PROGRAM_SUBSET_H

#include <lastbit/program.h>

typedef enum lb_program_subset_fate {
    LB_PROGRAM_SUBSET_DROP = 0,
    LB_PROGRAM_SUBSET_KEEP,
    LB_PROGRAM_SUBSET_SOURCE, /* a source stands in for each of its results: their bytes are given */
    /* a source (lb::source) that shows what an earlier step of the program subset left there */
    LB_PROGRAM_SUBSET_CARRIED,
    /* PASS + k: the op becomes a copy of its argument k, which has its result's shape and dtype */
    LB_PROGRAM_SUBSET_PASS
} lb_program_subset_fate;

/* needed[v] = 1 for every value that kept ops read or give, and what stands in for them (n_values bytes, cleared here):
 * one op may write many storages (`_foreach_mul_`), of which few are read. `wanted`: a storage that a later step reads,
 * -1: none. */
lb_status lb_program_subset_needs(const lb_program *program, const uint8_t *fates, int64_t wanted, uint8_t *needed,
                                  lb_err *err);

/* `fates`: lb_program_subset_fate per op. `logical`, `blob`: digests per value of what the results are known to be;
 * none where both words are 0. Values of SOURCE ops are marked as kept. Views are kept where a kept op reads them. The
 * result is valid. */
lb_status lb_program_subset(const lb_program *program, const uint8_t *fates, const uint8_t *needed,
                            const lb_digest *logical, const lb_digest *blob, lb_program **subset, lb_err *err);

#endif
