/* What a diff knows of a storage while it walks a program: the worst verdict written into it, and whether exact values
 * already disagree there. */
#ifndef LB_BISECT_TAINT_H
#define LB_BISECT_TAINT_H

#include <lastbit/replay.h>

typedef struct lb_taint {
    int64_t storage;
    lb_verdict verdict;
    bool apart, used;
    uint32_t
        suspect; /* an op inside a layer that the sides compute in other ops: its outcome is not judged yet */
} lb_taint;

typedef struct lb_taints {
    lb_taint *slots; /* open addressing, at most half full */
    uint32_t mask, count;
} lb_taints;

lb_status lb_taints_init(lb_taints *taints, lb_err *err);
void lb_taints_release(lb_taints *taints);
/* Valid until the next call. When memory ends the table stays as it is, more crowded. */
lb_taint *lb_taint_of(lb_taints *taints, int64_t storage);

#endif
