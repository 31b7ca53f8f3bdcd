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
    uint64_t budget_bytes;                           /* 0: none */
    uint64_t total_bytes;                            /* kept so far */
    uint64_t sources_bytes, layers_bytes, ops_bytes; /* of the last step by purpose, to estimate the next */
    uint64_t skipped_values, skipped_bytes;          /* wanted, and left out for the budget */
    /* Of level AUTO: */
    uint64_t step_limit, total_limit;
    uint64_t room; /* that the open step has */
    /* bytes of the open step that a higher level would have kept; equal bytes count each time */
    uint64_t layers_left, ops_left;
    uint32_t steps; /* begun so far */
    bool lean;      /* the total is used up: what the open step takes over from the last one is not kept */
} lb_keep;

typedef enum lb_keep_purpose { LB_FOR_SOURCE, LB_FOR_LAYER, LB_FOR_RESULT } lb_keep_purpose;

/* LB_ERR_INVALID with the position when a pattern does not compile. */
lb_status lb_keep_init(lb_keep *keep, const lb_recorder_options *options, lb_err *err);
void lb_keep_release(lb_keep *keep);
/* The lowest level that keeps bytes for that purpose. */
lb_level lb_keep_level_of(lb_keep_purpose purpose);
/* Chooses the level of the next step. `total_bytes`: of the archive so far, as far as a budget must know it.
 * `carried_bytes`: that the next step takes over from the last one, and that are not in the archive yet. */
void lb_keep_step(lb_keep *keep, uint64_t total_bytes, uint64_t carried_bytes);
bool lb_keep_wants(const lb_keep *keep, lb_keep_purpose purpose, const char *layer, const char *op);
/* The same for a result. A result that a pattern asks for is kept at any level, as a source is. */
bool lb_keep_wants_result(const lb_keep *keep, const char *layer, const char *op, lb_keep_purpose *purpose);
/* Limits the open step to that level from now on, whatever is called later. */
void lb_keep_limit(lb_keep *keep, lb_level level);
/* `bytes` more were kept for good. */
void lb_keep_spent(lb_keep *keep, lb_keep_purpose purpose, uint64_t bytes);
/* Under AUTO: what the open step keeps above its sources, so far. True when it no longer fits: the level is lower now,
 * and what is above it must go. */
bool lb_keep_outgrown(lb_keep *keep, uint64_t layers_bytes, uint64_t ops_bytes);
/* Counts bytes that only a higher level would have kept. */
void lb_keep_left(lb_keep *keep, lb_keep_purpose purpose, uint64_t bytes);
/* Bytes that were counted as left out of level `ops` belong to a layer: counts them there. */
void lb_keep_of_layers(lb_keep *keep, uint64_t bytes);
/* Under AUTO, at the end of a step: what its layers and its results took, kept or not, is what the next one is expected
 * to take. */
void lb_keep_measured(lb_keep *keep, uint64_t layers_bytes, uint64_t ops_bytes);
/* Counts bytes that were wanted and that the budget had no room for. */
void lb_keep_refused(lb_keep *keep, uint64_t bytes);

#endif
