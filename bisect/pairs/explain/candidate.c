/* The list of candidates: see candidate.h. Orders whose trees are the same for the number of terms at hand are one
 * candidate under several names.
 * The list is long, and most of a place's time goes into running it. Two things keep it short: what
 * cannot mean anything to these ops is left out (a product's recipe for a sum), and orders are
 * compared as trees before anything runs, since splitk:2 and blocked:64 are one and the same for
 * 128 terms. Order matters beyond that: of equal trees the first gives the name, and of equal
 * matches the first is told. */
#include "explain/candidate.h"

#include "kernel/ops.h"
#include "pair/collective_match.h"
#include "pair/orders.h"
#include "orders/collective_order.h"
#include "orders/schedule.h"
#include "orders/sum_tree.h"

#include "base/array.h"
#include <lastbit/composite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After the mark: with a parameter, which a few elements fit by chance. */
static const char orders[] = LB_ORDERS_PLAIN " | " LB_ORDERS_CASCADE " " LB_ORDERS_SPLITK " " LB_ORDERS_BLOCKED
                                             " " LB_ORDERS_LANES " " LB_ORDERS_BUTTERFLY;
/* Likely for results of 16 bits, whose orders few elements tell apart. */
static const char narrow_orders[] = LB_ORDERS_OF_PRODUCTS;
static const char row_orders[] = "| " LB_ORDERS_OF_ROWS;
static const char matrix_orders[] = "tensorcore:h100 tensorcore:a100 tensorcore:v100 tensorcore:b200";
static const char precisions[] = "f32 bf16 f16 f64";
static const char product_precisions[] =
    "tf32 tf32:rz fp8-current fp8-delayed fp8-block mxfp8 fp8-delayed,start:calibrated e4m3fn:current "
    "e4m3fn:delayed "
    "e4m3fn:delayed,start:calibrated e5m2:current compute:bf16 compute:f16 nvfp4 mxfp4";
static const char accumulations[] = "bf16 f16";
/* Torch has no order of ranks; these are of the libraries that carry out collectives, whose
 * algorithm depends on size and topology. */
static const char collective_orders[] = LB_COLLECTIVE_ORDERS " | " LB_COLLECTIVE_ORDERS_SPLIT;
/* Orders that are tried together with a precision. */
static const char few_orders[] =
    "torch:1 sequential pairwise cascade:8 cascade:16 blocked:128 splitk:2 splitk:4 splitk:8 exact";
/* A parameter of twenty values has about 4 bits to fit, which two or three elements give away; 8 is on
 * the safe side. A tree is built for each of about a hundred orders, which 2^14 terms keep small; above
 * that, orders run without being compared first, which costs time and never an answer. */
enum { FEW = 8, MOST = 512, KERNELS = 64, MOST_TERMS = 1 << 14 };

typedef struct maker {
    lb_candidate *list;
    uint32_t n;
    bool sums, matrices, narrow, ranks; /* ranks: a collective */
    bool alone;       /* collectives and nothing else that rounds: wider than it is the order `wide` */
    lb_dtype payload; /* of the last of them */
    uint32_t terms;   /* of the only sum, 0: several, or not known */
    lb_sum_of of;
    lb_dtype dtype;
    lb_digest *trees;
    lb_candidate_digests *digests;
    uint32_t *owners; /* per tree: the candidate that it is the order of */
    bool *rounded;    /* per tree: of rounded products, not of chains of fma */
    uint32_t n_trees;
    const lb_candidate_trees *given;
    uint32_t fitting; /* which of them, a bit each */
    bool failed;      /* out of memory: a shorter list would be another answer */
} maker;

/* A recipe looks at whole tensors for its scales, a BLAS at the shape.
 * What is not known to be local is not: a wrong yes would let a sample exclude what gives the
 * whole's bits. */
static bool is_local(lb_swap_kind kind, const char *argument)
{
    if (kind == LB_SWAP_ORDER || kind == LB_SWAP_ACCUMULATE) return true;
    if (kind == LB_SWAP_KERNEL) return !strncmp(argument, "tensorcore", 10);
    return kind == LB_SWAP_PRECISION &&
           (strstr(precisions, argument) || !strncmp(argument, "tf32", 4) || !strncmp(argument, "compute:", 8));
}

