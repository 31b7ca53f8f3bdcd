/* The op table: one row per op under its ATen schema name, one contract for every kernel.
 *
 * A kernel fills results that the interpreter has allocated with the recorded layout (strides included). It takes its
 * inputs in any float dtype and any strides, computes in f32, or in f64 as soon as an input or a result is f64, and
 * rounds once to each result's dtype. So the same kernel is
 *      the replay of the recorded op       results in the recorded dtypes
 *      a precision swap                    results (and inputs from inside the region) in a wider dtype
 *      the exact shadow                    every float tensor f64: casts are the identity
 *      the absolute-value twin             row->twin, in f64, see below
 *
 * Bits: results do not depend on thread count or instruction set. Sums say their order; transcendentals come from
 * elementary.h (evaluated in f64, rounded once to f32), never from libm.
 *
 * In place: for `add_.Tensor`, `mul.out`, `_foreach_add_.List`, … the interpreter finds the base row and passes the
 * written argument as the result, so results[i] may be exactly the same memory and layout as an input. An elementwise
 * kernel must be right then. Any other overlap the interpreter removes by a temporary copy. A base row whose result
 * starts as a copy of an input (`index_add`, `copy`, `masked_fill`, `scatter`) copies only if the addresses differ.
 *
 * The error bound of a result element, from the same input bits, is
 *      |y_computed − y_exact| ≤ ½ulp_dtype(y) + u · (row->roundings + row->roundings_per_term · terms) · twin +
 *      underflow
 * where u is the unit roundoff of the compute type, twin the row's absolute-value twin (|y| where there is none), and
 * terms the number of summed terms (`lb_call_terms`). bound.c evaluates it. EXACT rows must be bit-equal.
 */
#ifndef LB_REPLAY_OPS_H
#define LB_REPLAY_OPS_H

#include <lastbit/program.h>

typedef enum lb_operand_tag {
    LB_OPERAND_NONE,
    LB_OPERAND_TENSOR,
    LB_OPERAND_TENSORS, /* list; a None element has data == NULL and dtype 0 */
    LB_OPERAND_INT,
    LB_OPERAND_FLOAT,
    LB_OPERAND_BOOL,
    LB_OPERAND_DTYPE,
    LB_OPERAND_STRING,
    LB_OPERAND_NUMBERS /* list of ints, floats or bools */
} lb_operand_tag;

typedef struct lb_operand {
    lb_operand_tag tag;
    uint32_t count; /* TENSORS, NUMBERS */
    lb_tensor tensor;
    const lb_tensor *tensors;
    int64_t i; /* INT, BOOL, DTYPE; truncated FLOAT */
    double f;  /* FLOAT; also INT and BOOL as a double */
    const char *string;
    const int64_t *ints; /* NUMBERS */
    const double *floats;
} lb_operand;

/* A number, which may stand in a tensor of one element. */
static inline double lb_operand_number(const lb_operand *operand)
{
    const lb_tensor *tensor = &operand->tensor;
    if (operand->tag != LB_OPERAND_TENSOR) return operand->f;
    return tensor->data ? lb_to_f64(tensor->dtype, tensor->data) : 0;
}

/* How a reduction adds up; the full list with parameters is in schedule.h. */
struct lb_schedule;

/* What a swap asks of one op. All zero: the default kernel, the declared order, round to nearest. */
typedef struct lb_method {
    const char *kernel;                 /* named kernel, NULL: default */
    const struct lb_schedule *schedule; /* order of the reduction, NULL: the kernel's own */
    lb_dtype compute;                   /* inputs are rounded to this dtype before the arithmetic; 0: not */
    lb_dtype accumulate;                /* every add is rounded to this dtype; 0: compute type (f32 or f64) */
    uint8_t tf32;                       /* lb_tf32: what products of f32 read is rounded to TF32 */
    struct lb_cast *cast;               /* how results are rounded to their dtype, NULL: as torch casts */
    bool exact;                         /* the exact shadow: operands are not rounded to the dtype they promote to */
} lb_method;

