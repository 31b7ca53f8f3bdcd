/* Muon in a recorded step, torch's or hand-written: found by what it computes, taken out or widened.
 *
 * Between the gradient and a parameter's write the backward slice reaches {gradient, parameter, state, scalars}. It is
 * Muon when it chains Gram products: X Xᵀ (a product of a matrix with itself transposed, or of parts of it: tiles of
 * what is summed over, blocks of rows; through casts and copies), a polynomial of it times X, and that again; or when
 * one Gram matrix is iterated by itself, which takes six products in a row. Names of ops, coefficients and the number
 * of iterations don't matter; a class name with "muon" confirms. Products whose result is remembered in state (the
 * statistics of Shampoo and SOAP) or that don't come from the gradient (a penalty on weights) are none.
 *
 *      gradient ──▶ lerp(momentum) ──▶ cast ──▶ / norm ──▶ [X Xᵀ, polynomial] × n ──▶ cast ──▶ parameter
 *                                     └────────── internal: what LB_SWAP_MUON "f32" widens ──────────┘
 */
#ifndef LB_REPLAY_MUON_H
#define LB_REPLAY_MUON_H

#include "program/passes.h"
#include "program/slice.h"

typedef struct lb_muon_slice {
    uint32_t name;                   /* string: parameter name, or LB_NONE */
    uint32_t scope;                  /* of the module that owns the parameter, 0 when unknown */
    int64_t storage;                 /* of the parameter */
    int64_t gradient;                /* storage */
    uint32_t gradient_value, before; /* values: the gradient as first read, the parameter before its first write */
    uint32_t write;                  /* op: the last write of the parameter */
    uint32_t first_gram, grams;      /* op; count of Gram products */
    uint32_t group;                  /* row of groups, or LB_NONE */
    bool confirmed;                  /* the optimizer's class name says Muon */
    uint32_t *ops;                   /* ascending */
    uint32_t n_ops;
} lb_muon_slice;

typedef struct lb_muon {
    lb_muon_slice *slices; /* in order of their writes */
    uint32_t n;
} lb_muon;

/* No Muon: n is 0, no failure. */
lb_status lb_muon_find(const lb_program *program, const lb_slice_flow *flow, lb_muon *muon, lb_err *err);
void lb_muon_release(lb_muon *muon);

/* Per op: 1 of a chosen slice, 2 of another one, 3 of both; malloc'ed, NULL when out of memory. */
uint8_t *lb_muon_mark(const lb_program *program, const lb_muon *muon, const bool *chosen, lb_err *err);

/* Learning rate of an AdamW (or Adam) group of the same step, and which; NAN and LB_NONE when there is none. */
double lb_muon_sibling_rate(const lb_program *program, uint32_t *group);

/* The passes; `chosen[i]` says whether slice i is changed. Slices that share ops (batched iterations) go together.
 * "f32": values that live only inside the slice and are narrower than f32 become f32, casts among them the identity;
 * what leaves the slice is rounded by the op that writes it. "adamw": the slice's ops go, AdamW with its own state
 * (zeros at the first step of the run) takes their place. */
lb_status lb_muon_pass_wide(const lb_program *in, const lb_slice_flow *flow, const lb_muon *muon, const bool *chosen,
                            lb_passed *out, lb_err *err);
lb_status lb_muon_pass_adamw(const lb_program *in, const lb_slice_flow *flow, const lb_muon *muon, const bool *chosen,
                             lb_passed *out, lb_err *err);

#endif
