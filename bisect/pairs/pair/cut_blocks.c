/* Blocks in which parts are put together: see cut_blocks.h. */
#include "pair/cut_blocks.h"

#include <lastbit/compare.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 8 /* of a source */ };
static const double NEARER =
    0.1; /* so many times: weights that were updated alike, against the same ones in another order */

/* The dimension of a value of B along which it is a part. */
typedef struct cut {
    int32_t dim; /* -1: unknown */
    uint32_t blocks;
} cut;
static const cut UNKNOWN = {-1, 1};

typedef struct finder {
    const lb_program_view *a, *b;
    const lb_program *p; /* B's */
    const lb_alignment *al;
    cut *cuts; /* per value of B */
} finder;

static int64_t product(const lb_layout *layout, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= layout->shape[d];
    return n;
}

/* In how many blocks `dim` of a layout is what `c` is of another one with the same elements in the same order; 0: it is
 * no such dimension. Row-major, so many runs lie before each other, and so long is each of them. */
static uint32_t blocks_along(const lb_layout *layout, int dim, const lb_layout *from, cut cut)
{
    const int64_t runs = product(from, 0, cut.dim) * cut.blocks, size = runs ? lb_layout_numel(from) / runs : 0;
    const int64_t before = product(layout, 0, dim), blocks = before ? runs / before : 0;
    if (blocks < 1 || blocks * before != runs || layout->shape[dim] % blocks || blocks > UINT32_MAX) return 0;
    return layout->shape[dim] / blocks * product(layout, dim + 1, layout->ndim) == size ? (uint32_t)blocks : 0;
}

/* Of several the one behind which as many elements lie as before, or else that of fewest blocks. */
static cut reshaped(const lb_layout *from, cut c, const lb_layout *to)
{
    cut best = UNKNOWN;
    bool exact = false;
    for (int d = 0; d < to->ndim; d++) {
        const uint32_t blocks = blocks_along(to, d, from, c);
        const bool behind = product(to, d + 1, to->ndim) == product(from, c.dim + 1, from->ndim);
        if (!blocks || (exact && !behind) || (best.dim >= 0 && exact == behind && blocks >= best.blocks)) continue;
        best = (cut){d, blocks}, exact |= behind;
    }
    return best;
}

/* ---- sources ---- */

static const lb_reassembly *join_of(const finder *finder, uint32_t op)
{
    const uint32_t row = finder->al->join_of_b[op];
    return row == LB_NONE ? NULL : &finder->al->joins.list[row];
}

static void set_blocks(const finder *finder, const uint32_t *values, uint32_t n, uint32_t blocks)
{
    for (uint32_t k = 0; k < n; k++) finder->b->blocks[values[k]] = blocks;
}

/* How far the parts, put together in so many blocks, are from the whole; infinite where that cannot be told. */
static double distance_in(const finder *finder, const lb_tensor *whole, int dim, const uint32_t *values, uint32_t n,
                          uint32_t blocks)
{
    const lb_reassembling how = {finder->b, NULL, NULL};
    lb_tensor made;
    lb_difference difference;
    set_blocks(finder, values, n, blocks);
    if (!lb_reassembly_assemble(&how, &whole->layout, dim, values, n, &made)) return INFINITY;
    const bool known = lb_compare_numbers(whole, &made, &difference, NULL) == LB_OK;
    free(made.data);
    return known ? difference.rel_l2 : INFINITY;
}

static bool divides(const finder *finder, int dim, const uint32_t *values, uint32_t n, uint32_t blocks)
{
    for (uint32_t k = 0; k < n; k++)
        if (finder->p->values[values[k]].layout.shape[dim] % blocks) return false;
    return true;
}

/* The fewest blocks in which the parts are the whole, or the nearest to it by far. */
static uint32_t blocks_of_source(const finder *finder, uint32_t whole, int dim, const uint32_t *values, uint32_t n)
{
    lb_tensor t;
    if (!lb_dtype_is_float(finder->a->program->values[whole].dtype) ||
        lb_program_view_value(finder->a, whole, &t, NULL) != LB_OK)
        return 1;
    double least = distance_in(finder, &t, dim, values, n, 1);
    uint32_t best = 1;
    if (!isfinite(least)) return 1;
    for (uint32_t blocks = 2; blocks <= MOST_BLOCKS && least > 0; blocks++) {
        const double apart =
            divides(finder, dim, values, n, blocks) ? distance_in(finder, &t, dim, values, n, blocks) : INFINITY;
        if (apart < NEARER * least) least = apart, best = blocks;
    }
    return best;
}

static void find_in_sources(const finder *finder)
{
    const lb_reassemblies *joins = &finder->al->joins;
    uint32_t *values = malloc((finder->p->n_ops + 1) * sizeof *values);
    for (uint32_t i = 0; values && i < joins->n; i++) {
        const lb_reassembly *join = &joins->list[i];
        const lb_op *whole = &finder->a->program->ops[join->whole];
        if (!join->parts || !lb_op_is_source(finder->a->program, whole) ||
            !lb_reassembly_values(joins, join, finder->p, 0, values))
            continue;
        const uint32_t value = lb_op_results(finder->a->program, whole)[0];
        const int dim = lb_reassembly_dim(joins->rows, finder->a->program, value, finder->p, values, join->parts);
        if (dim >= 0 && dim < LB_MAX_DIMS)
            set_blocks(finder, values, join->parts, blocks_of_source(finder, value, dim, values, join->parts));
        for (uint32_t k = 0; dim >= 0 && dim < LB_MAX_DIMS && k < join->parts; k++)
            finder->cuts[values[k]] = (cut){dim, finder->b->blocks[values[k]]};
    }
    free(values);
}

