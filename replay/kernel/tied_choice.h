/* Choices among equal values: which of them a sort, a top-k or a maximum takes.
 *
 * Of equal elements (and of NaN among NaN) any may stand in the result, and every library has its own rule: torch's CPU
 * kernels take what libstdc++ leaves, its CUDA kernels what a radix or bitonic sort does (Sort.cu, SortStable.cu,
 * TensorTopK.cu). All of these are right. So a row with LB_ROW_CHOOSES computes its own choice and then follows the
 * recorded positions (lb_call.branch) row by row wherever they are a right choice for its own numbers: in range,
 * distinct, and with the values that the row computed. A recorded position of another value is not followed, and
 * differs. */
#ifndef LB_REPLAY_TIED_CHOICE_H
#define LB_REPLAY_TIED_CHOICE_H

#include "kernel/frame.h"

/* What a kernel chose, dense. Row r has its elements at x + r / inner * n * inner + r % inner, each `inner` apart; its
 * k results at y + r * k and at + r * k. */
typedef struct lb_tied_choice {
    lb_frame *frame;
    bool integer; /* x is int64_t, else of the frame's type */
    int64_t rows, n, inner, k;
    const void *x;
    int64_t *at;
    bool prefix;    /* result i is chosen from the first i + 1 elements, and may be chosen again: cummax */
    bool unordered; /* the k results stand in no order: topk with sorted=False */
} lb_tied_choice;

/* Takes the recorded positions of result `result`, whose dimension `dim` stands for the row (-1: it is dense as it is),
 * where they are right. `at` holds them afterwards; the caller reads values there. */
void lb_tied_choice_follow(const lb_tied_choice *choice, uint32_t result, int dim);

#endif
