/* Composites: ops of a recorded program that together are one thing, and the kernels that can take their place.
 *
 * Simplest use:
 *
 *     lb_composites found;
 *     LB_TRY(lb_composites_find(program, &found, err));
 *     for (uint32_t i = 0; i < found.n; i++) puts(lb_composite_kind_name(found.rows[i].kind));
 *     lb_composites_release(&found);
 *
 *      pow ─ mean ─ add ─ rsqrt ─ mul ─ to(bf16) ─ mul     is one RMSNorm, whatever it is called and wherever it is written:
 *       x ─────────────────────────┘               └ weight   x, weight in; y out; the rest is its own business
 *
 * They are found by how data flows, not by name; a single op that is the whole thing (`aten::_fused_rms_norm`,
 * `aten::_scaled_dot_product_flash_attention_for_cpu`, `_C::rms_norm`, …) is a composite of one op. Composites of
 * different kinds may share ops: a residual addition with the norm behind it is also just a norm.
 *
 * A kernel is a name with parameters and options, as text: "butterfly:128x8,round:twice". It says the order of
 * additions, the type of the accumulator and where is rounded. "eager" is what the recorded program does, op by op.
 * Kernels compute in f32, or in f64 without any rounding as soon as an input or output is f64: that is their exact
 * shadow.
 */
#ifndef LASTBIT_COMPOSITE_H
#define LASTBIT_COMPOSITE_H

#include <lastbit/program.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, "name", what it is) */
#define LB_COMPOSITE_KINDS(X)                                                                                          \
    X(RMS_NORM, "rms_norm", "y = x rsqrt(mean(x^2) + eps) (offset + weight)")                                          \
    X(ADD_RMS_NORM, "add_rms_norm", "h = x + residual, and the RMSNorm of h")                                          \
    X(ATTENTION, "attention", "softmax(scale q k' + mask) v, by heads")                                                \
    X(SOFTMAX, "softmax", "exp(x - max) / sum, along the last dimension")                                              \
    X(FINALISE, "finalise", "outputs of experts times their weights, added up per token")                              \
    X(LAYER_NORM, "layer_norm", "y = (x - mean) / sqrt(variance + eps) weight + bias")                                 \
    X(SWIGLU, "swiglu", "y = act(gate) up, with silu or gelu for act")                                                 \
    X(GATE_UP, "gate_up", "y = act(x G) (x U): both products of a gated layer and what follows them")                  \
    X(ROPE, "rope", "rotary embedding: y = x cos + rotated(x) sin")                                                    \
    X(ROUTER, "router", "scores of experts, the best of them, and their weights")                                      \
    X(SELECTIVE_SCAN, "selective_scan", "h = exp(e) h + dt B u and y = C h, along time, by heads")                     \
    X(DISPATCH, "dispatch", "tokens copied once per choice of an expert, in the order of the experts")                 \
    X(CROSS_ENTROPY, "cross_entropy", "mean or sum over rows of log(sum e^x) - x[target]")                             \
    X(ALLREDUCE_NORM, "allreduce_norm", "x = sum over ranks, h = x + residual, and the RMSNorm of h")                  \
    X(NEWTON_SCHULZ, "newton_schulz", "steps of X = a X + (b A + c A A) X with A = X X', in optimizers")

typedef enum lb_composite_kind {
#define LB_COMPOSITE_ENUM(NAME, name, about) LB_COMPOSITE_##NAME,
    LB_COMPOSITE_KINDS(LB_COMPOSITE_ENUM)
#undef LB_COMPOSITE_ENUM
        LB_COMPOSITE_KIND_COUNT
} lb_composite_kind;
LB_API const char *lb_composite_kind_name(lb_composite_kind kind); /* "rms_norm" */
LB_API const char *lb_composite_kind_about(lb_composite_kind kind);
LB_API bool lb_composite_kind_parse(const char *name, lb_composite_kind *kind);

/* Rows of inputs[], outputs[] and numbers[], per kind. */
enum {
    LB_NORM_X = 0,
    LB_NORM_WEIGHT = 1,   /* may be absent; one number per element of a row */
    LB_NORM_RESIDUAL = 2, /* add_rms_norm, allreduce_norm: the other term */
    /* allreduce_norm: what this rank gave; x is what the collective made of all. A program knows its own rank: who has
     * the others' contributions puts all of them into `list`, in group order, and x is not looked at */
    LB_NORM_OWN = 3,
    LB_NORM_Y = 0,
    LB_NORM_SUM = 1, /* add_rms_norm: h */
    LB_NORM_EPS = 0,
    LB_NORM_OFFSET = 1, /* added to the weight: 0, or 1 (Gemma) */
    LB_NORM_PLACE = 2,  /* lb_eps_place */