static void add(maker *maker, lb_cause cause, uint32_t few, lb_swap_kind kind, const char *argument, lb_swap_kind kind2,
                const char *argument2)
{
    /* Full is no error: unlikely candidates stand last, and losing them makes an answer
     * "unexplained" at worst. */
    if (maker->n == MOST) return;
    lb_candidate *candidate = &maker->list[maker->n++];
    *candidate = (lb_candidate){.cause = cause, .n_swaps = argument2 ? 2 : argument ? 1 : 0, .few = few, .local = true};
    const char *texts[] = {argument, argument2};
    const lb_swap_kind kinds[] = {kind, kind2};
    size_t used = 0;
    for (uint32_t i = 0; i < candidate->n_swaps; i++) {
        snprintf(candidate->arguments[i], sizeof candidate->arguments[i], "%s", texts[i]);
        candidate->swaps[i] = (lb_swap){kinds[i], "", candidate->arguments[i]};
        used += (size_t)snprintf(candidate->name + used, sizeof candidate->name - used, "%s%s%s", i ? ", " : "",
                                 kinds[i] == LB_SWAP_ACCUMULATE ? "accumulate " : "", texts[i]);
        candidate->local &= is_local(kinds[i], texts[i]);
    }
    if (!candidate->n_swaps) snprintf(candidate->name, sizeof candidate->name, "own");
}

static void add_name(lb_candidate *candidate, const char *order)
{
    size_t used = strlen(candidate->alike);
    snprintf(candidate->alike + used, sizeof candidate->alike - used, "%s%s", used ? " = " : "", order);
}

static lb_digest digest_of(maker *maker, const lb_sum_tree *tree)
{
    lb_sum_tree *one = lb_sum_tree_canonical(tree);
    lb_digest parts[3] = {{0}};
    if (one) {
        parts[0] = (lb_digest){one->leaves, one->nodes};
        parts[1] = lb_digest_bytes(one->first, (one->nodes + 1) * sizeof *one->first);
        parts[2] = lb_digest_bytes(one->operand, one->first[one->nodes] * sizeof *one->operand);
    }
    maker->failed |= !one;
    lb_sum_tree_free(one);
    return one ? lb_digest_bytes(parts, sizeof parts) : (lb_digest){0};
}

/* Read and built once; NULL: out of memory. */
static const lb_candidate_digest *digest_row(maker *maker, const char *order)
{
    lb_candidate_digests *digests = maker->digests;
    lb_sum_tree *tree = NULL;
    lb_schedule schedule;
    for (uint32_t i = 0; i < digests->n; i++)
        if (digests->rows[i].terms == maker->terms && digests->rows[i].of == maker->of &&
            !strcmp(digests->rows[i].order, order))
            return &digests->rows[i];
    lb_candidate_digest *rows = lb_array_grow(digests->rows, digests->n, sizeof *rows);
    maker->failed |= !rows;
    if (!rows) return NULL;
    digests->rows = rows;
    lb_candidate_digest *row = &rows[digests->n];
    *row = (lb_candidate_digest){.terms = maker->terms, .of = maker->of};
    snprintf(row->order, sizeof row->order, "%s", order);
    lb_status status = lb_schedule_parse(order, &schedule, NULL);
    if (status == LB_OK) {
        row->rounded = maker->of == LB_SUM_PRODUCT && lb_schedule_rounds_products(&schedule);
        lb_schedule_release(&schedule);
        status = lb_sum_tree_named(order, maker->terms, maker->of, maker->dtype, &tree, NULL);
        if (status == LB_OK) row->tree = digest_of(maker, tree);
        lb_sum_tree_free(tree);
    }
    maker->failed |= status == LB_ERR_NOMEM;
    digests->n++;
    return row;
}

/* The order has a tree that one before it has too, or is the one that ops have anyway; otherwise the next candidate has
 * it. */
static bool is_repeated(maker *maker, const char *order)
{
    /* What has no tree here is taken as new: running an order twice is harmless, leaving one out is not. */
    const bool named =
        maker->terms && maker->terms <= MOST_TERMS && strlen(order) < sizeof((lb_candidate_digest *)0)->order;
    const lb_candidate_digest *row = named ? digest_row(maker, order) : NULL;
    if (!row || lb_digest_is_none(row->tree) || maker->n_trees == MOST) return false;
    for (uint32_t i = 0; i < maker->n_trees; i++)
        if (row->rounded == maker->rounded[i] && lb_digest_equal(row->tree, maker->trees[i])) {
            add_name(&maker->list[maker->owners[i]], order);
            return true;
        }
    maker->owners[maker->n_trees] = maker->n, maker->rounded[maker->n_trees] = row->rounded;
    maker->trees[maker->n_trees++] = row->tree;
    return false;
}

