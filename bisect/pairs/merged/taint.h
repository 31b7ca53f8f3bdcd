/* The taint of a storage: what a diff knows of the storage during its walk. It says whether the contents depend on a
 * difference, where that difference comes from, and the worst verdict on it.
 *
 * There are two verdicts, as they end differently. `verdict` is the worst that ops of this program made: where the
 * exact shadows agree again, it becomes rounding at most. `carried` is the worst among differing sources, draws and
 * decisions upstream. Both shadows take these from one side, so that their agreement says nothing about them: only
 * equal bits end it. */
#ifndef LB_BISECT_TAINT_H
#define LB_BISECT_TAINT_H

#include "base/hash.h"
#include <lastbit/replay.h>

typedef struct lb_taint {
    int64_t storage;
    lb_verdict verdict, carried;
    bool differs;     /* some upstream bits do */
    uint32_t lone[2]; /* per side: the first op that only it runs and that no aligned pair has judged yet */
    /* where ranks are judged one by one (diff_many.h): the number, from 1 on, of the last collective of this rank that
     * brought in a difference of other ranks; 0: none did */
    uint32_t met;
} lb_taint;

/* Nothing differs. */
#define LB_TAINT_CLEAN(id) ((lb_taint){(id), LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, false, {LB_NONE, LB_NONE}, 0})

/* Zero-initialise. */
typedef struct lb_taints {
    lb_taint *rows;
    lb_hash by_storage;
    bool failed;    /* out of memory: what is known of some storages got lost */
    lb_taint spare; /* what those get */
} lb_taints;

void lb_taints_release(lb_taints *taints);
/* Valid until the next call. */
lb_taint *lb_taint_of(lb_taints *taints, int64_t storage);

#endif