    LB_ATTENTION_Q = 0, /* (heads of all batches, queries, size), leading dimensions in any number */
    /* (…, keys, size), or (…, size, keys): LB_ATTENTION_TURNED; with fewer heads each serves a group */
    LB_ATTENTION_K = 1,
    LB_ATTENTION_V = 2,    /* (…, keys, values) */
    LB_ATTENTION_MASK = 3, /* added, or bool: false hides; broadcast to (batches, heads, queries, keys) */
    /* a score per head that takes part in the softmax and has no value; broadcast to (batches, heads, queries, 1) */
    LB_ATTENTION_SINKS = 4,
    LB_ATTENTION_Y = 0,   /* (…, queries, values) */
    LB_ATTENTION_LSE = 1, /* log of the sum of exponentials per query, f32 */
    LB_ATTENTION_SCALE = 0,
    LB_ATTENTION_HEADS = 1, /* of one batch */
    LB_ATTENTION_CAP = 2,   /* scores become cap tanh(score / cap) before the mask; 0: not */

    LB_SOFTMAX_X = 0,
    LB_SOFTMAX_Y = 0,

    LB_FINALISE_X = 0,       /* (rows, hidden); absent where `list` has them per expert */
    LB_FINALISE_WEIGHTS = 1, /* one per row, or per token and slot: LB_FINALISE_BY_SLOT */
    LB_FINALISE_ROWS = 2,    /* (tokens, slots): whose row is where; absent: row token * slots + slot */
    LB_FINALISE_IDS = 3,     /* experts (tokens, slots); may be absent */
    LB_FINALISE_Y = 0,       /* (tokens, hidden) */
    LB_FINALISE_SLOTS = 0,   /* per token */

    LB_LAYER_X = 0,
    LB_LAYER_WEIGHT = 1, /* may be absent */
    LB_LAYER_BIAS = 2,   /* may be absent */
    LB_LAYER_Y = 0,
    LB_LAYER_MEAN = 1,
    LB_LAYER_RSTD = 2,
    LB_LAYER_EPS = 0,
    LB_LAYER_PLACE = 1, /* lb_eps_place */
    /* the variance is that of so many elements less than there are: 0, or 1 (torch's std by itself) */
    LB_LAYER_LESS = 2,

    /* swiglu: gate, or gate and up side by side in each row where `up` is absent; gate_up: x (rows, k) */
    LB_GATE_X = 0,
    LB_GATE_U = 1, /* swiglu: up; gate_up: G (k, n) */
    LB_GATE_W = 2, /* gate_up: U (k, n) */
    LB_GATE_Y = 0,
    LB_GATE_ACT = 0, /* lb_gate_act */

    LB_ROPE_X = 0,   /* (…, size): the first half of a row is rotated against the second */
    LB_ROPE_COS = 1, /* broadcast to x */
    LB_ROPE_SIN = 2,
    LB_ROPE_Y = 0,

    LB_ROUTER_LOGITS = 0,  /* (tokens, experts) */
    LB_ROUTER_WEIGHTS = 0, /* (tokens, k) */
    LB_ROUTER_IDS = 1,     /* (tokens, k), i64 */
    LB_ROUTER_K = 0,

    /* e, logarithm of the decay: (batch, heads, time), or (batch, heads, time, states); where there is A, e / A */
    LB_SCAN_EXPONENT = 0,
    LB_SCAN_U = 1, /* (batch, heads, time, size); LB_SCAN_DRIVEN: dt B u, (batch, heads, time, states) */
    LB_SCAN_B = 2, /* (batch, groups, time, states), groups of heads in any number; absent: LB_SCAN_DRIVEN */
    LB_SCAN_C = 3,
    LB_SCAN_DT = 4,    /* (batch, heads, time); absent: u has it */
    LB_SCAN_A = 5,     /* (heads, states): e is dt A; may be absent */
    LB_SCAN_SKIP = 6,  /* (heads), times u added to y; may be absent */
    LB_SCAN_Y = 0,     /* as u, size 1 where it is driven; may be longer, then it ends in 0 */
    LB_SCAN_CHUNK = 0, /* the program's own; 0: none */

    LB_DISPATCH_X = 0,      /* (tokens, hidden) */
    LB_DISPATCH_IDS = 1,    /* (tokens, slots), i64 */
    LB_DISPATCH_Y = 0,      /* (tokens * slots, hidden) */
    LB_DISPATCH_SORTED = 1, /* ids in that order */
    LB_DISPATCH_ORDER = 2,  /* token * slots + slot of every row, i64 */
    LB_DISPATCH_TOKENS = 3, /* order / slots */
    LB_DISPATCH_SLOTS = 0,