typedef void (*use_word)(maker *m, const char *word, uint32_t few);

static void each_word(maker *maker, const char *words, use_word use)
{
    uint32_t few = 0;
    for (const char *at = words; *at; at += strspn(at, " ")) {
        char word[48];
        int n = (int)strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", n, at);
        /* The mark stands in the text itself, so that families and their caution cannot come apart. */
        if (*at == '|')
            few = FEW;
        else
            use(maker, word, few);
        at += n;
    }
}

static void use_order(maker *maker, const char *word, uint32_t few)
{
    if (!is_repeated(maker, word)) add(maker, LB_CAUSE_ORDER, few, LB_SWAP_ORDER, word, 0, NULL);
}

static void use_plain_order(maker *maker, const char *word, uint32_t few)
{
    (void)few;
    add(maker, LB_CAUSE_ORDER, FEW, LB_SWAP_ORDER, word, 0, NULL);
}

static void use_rank_order(maker *maker, const char *word, uint32_t few)
{
    add(maker, LB_CAUSE_ORDER, few, LB_SWAP_ORDER, word, 0, NULL);
}

static void use_kernel(maker *maker, const char *word, uint32_t few)
{
    (void)few;
    for (uint32_t i = 0; i < maker->n; i++)
        if (maker->list[i].n_swaps == 1 && !strcmp(maker->list[i].name, word)) return;
    /* Tensor cores are listed as orders of matrices already, and one thing under two causes could
     * be told as either. */
    if (strncmp(word, "tensorcore", 10)) add(maker, LB_CAUSE_KERNEL, 0, LB_SWAP_KERNEL, word, 0, NULL);
}

/* f32 never narrows; of a collective by itself neither it nor f64 is more than another order.
 * A candidate that changes nothing would match wherever "own" does, and only add a name to it. */
static bool means_something(const maker *maker, const char *precision)
{
    if (maker->ranks && maker->alone)
        return strcmp(precision, "f32") && strcmp(precision, "f64") && lb_dtype_parse(precision) != maker->payload;
    return strcmp(precision, "f32") || maker->narrow;
}

static void use_precision(maker *maker, const char *word, uint32_t few)
{
    (void)few;
    /* A precision has no parameter to fit with, so that few elements suffice. */
    if (means_something(maker, word)) add(maker, LB_CAUSE_PRECISION, 0, LB_SWAP_PRECISION, word, 0, NULL);
}

static void use_accumulation(maker *maker, const char *word, uint32_t few)
{
    (void)few;
    add(maker, LB_CAUSE_PRECISION, 0, LB_SWAP_ACCUMULATE, word, 0, NULL);
}

/* A precision together with each of a few orders.
 * All orders under all precisions would be thousands of runs per place. The few are some of each
 * family; where none of them ran, the precision may still be found by itself, and its order is said to
 * be open (order_consensus.c). */
static void cross(maker *maker, lb_swap_kind kind, const char *precision)
{
    const char *own = LB_COLLECTIVE_ORDERS_FEW;
    for (const char *at = maker->ranks ? own + strcspn(own, " ") + 1 : few_orders; *at; at += strspn(at, " ")) {
        char order[48];
        int n = (int)strcspn(at, " ");
        snprintf(order, sizeof order, "%.*s", n, at);
        add(maker, LB_CAUSE_PRECISION, FEW, kind, precision, LB_SWAP_ORDER, order);
        at += n;
    }
}

static void cross_precision(maker *maker, const char *word, uint32_t few)
{
    (void)few;
    if (means_something(maker, word)) cross(maker, LB_SWAP_PRECISION, word);
}

static void cross_accumulation(maker *maker, const char *word, uint32_t few)
{
    (void)few;
    cross(maker, LB_SWAP_ACCUMULATE, word);
}

