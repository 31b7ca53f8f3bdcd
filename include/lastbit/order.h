/* The order in which a kernel adds up, as a tree: written down, named, and found in a live kernel from outside.
 *
 * Simplest use:
 *
 *     lb_sum_tree *tree;
 *     LB_TRY(lb_sum_tree_parse("((0 1) (2 3))", &tree, err));
 *     char *text = lb_sum_tree_print(tree);
 *     free(text);
 *     lb_sum_tree_free(tree);
 *
 * A tree has n terms as its leaves; every node is one addition of two operands, or one fused addition of more (tensor
 * cores). Additions commute, so operands have no order. As text
 *
 *      (0 1)          one addition; (0 1 2): a fused one
 *      [0 1 2]        a chain, added one after the other: ((0 1) 2)
 *      [0..31]        terms in a row, also 0..28/4 for every fourth
 *
 * and as JSON {"leaves": 4, "nodes": [[0, 1], [2, 3], [4, 5]]}: node i is operand leaves + i of a later one; the last
 * is the sum. With "products": "rounded" it adds up products that were rounded, which the text does not tell.
 *
 * Finding a tree needs nothing but calls (FPRev, Xie et al., arXiv 2411.00442): with a huge M at term i, -M at term j
 * and a unit everywhere else, just those units survive that are added after i and j have met, so the sum tells how many
 * terms are below the node where they meet. */
#ifndef LASTBIT_ORDER_H
#define LASTBIT_ORDER_H

#include <lastbit/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- trees ------------------------------------------------------------------------------------------------------- */

/* Node i has the operands operand[first[i]] … operand[first[i + 1] - 1]: below `leaves` a term, otherwise leaves + an
 * earlier node. Every term and every node but the last is used once. One leaf: no node. */
typedef struct lb_sum_tree {
    uint32_t leaves, nodes;
    uint32_t *first; /* nodes + 1 */
    uint32_t *operand;
    /* of products: each is rounded before it is added; otherwise one that is added to a sum goes in by fma */
    bool rounded;
} lb_sum_tree;
#define LB_TREE_MAX_LEAVES (1u << 24)

/* Trees are malloc'ed; free takes NULL. */
LB_API void lb_sum_tree_free(lb_sum_tree *tree);
/* From the text above. LB_ERR_INVALID says where it breaks a rule. */
LB_API lb_status lb_sum_tree_parse(const char *text, lb_sum_tree **tree, lb_err *err);
/* Its text, malloc'ed; NULL when out of memory. */
LB_API char *lb_sum_tree_print(const lb_sum_tree *tree);
/* As JSON text, malloc'ed, with "schema": "lastbit.tree/1" and the text above; `name` may be NULL. */
LB_API char *lb_sum_tree_to_json(const lb_sum_tree *tree, const char *name);
LB_API lb_status lb_sum_tree_from_json(const char *text, lb_sum_tree **tree, lb_err *err);
/* A file in either form. */
LB_API lb_status lb_sum_tree_read(const char *path, lb_sum_tree **tree, lb_err *err);
/* Whether two trees are the same sum: operands in any order. */
LB_API bool lb_sum_tree_equal(const lb_sum_tree *a, const lb_sum_tree *b);

/* The tree of the terms positions[0] < positions[1] < … alone, renumbered from 0: what is left when all others are
 * zero. NULL when out of memory. */
LB_API lb_sum_tree *lb_sum_tree_sampled(const lb_sum_tree *tree, const uint32_t *positions, uint32_t count);

/* What is added up: the orders that torch has for rows, columns and products differ under one name. */
typedef enum lb_sum_of { LB_SUM_ROW, LB_SUM_COLUMN, LB_SUM_PRODUCT } lb_sum_of;

/* The tree of a named order over n terms of `dtype`: the texts of `lastbit replay --order` (but exact, which is no
 * tree); "fused:W", a chain of fused sums of W terms; "reversed", the last term first; "ORDER of columns" whatever `of`
 * says. */
LB_API lb_status lb_sum_tree_named(const char *name, uint32_t n, lb_sum_of of, lb_dtype dtype, lb_sum_tree **tree,
                                   lb_err *err);
/* The names of this order, most telling first, separated by " = " where several give the same tree; false: it has none.
 * `room` bytes in `names`, 256 are enough. */
LB_API bool lb_sum_tree_name(const lb_sum_tree *tree, lb_sum_of of, lb_dtype dtype, char *names, size_t room);
/* The same for a tree over some of `n` terms, sample[0] < sample[1] < …, as lb_probe_run samples them. */
LB_API bool lb_sum_tree_name_sampled(const lb_sum_tree *tree, const uint32_t *sample, uint32_t n, lb_sum_of of,
                                     lb_dtype dtype, char *names, size_t room);

/* ---- kernels to be probed ---------------------------------------------------------------------------------------- */

/* How a kernel is called. T is the C type of the dtype (16-bit ones: uint16_t); matrices are row-major and dense. */
typedef enum lb_probe_form {
    LB_PROBE_SUM,  /* T f(const T *x, int64_t n) */
    LB_PROBE_ROWS, /* void f(const T *x, int64_t rows, int64_t n, T *out): of x (rows, n) the sum of every row */
    /* void f(const T *x, int64_t n, int64_t columns, T *out): of x (n, columns) that of every column */
    LB_PROBE_COLUMNS,
    LB_PROBE_DOT,   /* T f(const T *x, const T *y, int64_t n) */
    LB_PROBE_MATMUL /* void f(const T *a, const T *b, T *c, int64_t m, int64_t n, int64_t k) */
} lb_probe_form;
LB_API const char *lb_probe_form_name(lb_probe_form form); /* "sum", … */
LB_API bool lb_probe_form_parse(const char *text, lb_probe_form *form);

