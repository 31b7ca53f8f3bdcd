/* What bytes are kept: the level, the user's patterns, and the budget. Pure policy: it holds no bytes. */
#ifndef LB_KEEP_H
#define LB_KEEP_H

#include <lastbit/capture.h>

typedef struct lb_patterns lb_patterns;

typedef struct lb_keep {
    lb_level asked;   /* may be AUTO */
    lb_level level;   /* what the open step keeps now */
    lb_level reached; /* the lowest level that held through the open step */
    lb_patterns *patterns;
    uint64_t budget_bytes; /* 0: none */
    uint64_t step_bytes;   /* kept in the open step */
    uint64_t sources_bytes, layers_bytes, ops_bytes; /* of the last step by purpose, to estimate the next */
    uint64_t skipped_values, skipped_bytes; /* wanted, and left out for the budget */
} lb_keep;

typedef enum lb_purpose { LB_FOR_SOURCE, LB_FOR_LAYER, LB_FOR_RESULT } lb_purpose;

/* LB_ERR_INVALID with the position when a pattern does not compile. */
lb_status lb_keep_init(lb_keep *keep, const lb_recorder_options *options, lb_err *err);
void lb_keep_release(lb_keep *keep);
/* `total_bytes`: of the archive so far. Chooses the level of the next step. */
void lb_keep_step(lb_keep *keep, uint64_t total_bytes);
bool lb_keep_wants(const lb_keep *keep, lb_purpose purpose, const char *layer, const char *op);
/* `bytes` more were kept; under AUTO or a budget this may lower the level. */
void lb_keep_spent(lb_keep *keep, lb_purpose purpose, uint64_t bytes, uint64_t total_bytes);
/* The budget refused bytes that were wanted. */
void lb_keep_refused(lb_keep *keep, uint64_t bytes);

#endif