lb_status lb_candidate_trees_read(const char *const *paths, uint32_t n, lb_candidate_trees *trees, lb_err *err)
{
    enum {
        MOST_TREES = sizeof trees->leaves / sizeof *trees->leaves,
        MOST_LENGTH = sizeof((lb_candidate *)0)->name - sizeof "tree:"
    };
    *trees = (lb_candidate_trees){.paths = paths, .n = n};
    /* A bit each in `fitting` marks the trees that have as many terms as some sum of the ops. */
    if (n > MOST_TREES) return lb_fail(err, LB_ERR_INVALID, "%u trees; no more than %d are tried", n, MOST_TREES);
    for (uint32_t i = 0; i < n; i++) {
        lb_sum_tree *tree;
        if (strlen(paths[i]) > MOST_LENGTH)
            return lb_fail(err, LB_ERR_INVALID,
                           "%s: longer than %d characters; name the tree from a folder nearer to it", paths[i],
                           MOST_LENGTH);
        const lb_status status = lb_sum_tree_read(paths[i], &tree, err);
        if (status == LB_ERR_INVALID && err)
            err->status = LB_ERR_CORRUPT; /* the file breaks the rule, not the command */
        if (status != LB_OK) return status == LB_ERR_INVALID ? LB_ERR_CORRUPT : status;
        trees->leaves[i] = tree->leaves;
        lb_sum_tree_free(tree);
    }
    return LB_OK;
}

/* The inner dimension of a product; 0: not known. */
/* By name, since no flag of an op says which dimension is summed; an unknown product has 0 terms,
 * and trees of the user's are not tried on it. */
int64_t lb_candidate_inner_dimension(const lb_program *program, const lb_op *product)
{
    static const struct {
        const char *name;
        uint32_t operand;
    } products[] = {{"aten::mm", 0},   {"aten::bmm", 0},   {"aten::linear", 0}, {"aten::mv", 0},     {"aten::dot", 0},
                    {"aten::vdot", 0}, {"aten::addmm", 1}, {"aten::addmv", 1},  {"aten::baddbmm", 1}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const uint32_t operand = products[i].operand;
        if (strcmp(lb_op_name(program, product), products[i].name) || product->args <= operand) continue;
        const lb_arg *arg = &lb_op_args(program, product)[operand];
        const lb_layout *layout =
            arg->tag == LB_ARG_VALUE && arg->u.value != LB_NONE ? &program->values[arg->u.value].layout : NULL;
        return layout && layout->ndim ? layout->shape[layout->ndim - 1] : 0;
    }
    return 0;
}

/* The terms of each sum of the op; 0: not known. */
static int64_t terms_of(const lb_program *program, const lb_op *op, bool matrix)
{
    const lb_arg *args = lb_op_args(program, op);
    const uint32_t result = op->results ? lb_op_results(program, op)[0] : LB_NONE;
    if (matrix) return lb_candidate_inner_dimension(program, op);
    if (!op->args || args[0].tag != LB_ARG_VALUE || args[0].u.value == LB_NONE || result == LB_NONE) return 0;
    const int64_t outs = lb_layout_numel(&program->values[result].layout);
    return outs > 0 ? lb_layout_numel(&program->values[args[0].u.value].layout) / outs : 0;
}

/* Trees of as many terms as the op's sums have are tried. */
static void note_trees(maker *maker, int64_t terms)
{
    for (uint32_t i = 0; maker->given && i < maker->given->n; i++)
        if (maker->given->leaves[i] == terms) maker->fitting |= 1u << i;
}

/* How many terms the only sum has: all of its inputs' elements go into its results' (a product: its inner
 * dimension). */
static void note_terms(maker *maker, const lb_program *program, const lb_op *op, bool matrix)
{
    const lb_arg *args = lb_op_args(program, op);
    uint32_t result = op->results ? lb_op_results(program, op)[0] : LB_NONE;
    maker->terms = 0;
    if (!op->args || args[0].tag != LB_ARG_VALUE || args[0].u.value == LB_NONE || result == LB_NONE) return;
    const lb_layout *in = &program->values[args[0].u.value].layout, *out = &program->values[result].layout;
    const char *name = lb_op_name(program, op);
    int64_t n = 0, outs = lb_layout_numel(out);
    bool plain = !strcmp(name, "aten::mm") || !strcmp(name, "aten::bmm");
    if (matrix && plain && in->ndim) n = in->shape[in->ndim - 1];
    if (!matrix && outs > 0) n = lb_layout_numel(in) / outs;
    bool row = !matrix && in->ndim && (out->ndim == 0 || outs == 1 || in->shape[in->ndim - 1] == n);
    if (!matrix && !row) return; /* columns have orders of their own */
    maker->of = matrix ? LB_SUM_PRODUCT : LB_SUM_ROW;
    maker->dtype = LB_F32;
    /* The trees that are compared here are those of f32; on different inputs each order runs by itself. */
    if (n > 1 && n <= MOST_TERMS && program->values[args[0].u.value].dtype == LB_F32) maker->terms = (uint32_t)n;
}

