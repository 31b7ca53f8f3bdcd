/* Launch rules: how a GPU's kernels cut a sum for the shape that they are called with.
 *
 * A rule looks at the batch and at the multiprocessors that there are to fill, as a library does before it launches,
 * and says which order it takes: the text of a schedule, or of a composite's kernel. That is what makes one row's bits
 * depend on the other rows. A rule that never looks at the batch, or takes parts of a fixed size, is batch invariant
 * ("Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025).
 *
 * Where a library's kernel adds up in an order of its own inside the parts, the text says the parts: changes of bits
 * are where the parts change, not the library's very bits.
 */
#ifndef LB_BISECT_LAUNCH_RULE_H
#define LB_BISECT_LAUNCH_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LB_LAUNCH_TEXT = 64 };

/* What is launched. */
typedef enum lb_launch_of {
    LB_LAUNCH_PRODUCT,   /* (rows, terms) times (terms, columns) */
    LB_LAUNCH_SUM,       /* of every row of so many terms */
    LB_LAUNCH_NORM,      /* RMSNorm of rows */
    LB_LAUNCH_SOFTMAX,   /* of rows */
    LB_LAUNCH_ATTENTION, /* rows are sequences: of each `queries` against `keys`, by heads */
    LB_LAUNCH_KINDS
} lb_launch_of;

typedef struct lb_launch_shape {
    int64_t rows, columns, terms;
    int64_t heads, key_heads, queries, keys, size; /* attention; size: of a head */
    int64_t element_bytes, multiprocessors;
} lb_launch_shape;

typedef struct lb_launch_rule {
    const char *name;
    lb_launch_of of;
    bool looks_at_multiprocessors;
    /* False: such a kernel is not launched for this. */
    bool (*choose)(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT]);
} lb_launch_rule;

/* All rules; ended by one without a name. */
const lb_launch_rule *lb_launch_rules(void);

#endif
