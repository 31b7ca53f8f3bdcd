/* Verdicts: what two values, or a value and its replay, are to each other. All reports use these words in this order.
 *
 * Simplest use:
 *
 *     const lb_verdict worst = lb_verdict_worse(LB_VERDICT_ROUNDING, LB_VERDICT_NOISE);
 *     printf("%s\n", lb_verdict_name(worst)); // rounding
 *
 * From best to worst: identical, reordered, opaque, noise, rounding, swapped, missing, diverged. The table has it as
 * a number, `severity`. The enumeration has another order, in which counts are printed: compare verdicts by these
 * functions, never by `<`. */
#ifndef LASTBIT_VERDICT_H
#define LASTBIT_VERDICT_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, word, severity) */
#define LB_VERDICTS(X)                                                                                                 \
    X(IDENTICAL, "identical", 0) /* the same bits */                                                                   \
    X(REORDERED, "reordered", 1) /* the same bits when sums are taken in an order that has a name */                   \
    X(ROUNDING, "rounding", 4)   /* inside the op's error bound, or both sides agree in exact arithmetic */            \
    X(NOISE, "noise", 3)         /* no more than two runs of the same side differ by */                                \
    X(DIVERGED, "diverged", 7)   /* the two sides compute different things */                                          \
    X(MISSING, "missing", 6)     /* one side was not captured */                                                       \
    X(OPAQUE, "opaque", 2)       /* replay does not know the op: the recorded result stood in */                       \
    X(SWAPPED, "swapped", 5)     /* a swap changed the bits here or upstream: shown, never judged (lastbit/effect.h) */

#define LB_VERDICT_ENUM(name, word, severity) LB_VERDICT_##name,
typedef enum lb_verdict { LB_VERDICTS(LB_VERDICT_ENUM) } lb_verdict;
#undef LB_VERDICT_ENUM
enum { LB_VERDICT_COUNT = LB_VERDICT_SWAPPED + 1 };

/* "identical", …; "unknown" for a number that is no verdict. */
LB_API const char *lb_verdict_name(lb_verdict verdict);
/* 0 (identical) to LB_VERDICT_COUNT - 1 (diverged); no two verdicts share one. */
LB_API int lb_verdict_severity(lb_verdict verdict);
/* The more severe of the two. */
LB_API lb_verdict lb_verdict_worse(lb_verdict first, lb_verdict second);
/* The values were compared and nothing is wrong: identical, reordered, noise or rounding. */
LB_API bool lb_verdict_is_accounted_for(lb_verdict verdict);

#ifdef __cplusplus
}
#endif

#endif