static void survey(maker *maker, const lb_candidate_ops *of, char *kernels, size_t room)
{
    const lb_program *program = of->program;
    uint32_t sums = 0;
    size_t used = 0;
    maker->alone = true;
    for (uint32_t i = 0; i < of->n_ops; i++) {
        const lb_op *op = &program->ops[of->ops[i]];
        lb_op_form form;
        const lb_op_row *row = lb_op_find(lb_op_name(program, op), &form);
        for (uint32_t k = 0; k < op->results; k++) {
            uint32_t v = lb_op_results(program, op)[k];
            if (v == LB_NONE || !lb_dtype_is_float(program->values[v].dtype)) continue;
            maker->narrow |= lb_dtype_bits(program->values[v].dtype) < 32;
            if (op->flags & LB_OP_COLLECTIVE) maker->payload = program->values[v].dtype;
        }
        maker->ranks |= op->flags & LB_OP_COLLECTIVE;
        maker->alone &= op->flags & LB_OP_COLLECTIVE || !row || row->flags & LB_ROW_EXACT;
        /* Casts and copies have no order, and a comparison no precision that could be changed. */
        if (!row || row->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)) continue;
        bool matrix = row->flags & LB_ROW_MATMUL, sum = row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL);
        maker->matrices |= matrix, maker->sums |= sum;
        if (sum && ++sums == 1) note_terms(maker, program, op, matrix);
        if (sum) note_trees(maker, terms_of(program, op, matrix));
        if (row->kernels && used < room && !strstr(kernels, row->kernels))
            used += (size_t)snprintf(kernels + used, room - used, "%s ", row->kernels);
    }
    /* With two sums in a matched region a swap of the order changes both, and one tree cannot stand for
     * it. */
    if (sums != 1) maker->terms = 0;
}

/* Kernels for all of the ops together. Of several composites (a softmax inside an attention) the largest come first. */
static void add_composites(maker *maker, const lb_program *alone)
{
    lb_composites found = {0};
    if (!alone) return;
    maker->failed |= lb_composites_find(alone, &found, NULL) == LB_ERR_NOMEM;
    /* What is found last encloses what is found first; its kernel explains more, and so it is asked
     * first. */
    for (uint32_t i = found.n; i-- > 0;) {
        char texts[KERNELS][LB_COMPOSITE_TEXT];
        const uint32_t n = lb_composite_candidates(&found.rows[i], texts, KERNELS);
        for (uint32_t k = 0; k < n && k < KERNELS; k++) {
            char argument[128];
            if (!strcmp(texts[k], "eager")) continue;
            snprintf(argument, sizeof argument, "%s:%.95s", lb_composite_kind_name(found.rows[i].kind), texts[k]);
            add(maker, LB_CAUSE_KERNEL, 0, LB_SWAP_FUSE, argument, 0, NULL);
        }
    }
    lb_composites_release(&found);
}

/* Trees of the user's go before all other sums, since they were measured, and run whatever else has them: a tree
 * says the additions alone, and a named order of the same tree may do more (folded's tail:again);
 * orders before precisions, because they are what differs between two runs in one dtype;
 * combinations last, because they are many. */
static void list_orders(maker *maker)
{
    if (maker->ranks) each_word(maker, collective_orders, use_rank_order);
    for (uint32_t i = 0; maker->given && i < maker->given->n; i++) {
        char name[sizeof maker->list->name];
        snprintf(name, sizeof name, "tree:%s", maker->given->paths[i]);
        if (maker->fitting >> i & 1) add(maker, LB_CAUSE_ORDER, 0, LB_SWAP_ORDER, name, 0, NULL);
    }
    if (maker->matrices && maker->narrow) each_word(maker, narrow_orders, use_plain_order);
    if (maker->matrices && !maker->narrow) each_word(maker, row_orders, use_order);
    if (maker->sums) each_word(maker, orders, use_order);
}

