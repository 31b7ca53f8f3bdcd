/* What a diff knows of a storage while it walks a program.
 *
 * Two verdicts, for they end differently. `verdict` is the worst of what ops of this program made: where exact shadows
 * meet again, nothing worse than rounding is left of it. `carried` is the worst among the differing sources upstream:
 * both shadows start from one side's sources, so that their agreement says nothing about it, and nothing ends it but
 * equal bits.
 */
#ifndef LB_BISECT_TAINT_H
#define LB_BISECT_TAINT_H

#include <lastbit/replay.h>

typedef struct lb_taint {
    int64_t storage;
    lb_verdict verdict, carried;
    bool apart;   /* exact shadows disagree here */
    bool flipped; /* follows from a decision that rounding changed: shadows may disagree from here on */
    bool used;
    uint32_t
        suspect; /* an op inside a layer that the sides compute in other ops: its outcome is not judged yet */
} lb_taint;

/* Nothing differs. */
#define LB_TAINT_CLEAN(id)                                                                                     \
    ((lb_taint){(id), LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, false, false, true, LB_NONE})

typedef struct lb_taints {
    lb_taint *slots; /* open addressing, at most half full */
    uint32_t mask, count;
} lb_taints;

lb_status lb_taints_init(lb_taints *taints, lb_err *err);
void lb_taints_release(lb_taints *taints);
/* Valid until the next call. When memory ends the table stays as it is, more crowded. */
lb_taint *lb_taint_of(lb_taints *taints, int64_t storage);

#endif