typedef struct lb_call {
    const struct lb_op_row *row;
    const lb_operand *args; /* schema order, defaults filled in; short lists end in NONE */
    uint32_t n_args;
    lb_tensor *results; /* to be filled; a result that is not wanted has data == NULL */
    uint32_t n_results;
    lb_method method;
    lb_err *err;
    bool tf32; /* what was recorded may have read factors of f32 as TF32: the bound allows for it */
    bool cuda; /* what was recorded ran on CUDA: where torch computes another function there */
    /* Of a row that is LB_ROW_FACTORS, LB_ROW_COMPLETES LB_ROW_CHOOSES or LB_ROW_CASTS: what was recorded of each
     * result (of side A, where a shadow of side B runs), in its recorded dtype. data NULL: it was not kept. NULL:
     * nothing is known. */
    const lb_tensor *branch;
    bool host_scalars; /* it ran on CUDA and read tensors of the host, which are single numbers */
    bool e4m3_nan; /* a number beyond the range of e4m3fn became NaN when it was cast: torch before 2.13 (e4m3_nan.h) */
} lb_call;

/* What a product of two factors that were read as TF32 may be off by, in parts of itself: each lost at most 2^-10,
 * where an instruction cuts off the 13 bits that it does not read; half of that where a library rounds before (NVIDIA's
 * PTX ISA, mma and cvt.rna.tf32). */
#define LB_TF32_LOSS 0x1.01p-9

/* LB_ERR_UNSUPPORTED: this variant (dtype, mode) is not computed here, the op counts as opaque. */
typedef lb_status (*lb_kernel)(lb_call *call);

enum lb_row_flags {
    LB_ROW_EXACT = 1 << 0,       /* no rounding of its own beyond the cast to the result dtype: bits must agree */
    LB_ROW_ELEMENTWISE = 1 << 1, /* result element depends on the broadcast input elements alone */
    LB_ROW_REDUCTION = 1 << 2,   /* has a summation order: `schedule` applies */
    LB_ROW_MATMUL = 1 << 3,
    /* comparison, round, sign, top-k, integer result: the shadow takes the recorded result */
    LB_ROW_DISCONTINUOUS = 1 << 4,
    /* results are recorded sources: all of them, or all behind the first one, which the kernel computes from them */
    LB_ROW_RANDOM = 1 << 5,
    LB_ROW_VIEW = 1 << 6,      /* results alias args[0]; the interpreter does it, kernel is NULL */
    LB_ROW_UNDEFINED = 1 << 7, /* result bytes are whatever they are: empty_like */
    LB_ROW_DECISION = 1 << 8,
    LB_ROW_HOST = 1 << 9,        /* no numeric effect: profiler marks, barriers */
    LB_ROW_COLLECTIVE = 1 << 10, /* collective_sum.c does it */
    LB_ROW_WRITES = 1 << 11,     /* a custom op that writes args without a name that says so: LB_FORM_MUTATES */
    LB_ROW_OUT = 1 << 12,        /* … whose written args stand last and are not read: LB_FORM_OUT */
    LB_ROW_ZERO = 1 << 13,       /* every byte of the result is 0: fresh memory needs no kernel */
    LB_ROW_SQUARES = 1 << 14,    /* adds up squares, or divides by what did: norms, variances */
    /* torch's own convolution or its gradient, not one that computes it under another name */
    LB_ROW_CONVOLUTION = 1 << 15,
    /* Bits 16 to 23 are LB_ROW_GIVEN. */
    /* the result is one of several that are right (signs, bases, exchanged rows), or its bits are a library's own: the
     * kernel follows lb_call.branch, and the recorded result is judged by what it promises (factorisation.h) */
    LB_ROW_FACTORS = 1 << 24,
    LB_ROW_COMPLETES = 1 << 25, /* some elements are left as memory was: they are taken from lb_call.branch */
    LB_ROW_COMPLEX = 1 << 26,   /* kernel and twin know complex numbers themselves: Fourier transforms */
    LB_ROW_CASTS = 1 << 28,     /* a copy, which follows lb_call.branch in how it casts to e4m3fn */
    LB_ROW_CHOOSES = 1 << 27 /* chooses among equal values as lb_call.branch did, where that is right: tied_choice.h */
};
/* `count` results from `first` on are by-products that no definition gives (a generator's state, a workspace): they are
 * taken as recorded, the kernel does not see them. */
#define LB_ROW_GIVEN(first, count) ((uint32_t)(first) << 16 | (uint32_t)(count) << 20)
#define LB_ROW_GIVEN_FIRST(flags) ((flags) >> 16 & 0xf)
#define LB_ROW_GIVEN_COUNT(flags) ((flags) >> 20 & 0xf) /* 0: none */