static void list_unit_orders(maker *maker)
{
    if (maker->matrices && !maker->narrow) each_word(maker, narrow_orders, use_plain_order);
    if (maker->matrices) each_word(maker, matrix_orders, use_plain_order);
}

static void list_others(maker *maker, const char *kernels)
{
    each_word(maker, kernels, use_kernel);
    list_unit_orders(maker);
    each_word(maker, precisions, use_precision);
    if (maker->matrices) each_word(maker, product_precisions, use_precision);
    if (maker->sums) each_word(maker, accumulations, use_accumulation);
    if (maker->sums || maker->ranks) each_word(maker, precisions, cross_precision);
    if (maker->matrices) each_word(maker, "tf32", cross_precision);
    if (maker->sums) each_word(maker, accumulations, cross_accumulation);
}

void lb_candidate_digests_release(lb_candidate_digests *digests)
{
    free(digests->rows);
    *digests = (lb_candidate_digests){0};
}

lb_status lb_candidates_list(const lb_candidate_ops *ops, const lb_candidate_trees *trees, lb_candidate **list,
                             uint32_t *n, lb_err *err)
{
    char kernels[512] = "";
    lb_candidate_digests mine = {0};
    maker maker = {.given = trees,
                   .digests = ops->digests ? ops->digests : &mine,
                   .list = calloc(MOST, sizeof *maker.list),
                   .trees = calloc(MOST, sizeof *maker.trees),
                   .owners = calloc(MOST, sizeof *maker.owners),
                   .rounded = calloc(MOST, sizeof *maker.rounded)};
    maker.failed = !maker.list || !maker.trees || !maker.owners || !maker.rounded;
    if (!maker.failed) {
        survey(&maker, ops, kernels, sizeof kernels);
        /* An order whose tree is that of the op as it is would match wherever "own" does: it
         * becomes another name of row 0 instead. */
        if (maker.terms) /* what ops do by themselves: its tree is that of row 0 */
            (void)is_repeated(&maker, maker.of == LB_SUM_PRODUCT ? "sequential" : "cascade:8");
        add(&maker, LB_CAUSE_INPUT, 0, 0, NULL, 0, NULL);
        list_orders(&maker);
        if (ops->only_orders)
            list_unit_orders(&maker);
        else
            list_others(&maker, kernels), add_composites(&maker, ops->alone);
    }
    lb_candidate_digests_release(&mine);
    free(maker.trees), free(maker.owners), free(maker.rounded);
    if (maker.failed) free(maker.list), maker.list = NULL, maker.n = 0;
    *list = maker.list, *n = maker.n;
    return maker.list ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for candidates");
}

static void put_first(const char *order, lb_candidate *list, uint32_t *n)
{
    lb_candidate recorded;
    maker maker = {.list = &recorded};
    add(&maker, LB_CAUSE_ORDER, 0, LB_SWAP_ORDER, order, 0, NULL);
    uint32_t at = 1;
    while (at < *n && strcmp(list[at].name, recorded.name) != 0) at++;
    if (at == *n && *n < MOST) ++*n;
    if (at == *n) at--; /* a full list loses its last and least likely one */
    memmove(list + 2, list + 1, (at - 1) * sizeof *list);
    list[1] = recorded;
    for (uint32_t i = 1; i <= at; i++) /* a candidate's swaps point into itself */
        for (uint32_t k = 0; k < list[i].n_swaps; k++) list[i].swaps[k].argument = list[i].arguments[k];
}

void lb_candidates_put_recorded_first(const lb_program_view *other, const uint32_t *ops, uint32_t n_ops,
                                      lb_candidate *list, uint32_t *n)
{
    for (uint32_t i = 0; i < n_ops && list && *n; i++) {
        const lb_program *recorded;
        const lb_collective *row = other->program->ops[ops[i]].flags & LB_OP_COLLECTIVE
                                       ? lb_collective_of_side(other, ops[i], &recorded)
                                       : NULL;
        if (row && row->algorithm != LB_NONE) put_first(lb_program_text(recorded, row->algorithm), list, n);
    }
}
