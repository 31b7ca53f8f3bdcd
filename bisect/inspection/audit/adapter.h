/* LoRA: the modules of an adapter, what its configuration says of each, and the base's weight that each adds to. */
#ifndef LB_BISECT_AUDIT_ADAPTER_H
#define LB_BISECT_AUDIT_ADAPTER_H

#include "audit/whole_tensor.h"

typedef struct lb_adapter_module {
    char *module;  /* "model.layers.0.self_attn.q_proj" */
    char *in_base; /* the same as the base calls it, by the user's rules */
    const lb_inventory_name *a, *b;
    const lb_inventory_name *lengths; /* DoRA: of each row of the weight (lora_magnitude_vector); NULL: none */
    int64_t rank, in, out;            /* as A and B say, whole; `in` of a convolution: its channels times its kernel */
    int64_t groups;                   /* of a convolution whose B is cut by groups; else 1 */
    int64_t experts;           /* of a parameter of stacked experts: how many; 1: of one matrix; 0: of a module */
    double alpha, stated_rank; /* 0: no configuration says */
    double scaling;
    const lb_inventory_name *named;  /* the base's weight of that name; NULL: none */
    const lb_inventory_name *weight; /* what A and B add to; NULL: none, or of another shape */
    const lb_inventory *held;        /* where `weight` is: the base, or the adapter that brings its own */
    bool transposed;                 /* the weight is [in, out] */
    bool unmergeable;                /* no weight of the base's shape can hold what A and B add */
} lb_adapter_module;

typedef struct lb_adapter {
    const lb_inventory *inventory, *base; /* base may be NULL; it may be v itself */
    lb_adapter_module *modules;
    uint32_t n;
    bool *touched; /* by row of base->names: the adapter changes it */
    bool configured, rslora, dora, fan_in_fan_out;
    bool changes_base; /* making the adapter changed the base: A and B need not add to the weights on disk */
} lb_adapter;

bool lb_adapter_is(const lb_inventory *inventory);
/* Reads adapter_config.json beside the tensors, pairs A with B, finds the weights, and tells what does not fit. */
lb_status lb_adapter_init(lb_audit_gathering *gathering, const lb_inventory *inventory, const lb_inventory *base,
                          lb_adapter *adapter, lb_err *err);
void lb_adapter_release(lb_adapter *adapter);
/* The tensor of that name, whatever prefix a wrapper put before it on either side; NULL: none. */
const lb_inventory_name *lb_adapter_tensor_named(const lb_inventory *inventory, const char *name);
/* The tensor of `inventory` that is `module`'s weight, whatever prefix a wrapper put before. */
const lb_inventory_name *lb_adapter_weight_named(const lb_inventory *inventory, const char *module);
/* Along which dimension ranks' files cut a half; which of the halves differs between ranks tells. -1: it is whole. */
int lb_adapter_cut(const lb_inventory *inventory, const lb_inventory_name *half, bool is_b);
/* What stands beside a half under another word: "lora_magnitude_vector" of DoRA, "lora_E" of AdaLoRA; NULL: nothing. */
const lb_inventory_name *lb_adapter_beside(const lb_inventory *inventory, const char *half, const char *word);

/* ---- numbers, dense f32, malloc'ed (adapter_numbers.c) ---- */
/* One tensor, whatever it was cut into along `dim`. */
lb_status lb_adapter_tensor(const lb_inventory *inventory, const lb_inventory_name *name, int dim, float **out,
                            lb_err *err);
/* A [rank, in] and B [out, rank]; what scales A's rows and the groups of B are in them. */
lb_status lb_adapter_numbers(const lb_adapter *adapter, const lb_adapter_module *module, float **a, float **b,
                             lb_err *err);
/* DoRA's lengths [out]; NULL where the module has none. */
lb_status lb_adapter_lengths(const lb_adapter *adapter, const lb_adapter_module *module, float **lengths, lb_err *err);
/* The weight that A and B add to, as [out, in]. */
lb_status lb_adapter_weight(const lb_adapter_module *module, float **w, lb_err *err);

/* Of one product: x [rows, in], W [out, in], A [rank, in], B [out, rank], s; dense f32, row-major. */
typedef struct lb_adapter_operands {
    size_t rows, in, out, rank;
    double s;
    const float *x, *w, *a, *b, *lengths; /* lengths: of DoRA, or NULL */
} lb_adapter_operands;
void lb_adapter_round(float *x, size_t n, lb_dtype dtype);
/* c [out, in] = b [out, rank] a [rank, in]. */
lb_status lb_adapter_outer(const lb_adapter_operands *operands, const float *a, const float *b, float *c);

/* ---- what an adapter carries beside A and B (lora_saved.c) ---- */
lb_status lb_adapter_find_touched(lb_adapter *adapter, lb_err *err);
lb_status lb_lora_saved_audit(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_inventory *merged,
                              lb_err *err);

/* ---- online against merged (lora_online.c), and a merged checkpoint (lora_merge.c) ---- */
lb_status lb_lora_online_audit(lb_audit_gathering *gathering, const lb_adapter *adapter, lb_err *err);
lb_status lb_lora_merge_audit(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_inventory *merged,
                              lb_err *err);

#endif
