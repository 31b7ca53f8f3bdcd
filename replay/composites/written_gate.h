/* Gated activations written out: silu and gelu by their formulas, times another factor, multiplied in any order.
 *
 *      a sigmoid(a) u      a / (1 + exp(-a)) u      a/2 (1 + erf(a / sqrt 2)) u      a/2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a³))) u
 */
#ifndef LB_REPLAY_WRITTEN_GATE_H
#define LB_REPLAY_WRITTEN_GATE_H

#include "recogniser.h"

enum { LB_WRITTEN_GATE_OPS = 24 };

typedef struct lb_written_gate {
    lb_gate_act act;
    lb_reading gate, up;
    uint32_t ops[LB_WRITTEN_GATE_OPS], n_ops; /* the product that was asked about among them */
} lb_written_gate;

/* Whether what `mul` gives is such a product, no more and no less. */
bool lb_written_gate_read(const lb_recogniser *t, uint32_t mul, lb_written_gate *written);

#endif