    LB_LOSS_LOGITS = 0, /* (rows, classes) */
    LB_LOSS_TARGET = 1, /* (rows), integers */
    LB_LOSS_Y = 0,
    LB_LOSS_IGNORED = 0, /* a target that does not count */

    LB_NEWTON_X = 0, /* (m, n) */
    LB_NEWTON_Y = 0,
    LB_NEWTON_STEPS = 0 /* then a, b, c of every step */
};

/* Where eps stands: 1 / sqrt(v + eps), 1 / (sqrt(v) + eps), 1 / max(sqrt(v), eps). */
typedef enum lb_eps_place { LB_EPS_INSIDE, LB_EPS_ADDED, LB_EPS_LEAST } lb_eps_place;
typedef enum lb_gate_act { LB_GATE_SILU, LB_GATE_GELU, LB_GATE_GELU_TANH } lb_gate_act;

enum lb_composite_flags {
    LB_ATTENTION_CAUSAL = 1 << 0, /* query i sees keys 0 … i */
    LB_ATTENTION_TURNED = 1 << 1,
    LB_FINALISE_BY_SLOT = 1 << 2,
    LB_ROUTER_NORMALISED = 1 << 3, /* weights of a token are divided by their sum */
    LB_LOSS_SUM = 1 << 4,          /* not divided by the number of rows that count */
    LB_ATTENTION_HIDDEN = 1 << 5,  /* a mask of bools is true where it hides */
    LB_SCAN_TIME_FIRST = 1 << 6,   /* time stands before heads (or groups) in everything */
    LB_SCAN_TURNED = 1 << 7,       /* B is (batch, groups, states, time) */
    LB_SCAN_DRIVEN = 1 << 8
};

#define LB_COMPOSITE_INPUTS 8
#define LB_COMPOSITE_OUTPUTS 4
#define LB_COMPOSITE_NUMBERS 32

typedef struct lb_composite {
    lb_composite_kind kind;
    uint32_t scope, call;                   /* of the op that gives output 0 */
    const lb_program *program;              /* borrowed */
    uint32_t *ops, n_ops;                   /* rows of the program, ascending; views among them left out */
    uint32_t inputs[LB_COMPOSITE_INPUTS];   /* value rows by role; LB_NONE: absent */
    uint32_t outputs[LB_COMPOSITE_OUTPUTS]; /* output 0 is the last that is computed */
    /* further inputs. finalise: per expert, ascending, its rows, their tokens and their slots */
    uint32_t *list, n_list;
    double numbers[LB_COMPOSITE_NUMBERS]; /* by role; 0 where there is none */
    uint32_t flags;
} lb_composite;

typedef struct lb_composites {
    lb_composite *rows; /* by the last op */
    uint32_t n;
} lb_composites;

/* All composites of the forward ops of a program (also those run again in backward) and of its optimizers. The program
 * must outlive them. */
LB_API lb_status lb_composites_find(const lb_program *program, lb_composites *composites, lb_err *err);
LB_API void lb_composites_release(lb_composites *composites);

/* One named kernel of a kind. */
typedef struct lb_composite_kernel {
    const char *name;       /* "butterfly" */
    const char *parameters; /* how it is written: "butterfly[:THREADSxVECTOR[xCLUSTER]]" */
    const char *about;      /* order, accumulator, rounding points, and whose kernel that is */
} lb_composite_kernel;
/* The kernels of a kind, ended by a row with name NULL. */
LB_API const lb_composite_kernel *lb_composite_kernels(lb_composite_kind kind);
/* What may stand behind a kernel's name, as one text for people: "round:once|twice, …". */
LB_API const char *lb_composite_options(lb_composite_kind kind);
/* Checks a kernel's text. LB_ERR_INVALID says what there is. */
LB_API lb_status lb_composite_check(lb_composite_kind kind, const char *kernel, lb_err *err);

#define LB_COMPOSITE_TEXT 96
/* Kernels that may have made such a composite's outputs, with parameters filled in for its shape, cheap and likely ones
 * first; no two are the same text. At most `room` are written, how many there are is returned. */
LB_API uint32_t lb_composite_candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room);

/* Runs a kernel. `inputs` (LB_COMPOSITE_INPUTS, then those of `list`) and `outputs` (LB_COMPOSITE_OUTPUTS) stand by
 * role; data NULL: absent, not wanted. Dtypes and leading dimensions may be other than the recorded ones; "eager" takes
 * recorded dtypes and at most the recorded number of rows. A kernel computes the same from the same bytes whatever runs
 * beside it, in any thread. LB_ERR_INVALID: the text, or shapes that do not fit; LB_ERR_UNSUPPORTED: this kernel cannot
 * compute that. */
LB_API lb_status lb_composite_run(const lb_composite *composite, const char *kernel, const lb_tensor *inputs,
                                  lb_tensor *outputs, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