/* What the terms of a result element are counted by, from arg `a`. */
typedef enum lb_terms_source {
    /* by the row's flags: 1 for elementwise, the elements of arg 0 per element of the result for reductions, else 1 */
    LB_TERMS_USUAL,
    LB_TERMS_INNER,       /* last dimension of arg `a` */
    LB_TERMS_FIRST,       /* first dimension of arg `a` */
    LB_TERMS_ELEMENTS,    /* of arg `a` */
    LB_TERMS_DIMENSION,   /* of arg 0 that arg `a` names */
    LB_TERMS_POSITIONS,   /* that the index tensors of list `a` name, broadcast with each other: all may be one */
    LB_TERMS_INDICES,     /* of index tensor `a` along its dimension, at most its elements */
    LB_TERMS_SIZES,       /* product of int list `a` */
    LB_TERMS_ROWS,        /* elements of arg `a` per element of result 1 (saved mean) */
    LB_TERMS_GROUPS,      /* group_norm: elements of arg `a` / (its dim 0 * arg 1) */
    LB_TERMS_PER_CHANNEL, /* elements of arg `a` / size of its dim 1 */
    LB_TERMS_PAIRS,       /* twice the last dimension of arg `a` */
    LB_TERMS_WEIGHED,     /* elements of arg 0 per element of arg `a`, a weight */
    LB_TERMS_STEPS,       /* size of dim 1 of arg `a` */
    LB_TERMS_SCANNED,     /* the same and that size: gradients of a scan are sums along it, or over channels */
    LB_TERMS_KERNEL,      /* elements of weight `a` / its dim 0, and the outputs that one weight meets */
    LB_TERMS_TRANSPOSED,  /* the same of a transposed convolution: / its dim 1 */
    LB_TERMS_CONVOLUTION, /* one of the two, as arg 6 says */
    LB_TERMS_KEYS,        /* attention: queries + keys + head size; `a` is the query */
    LB_TERMS_TOKENS,      /* the same where tokens may stand before heads */
    /* recurrent layers: inputs and hidden size, steps times samples; `a` is the input, the weights follow */
    LB_TERMS_CELLS,
    /* stacks of them: the same of the widest; `a` is the input, the fourth behind it the hidden state */
    LB_TERMS_LAYERS,
    LB_TERMS_FED /* an encoder layer: tokens of arg 0, and both sizes of its first feed-forward weight, which is `a` */
} lb_terms_source;
#define LB_TERMS(SOURCE, A) (LB_TERMS_##SOURCE | (uint32_t)(A) << 8)
#define LB_TERMS_SOURCE(terms) ((lb_terms_source)((terms) & 0xff))
#define LB_TERMS_ARG(terms) ((terms) >> 8)

/* Which args of a product are its factors, and along which dimension each is summed, from the end: 1 is the last. All
 * 0: the op is not a product of two factors that have a known place. */
typedef struct lb_factors {
    uint8_t a, sum_a, b, sum_b;
} lb_factors;

/* After the name of an arg in a row: what has to stand there before a kernel is called (required_arguments.h).
 *
 *      self!       a dense tensor; a row that is elementwise takes a number, too
 *      tensors[]   a list of dense tensors, which may be empty
 *      indices?[]  a list of tensors of which some may be None, or none of it
 *      mask%       a sparse or nested tensor: the list of its parts
 *      weight      anything: a number, a word, a tensor that may be missing
 */
#define LB_ARG_MARKS "!?[]%"

typedef struct lb_op_row {
    const char *name; /* "aten::add.Tensor" */
    const char *args; /* names of the args in schema order with their marks, space separated: "self! other! alpha" */
    lb_kernel kernel;
    lb_kernel twin;  /* |terms| summed, f64 results; NULL: |y| */
    float roundings; /* see the bound above */
    float roundings_per_term;
    uint32_t terms; /* LB_TERMS(INNER, 1), …: how many there are; 0: USUAL */
    uint32_t flags;
    lb_factors factors;
    const char *kernels;                  /* named kernels besides the default, space separated: "openblas" */
    const char *samples;                  /* how tests generate inputs: see tests/replay/ops/op_samples.py */
    const struct lb_complex_way *complex; /* how it is computed with complex numbers: complex_rows.h; NULL: not */
} lb_op_row;

/* ID_kernel and ID_twin of one expression in `call` and `twin`. */
#define LB_WITH_TWIN(ID, CALL)                                                                                         \
    static lb_status ID##_kernel(lb_call *call)                                                                        \
    {                                                                                                                  \
        const bool twin = false;                                                                                       \
        return CALL;                                                                                                   \
    }                                                                                                                  \
    static lb_status ID##_twin(lb_call *call)                                                                          \
    {                                                                                                                  \
        const bool twin = true;                                                                                        \
        return CALL;                                                                                                   \
    }

