/* LoRA: the modules of an adapter, what its configuration says of each, and the base's weight that each adds to. */
#ifndef LB_BISECT_AUDIT_ADAPTER_H
#define LB_BISECT_AUDIT_ADAPTER_H

#include "whole_tensor.h"

typedef struct lb_adapter_module {
    char *module; /* "model.layers.0.self_attn.q_proj" */
    const lb_named *a, *b;
    const lb_named *lengths;   /* DoRA: of each row of the weight (lora_magnitude_vector); NULL: none */
    int64_t rank, in, out;     /* as A and B say, whole; `in` of a convolution: its channels times its kernel */
    double alpha, stated_rank; /* 0: no configuration says */
    double scaling;
    const lb_named *named;  /* the base's weight of that name; NULL: none */
    const lb_named *weight; /* the same; NULL: of another shape */
    bool transposed;        /* the weight is [in, out] */
} lb_adapter_module;

typedef struct lb_adapter {
    const lb_inventory *v, *base; /* base may be NULL; it may be v itself */
    lb_adapter_module *modules;
    uint32_t n;
    bool configured, rslora, dora;
} lb_adapter;

bool lb_is_adapter(const lb_inventory *v);
/* Reads adapter_config.json beside the tensors, pairs A with B, finds the weights, and tells what does not fit. */
lb_status lb_adapter_init(lb_audit_gathering *g, const lb_inventory *v, const lb_inventory *base, lb_adapter *adapter,
                          lb_err *err);
void lb_adapter_release(lb_adapter *adapter);
/* A [rank, in] and B [out, rank], dense f32, malloc'ed. */
lb_status lb_adapter_numbers(const lb_adapter *adapter, const lb_adapter_module *m, float **a, float **b, lb_err *err);
/* DoRA's lengths [out], malloc'ed; NULL where the module has none. */
lb_status lb_adapter_lengths(const lb_adapter *adapter, const lb_adapter_module *m, float **lengths, lb_err *err);
/* The base's weight as [out, in]. */
lb_status lb_adapter_weight(const lb_adapter *adapter, const lb_adapter_module *m, float **w, lb_err *err);
/* The tensor of `v` that is `module`'s weight, whatever prefix a wrapper put before. */
const lb_named *lb_weight_of(const lb_inventory *v, const char *module);

/* ---- online against merged, and a merged checkpoint (adapter_merge.c) ---- */
lb_status lb_audit_precisions(lb_audit_gathering *g, const lb_adapter *adapter, lb_err *err);
lb_status lb_audit_merged(lb_audit_gathering *g, const lb_adapter *adapter, const lb_inventory *merged, lb_err *err);

#endif
