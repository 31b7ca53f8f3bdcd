/* Fused kernels: rows of the op table that stand for a whole composite.
 *
 *      fused::KIND(kernel, numbers, flags, input 0 … input 7, list) -> output 0 … output 3
 *
 * `kernel` is a text (lastbit/composite.h), the rest what a lb_composite says, by role. A pass (fuse.c) puts such ops
 * into programs; lb_composite_run calls the same kernels. In f32 a kernel keeps the order and the roundings that its
 * text says, for the dtype T of input 0; with an f64 input or output it computes the real function, without any
 * rounding. A twin is given in roundings of f32: the bound of these rows is u times it. */
#ifndef LB_REPLAY_FUSED_H
#define LB_REPLAY_FUSED_H

#include "kernel/frame.h"

#include <lastbit/composite.h>
#include <math.h>

enum {
    LB_FUSED_KERNEL,
    LB_FUSED_NUMBERS,
    LB_FUSED_FLAGS,
    LB_FUSED_INPUTS,
    LB_FUSED_LIST = LB_FUSED_INPUTS + LB_COMPOSITE_INPUTS,
    LB_FUSED_ARGS
};

#define LB_FUSED_KERNEL_BYTES 512
typedef struct lb_fused_text lb_fused_text;

typedef struct lb_fused_kind {
    const char *row; /* "fused::rms_norm" */
    const lb_composite_kernel *kernels;
    const char *options;
    const char *usual; /* what "on" means */
    lb_status (*run)(lb_call *call, lb_composite_kind kind, bool twin);
    bool (*read)(const lb_fused_text *text,
                 void *kernel); /* what the text says, in the kind's own terms; false: there is no such kernel */
    size_t kernel_size;         /* of what it fills, at most LB_FUSED_KERNEL_BYTES */
    const char *fixed;          /* all candidates, by spaces, where they do not depend on the composite: */
    uint32_t (*candidates)(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room);
} lb_fused_kind;
const lb_fused_kind *lb_fused_kind_of(lb_composite_kind kind);

/* ---- reading a call ---------------------------------------------------------------------------------------------- */

static inline const lb_tensor *lb_fused_input(const lb_call *call, uint32_t role)
{
    return lb_frame_arg_tensor(call, LB_FUSED_INPUTS + role);
}
static inline double lb_fused_number(const lb_call *call, uint32_t role)
{
    return call->args[LB_FUSED_NUMBERS].floats[role];
}
static inline int64_t lb_fused_flags(const lb_call *call)
{
    return call->args[LB_FUSED_FLAGS].i;
}
static inline const char *lb_fused_call_text(const lb_call *call)
{
    return call->args[LB_FUSED_KERNEL].string;
}
static inline bool lb_fused_wants(const lb_call *call, uint32_t output)
{
    return output < call->n_results && call->results[output].data;
}
/* T where it has 16 bits and rounding to it means something: the frame computes in f32. */
static inline lb_dtype lb_fused_narrow(const lb_frame *frame, const lb_tensor *x)
{
    return !frame->wide && x && lb_dtype_is_float(x->dtype) && lb_dtype_bits(x->dtype) == 16 ? x->dtype : LB_NO_DTYPE;
}

/* In place; nothing without a dtype. */
static inline void lb_fused_round(float *x, int64_t n, lb_dtype dtype)
{
    if (dtype) lb_round_to_grid_f32(x, (size_t)n, dtype, NULL);
}
static inline float lb_fused_rounded(float x, lb_dtype dtype)
{
    lb_fused_round(&x, 1, dtype);
    return x;
}

/* One over the root of a spread, with eps where it stands. */
static inline double lb_fused_inverse_root(double v, double eps, int place)
{
    const double root = sqrt(place == LB_EPS_INSIDE ? v + eps : v);
    return 1 / (place == LB_EPS_ADDED ? root + eps : place == LB_EPS_LEAST && root < eps ? eps : root);
}

/* The same in f32, root and quotient rounded each. */
static inline float lb_fused_inverse_root_f32(float v, float eps, int place)
{
    const float root = sqrtf(place == LB_EPS_INSIDE ? v + eps : v);
    return 1 / (place == LB_EPS_ADDED ? root + eps : place == LB_EPS_LEAST && root < eps ? eps : root);
}

/* ---- kernel texts ------------------------------------------------------------------------------------------------ */

/* "NAME[:PARAMETERS][,KEY:VALUE…]" cut in its parts. */
struct lb_fused_text {
    lb_composite_kind kind;
    char name[24], parameters[40];
    struct {
        char key[16], value[24];
    } options[8];
    uint32_t n_options;
};
/* One of `words` ("a|b|c") that option `key` names: its place; `otherwise` when the option is not there, -1 when it
 * names none of them. */
int lb_fused_text_choice(const lb_fused_text *text, const char *key, const char *words, int otherwise);
/* Every key is one of `keys` ("a b c"). */
bool lb_fused_text_keys(const lb_fused_text *text, const char *keys);
/* The order that option `key` names, NULL-like where there is none: `*has` stays false. False: no order of plain
 * sums. */
struct lb_schedule;
bool lb_fused_text_order(const lb_fused_text *text, const char *key, struct lb_schedule *order, bool *has);
/* "AxBxC": how many numbers there are, at most `max`; -1 when it is no such thing. */
int lb_fused_text_numbers(const char *text, int64_t *numbers, int max);
/* The kernel that a call names, read by its kind; else a report of what is wrong with the text, with all that there is
 * of the kind. */
lb_status lb_fused_kernel_of(const lb_call *call, lb_composite_kind kind, void *kernel);

/* Adds a candidate; returns the new count. */
uint32_t lb_fused_candidate_add(char (*texts)[LB_COMPOSITE_TEXT], uint32_t room, uint32_t n, const char *format, ...)
    LB_PRINTF(4, 5);
/* Every word of `words`, by spaces. */
uint32_t lb_fused_candidate_add_all(char (*texts)[LB_COMPOSITE_TEXT], uint32_t room, uint32_t n, const char *words);

/* X(NAME, name, flags of its row): each is lb_fused_name of its file, and the row fused::name. */
#define LB_FUSED_KINDS(X)                                                                                              \
    X(RMS_NORM, rms_norm, 0)                                                                                           \
    X(ADD_RMS_NORM, add_rms_norm, 0)                                                                                   \
    X(ATTENTION, attention, 0)                                                                                         \
    X(SOFTMAX, softmax, 0)                                                                                             \
    X(FINALISE, finalise, 0)                                                                                           \
    X(LAYER_NORM, layer_norm, 0)                                                                                       \
    X(SWIGLU, swiglu, 0)                                                                                               \
    X(GATE_UP, gate_up, 0)                                                                                             \
    X(ROPE, rope, 0)                                                                                                   \
    X(ROUTER, router, LB_ROW_DISCONTINUOUS)                                                                            \
    X(SELECTIVE_SCAN, selective_scan, 0)                                                                               \
    X(DISPATCH, dispatch, LB_ROW_DISCONTINUOUS)                                                                        \
    X(CROSS_ENTROPY, cross_entropy, 0)                                                                                 \
    X(ALLREDUCE_NORM, allreduce_norm, 0)                                                                               \
    X(NEWTON_SCHULZ, newton_schulz, 0)

#define LB_DECLARE_KIND(NAME, ID, FLAGS) extern const lb_fused_kind lb_fused_##ID;
LB_FUSED_KINDS(LB_DECLARE_KIND)
#undef LB_DECLARE_KIND

#endif