typedef struct lb_probe_shape {
    lb_probe_form form;
    lb_dtype dtype;   /* f64 f32 bf16 f16 */
    lb_dtype result;  /* 0: the same */
    uint32_t n;       /* terms of a sum: k of a product */
    uint32_t rows;    /* sums of different terms in one call: rows, columns, m of a product; 1 otherwise */
    uint32_t columns; /* n of a product; 1 otherwise */
} lb_probe_shape;

/* A kernel as it is probed: `run` computes `calls` times all sums of the shape,
 *
 *      terms[calls][rows][n] of shape.dtype, factors[n] (NULL: ones) -> sums[calls][rows][columns]
 *
 * where each sum is that of terms[i] * factors[i] (plain sums are never given factors) and all columns of a row have
 * the same terms. It is called from one thread. `release` may be NULL. */
typedef struct lb_probe_kernel {
    lb_probe_shape shape;
    void *context;
    lb_status (*run)(void *context, uint32_t calls, const void *terms, const void *factors, double *sums, lb_err *err);
    void (*release)(void *context);
} lb_probe_kernel;
LB_API void lb_probe_kernel_release(lb_probe_kernel *kernel);

/* A symbol of a shared object, called in a process of its own, which is forked here: before the host has started
 * threads that the object shares with it (OpenMP's). A function that crashes, leaves, or takes more than `seconds` for
 * one call (0: LB_PROBE_SECONDS) is LB_ERR_IO, which says how it ended and what it was called as. */
enum { LB_PROBE_SECONDS = 60, LB_PROBE_LONGEST = 1000000 };
LB_API lb_status lb_probe_library(const lb_probe_shape *shape, const char *path, const char *symbol, int seconds,
                                  lb_probe_kernel *kernel, lb_err *err);
/* A Python callable. */
typedef struct lb_probe_callable {
    size_t size;
    const char *function;    /* "module:function" or "module:function(axis=1)" */
    const char *interpreter; /* NULL: python3 */
    const char *folder;      /* with the package lastbit */
    const char *arrays;      /* "numpy", "torch", or NULL: torch for torch's own functions */
    int threads;             /* 0: as they are */
} lb_probe_callable;
#define LB_PROBE_CALLABLE_INIT {sizeof(lb_probe_callable)}
/* Called in a child process. */
LB_API lb_status lb_probe_python(const lb_probe_shape *shape, const lb_probe_callable *callable,
                                 lb_probe_kernel *kernel, lb_err *err);
/* This library's own engine under a named order ("" : the one it has by itself). */
LB_API lb_status lb_probe_schedule(const lb_probe_shape *shape, const char *order, lb_probe_kernel *kernel,
                                   lb_err *err);

/* ---- finding an order -------------------------------------------------------------------------------------------- */

typedef enum lb_probe_outcome {
    LB_PROBE_TREE,  /* one tree of additions explains every probe */
    LB_PROBE_EXACT, /* small terms survive beside huge ones: exact, compensated, or an accumulator too wide to probe */
    LB_PROBE_UNSTABLE, /* the same terms give different bits from call to call */
    LB_PROBE_NO_SUM,   /* the results are not the sum of the terms */
    LB_PROBE_NO_TREE   /* a sum, but the probes contradict each other as one tree */
} lb_probe_outcome;
LB_API const char *lb_probe_outcome_name(lb_probe_outcome outcome); /* "tree", … */

typedef struct lb_probe_options {
    size_t size;
    uint64_t seed;
    /* probe no more than this many of the terms (0: 1024 where there are more than 4096); the others are zero */
    uint32_t sample;
    uint32_t most_groups; /* of positions with orders of their own; 0: 8 */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
} lb_probe_options;
#define LB_PROBE_OPTIONS_INIT {sizeof(lb_probe_options)}

/* Results of one order: where they are, and what it is. */
typedef struct lb_probe_group {
    uint32_t row, column, positions; /* the first of them, and how many */
    lb_probe_outcome outcome;
    char reason[160];  /* when no tree */
    lb_sum_tree *tree; /* over the terms sampled */
    char names[256];   /* as lb_sum_tree_name; "" */
    /* of the additions, if random terms have the bits it gives: "f32", "bf16 at every addition"; "" */
    char arithmetic[96];
    uint32_t confirmed, tried; /* sums of random terms that have the tree's bits */
} lb_probe_group;

typedef struct lb_probe_report {
    lb_probe_outcome outcome; /* the worst of the groups */
    lb_probe_group *groups;   /* of the most positions first */
    uint32_t n_groups, groups_left_out;
    uint32_t *sample, n_sample; /* NULL: all terms */
    uint64_t probes, calls;     /* sums read, kernel calls */
    double seconds;
} lb_probe_report;

/* Fails only where the kernel does, or for want of memory. */
LB_API lb_status lb_probe_run(const lb_probe_kernel *kernel, const lb_probe_options *options, lb_probe_report *report,
                              lb_err *err);
LB_API void lb_probe_report_release(lb_probe_report *report);

#ifdef __cplusplus
}
#endif
#endif
