/* What a step trains: its losses, its parameters, the gradient of each as backward left it and as the optimizer read
 * it. */
#ifndef LB_BISECT_TRAINED_H
#define LB_BISECT_TRAINED_H

#include "moved/moved_run.h"

typedef struct lb_trained_row {
    const char *name;
    uint32_t held;     /* value with which the optimizer's step begins, of what it updates */
    uint32_t copy;     /* where that is a master: value with which the step begins, of its parameter; LB_NONE */
    uint32_t source;   /* `copy` or `held`: what forward reads */
    uint32_t gradient; /* the last value that backward gave there; LB_NONE */
    uint32_t read;     /* the last value there when its optimizer stepped; LB_NONE */
    uint32_t start;    /* what lay in the gradient when the step began; LB_NONE: nothing, or zeros */
    uint32_t reader;   /* the first op of forward that reads it before its gradient is there; LB_NONE */
    int64_t padding;   /* the row of an embedding whose gradient is left out; -1 */
    bool has_gradient; /* its optimizer saw one */
    uint64_t roots;    /* losses that the gradient follows from, a bit each */
    uint64_t begins;   /* losses that the parameter leads to */
} lb_trained_row;

typedef struct lb_trained {
    lb_trained_row *rows;
    uint32_t n;
    uint32_t unseen; /* parameters of optimizers that the step does not begin with */
    uint64_t *from;  /* per value: losses whose seeds it follows from */
    uint8_t *moved;  /* per value: it follows from a trained parameter */
    uint8_t *early;  /* per value: it follows from a backward whose forward ran in an earlier step */
    bool nested;     /* a loss follows from the gradient of another one */
    bool updated;    /* a loss stands behind an update of a parameter */
} lb_trained;

/* Fills the run's roots, too. */
lb_status lb_trained_list(lb_moved_run *run, lb_trained *trained, lb_err *err);
void lb_trained_release(lb_trained *trained);
/* The same of any value, windows looked through. */
uint64_t lb_trained_from(const lb_moved_run *run, const lb_trained *trained, uint32_t value);
bool lb_trained_moves(const lb_moved_run *run, const lb_trained *trained, uint32_t value);

#endif