/* ---- views ---- */

static bool keeps_order(const char *name)
{
    static const char *const names[] = {"aten::view",           "aten::_unsafe_view", "aten::reshape",
                                        "aten::_reshape_alias", "aten::flatten",      "aten::unflatten.int",
                                        "aten::unsqueeze",      "aten::squeeze",      "aten::squeeze.dim",
                                        "aten::squeeze.dims",   "aten::clone",        "aten::contiguous"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

/* Dimensions in another order, or fewer of them: each keeps its stride. */
static cut moved(const lb_layout *from, cut c, const lb_layout *to)
{
    const int64_t shape = from->shape[c.dim], stride = from->stride[c.dim];
    if (c.dim < to->ndim && to->stride[c.dim] == stride && to->shape[c.dim] == shape) return c;
    for (int d = 0; d < to->ndim; d++)
        if (to->stride[d] == stride && to->shape[d] == shape) return (cut){d, c.blocks};
    return UNKNOWN;
}

static cut of_view(const finder *finder, const lb_op *op, uint32_t from, uint32_t to)
{
    const lb_layout *x = &finder->p->values[from].layout, *y = &finder->p->values[to].layout;
    const cut c = finder->cuts[from];
    if (c.dim < 0) return UNKNOWN;
    if (keeps_order(lb_op_name(finder->p, op)) && lb_layout_numel(x) == lb_layout_numel(y)) return reshaped(x, c, y);
    return moved(x, c, y);
}

/* ---- what is computed ---- */

typedef struct inputs {
    const finder *f;
    const lb_layout *result;
    int dim;         /* of the result, along which it is a part; -1: its shape does not tell */
    uint32_t blocks; /* along it */
    cut found;       /* of an input of the result's shape */
    uint32_t first;  /* input */
} inputs;

/* An input that has the dimension: as long there as here. */
static void note_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (value == LB_NONE) return;
    if (in->first == LB_NONE) in->first = value;
    const cut cut = in->f->cuts[value];
    const lb_layout *layout = &in->f->p->values[value].layout;
    if (cut.dim < 0) return;
    if (in->found.dim < 0 && lb_layout_same_shape(layout, in->result)) in->found = cut;
    if (in->dim < 0 || layout->shape[cut.dim] != in->result->shape[in->dim]) return;
    if (layout->ndim == in->result->ndim && cut.dim != in->dim) return;
    if (cut.blocks > in->blocks) in->blocks = cut.blocks;
}

/* The dimension along which the results of the parts differ from the whole's, in shape; -1. */
static int dim_of(const finder *finder, uint32_t op, uint32_t outcome)
{
    const lb_reassembly *join = join_of(finder, op);
    if (!join) return -1;
    const int dim = lb_reassembly_outcome_dim(&finder->al->joins, join, finder->a->program, finder->p, outcome);
    return dim < LB_MAX_DIMS ? dim : -1;
}

static void find_in_outcome(const finder *finder, uint32_t i, uint32_t k, uint32_t value)
{
    const lb_op *op = &finder->p->ops[i];
    const lb_layout *layout = &finder->p->values[value].layout;
    inputs in = {finder, layout, dim_of(finder, i, k), 0, UNKNOWN, LB_NONE};
    lb_op_each_input(finder->p, op, note_input, &in);
    if (in.first != LB_NONE && (!lb_op_computes(finder->p, op) || keeps_order(lb_op_name(finder->p, op)))) {
        in.found = of_view(finder, op, in.first, value);
        in.blocks = in.dim >= 0 && in.found.dim >= 0 ? blocks_along(layout, in.dim, layout, in.found) : 0;
    }
    finder->cuts[value] = in.dim < 0 ? in.found : (cut){in.dim, in.blocks ? in.blocks : 1};
    finder->b->blocks[value] = in.dim < 0 ? 0 : in.blocks;
}

static void find_in_op(const finder *finder, uint32_t i)
{
    const lb_op *op = &finder->p->ops[i];
    for (uint32_t k = 0; !lb_op_is_source(finder->p, op) && k < lb_op_outcomes(op); k++) {
        const uint32_t value = lb_op_outcome(finder->p, op, k);
        if (value != LB_NONE && finder->cuts[value].dim < 0) find_in_outcome(finder, i, k, value);
    }
}

lb_status lb_cut_blocks_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             lb_err *err)
{
    const lb_program *program = b->program;
    finder finder = {a, b, program, alignment, malloc(((size_t)program->n_values + 1) * sizeof *finder.cuts)};
    if (!finder.cuts || !b->blocks) {
        free(finder.cuts);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", program->n_values);
    }
    memset(b->blocks, 0, program->n_values * sizeof *b->blocks);
    for (uint32_t value = 0; value < program->n_values; value++) finder.cuts[value] = UNKNOWN;
    if (alignment->joins.n && !alignment->joins.rows) {
        find_in_sources(&finder);
        for (uint32_t i = 0; i < program->n_ops; i++) find_in_op(&finder, i);
    }
    free(finder.cuts);
    return LB_OK;
}
