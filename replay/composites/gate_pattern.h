/* Gated activations written out: silu and gelu by their formulas, times another factor, multiplied in any order.
 *
 *      silu    a sigmoid(a) u                  a / (1 + exp(-a)) u
 *      gelu    a/2 (1 + erf(a / sqrt 2)) u     a/2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a³))) u
 */
#ifndef LB_REPLAY_GATE_PATTERN_H
#define LB_REPLAY_GATE_PATTERN_H

#include "composites/recogniser.h"

enum { LB_GATE_PATTERN_OPS = 24 };

typedef struct lb_gate_pattern {
    lb_gate_act act;
    lb_reading gate, up;
    uint32_t ops[LB_GATE_PATTERN_OPS], n_ops; /* the product that was asked about among them */
} lb_gate_pattern;

/* Whether what `mul` gives is such a product, no more and no less. */
bool lb_gate_pattern_read(const lb_recogniser *recogniser, uint32_t mul, lb_gate_pattern *written);

#endif