/* Parts of a row: what LB_WITH_TWIN made of ID; the bound of a sum, with one rounding per term besides ROUNDINGS. */
#define LB_COMPUTED_BY(ID) .kernel = ID##_kernel, .twin = ID##_twin
#define LB_SUMS(ROUNDINGS, TERMS) .roundings = ROUNDINGS, .roundings_per_term = 1, .terms = TERMS

/* The row of a full name. Aliases (CUDA's names), in-place, `.out`, `_foreach_` and `_fused_` forms are resolved by
 * rule: `*form` says how the interpreter must call it. NULL: opaque. */
typedef enum lb_op_form {
    LB_FORM_PLAIN,   /* results are fresh */
    LB_FORM_INPLACE, /* results[0] is args[0]: `add_.Tensor` on the row of `add.Tensor` */
    LB_FORM_OUT,     /* results are the trailing out args, which are dropped from args */
    LB_FORM_FOREACH, /* once per list element: tensor lists are split, scalars shared, scalar lists split */
    LB_FORM_FOREACH_INPLACE,
    LB_FORM_MUTATES /* kernel itself writes the written args, passed as results in schema order: `_fused_adamw_` */
} lb_op_form;
const lb_op_row *lb_op_find(const char *name, lb_op_form *form);
/* The same of an op that takes or makes a sparse or nested tensor: rows of their own, `parts::add.Tensor`. NULL:
 * none. */
const lb_op_row *lb_op_find_of_parts(const char *name, lb_op_form *form);
/* The mark that `lastbit.torch.tap` leaves in a compiled or exported graph: a clone. */
#define LB_OP_TAP "lastbit::tap"
/* The aten op that computes the same as `name`, for what recognises ops by their names: taps are clones. Else
 * `name`. */
const char *lb_op_known_as(const char *name);
/* Is the op, as it is known, the one of aten that `base` names, whatever its overload? "add" is "aten::add.Tensor". */
bool lb_op_known_is(const lb_program *program, const lb_op *op, const char *base);
/* Why no row can compute an op of this name, where that is known; else NULL. */
const char *lb_op_unknown_why(const char *name);
/* For tests and `--kernels`: every row. */
uint32_t lb_op_rows(const lb_op_row *const **rows);

/* Number of terms summed for one result element (k of a matmul, reduced elements of a sum), 1 for elementwise. */
double lb_call_terms(const lb_call *call);

/* Adds a family of a room that stands above the table, when the library is loaded: before the first look into it. */
void lb_op_family_add(const lb_op_row *rows);

/* The families, in the order in which the table lists them. The file of each ends in its rows, lb_rows_FAMILY[], and a
 * row with name NULL after them. */
/* clang-format off */
#define LB_OP_FAMILIES(X)                                                                                           \
    X(pointwise)                                                                                                    \
    X(logic)                                                                                                        \
    X(activation)                                                                                                   \
    X(loss) X(matmul) X(reduction) X(attention) X(norm) X(indexing) X(creation) X(optimizer) X(convolution) X(view) \
    X(random) X(scatter) X(sort) X(arrangement) X(extremum) X(scan) X(softmax) X(channel_norm) X(scaler)            \
    X(resample) X(pool) X(recurrent) X(embedding_bag) X(composite) X(adagrad) X(function) X(custom)                 \
    X(state_space) X(selective_scan) X(linear_attention) X(quantise) X(complex) X(paged) X(four_bit)                \
    X(expert_groups) X(masked_softmax) X(delta_rule) X(weight_norm) X(trilinear) X(sync_norm)                        \
    X(recurrent_cell) X(recurrent_layers) X(scaled_product) X(grid_sampler) X(distinct) X(gamma)                     \
    X(encoder) X(encoder_parts) X(fft) X(factorisation) X(cholesky) X(linear_system) X(matrix_function) X(ctc) X(signal) X(blockwise) \
    X(order_statistic) X(prims) X(sparse) X(nested)
/* clang-format on */
#define LB_DECLARE_FAMILY(FAMILY) extern const lb_op_row lb_rows_##FAMILY[];
LB_OP_FAMILIES(LB_DECLARE_FAMILY)
#undef LB_DECLARE_FAMILY

#endif
