/* Finding trees of additions: see addition_trees.h. */
#include "subprogram/addition_trees.h"

#include "orders/collective_sum.h"
#include "pair/orders.h"
#include "orders/sum_tree.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TREES = 64, FEW = 8 };

typedef struct prober {
    lb_written_sum *sum;
    lb_tree_builder builder;
    double *answers; /* of the last run, per element */
    uint8_t *alike;  /* per element: it answered as `element` did, so far */
    int64_t element; /* whose tree is being built */
    uint64_t left;   /* runs that may still be made */
    double huge, unit;
    bool failed; /* the answers are those of no tree */
    lb_err *err;
} prober;

/* ---- a list of trees ---- */

static void clear_trees(lb_addition_trees *trees)
{
    for (uint32_t i = 0; i < trees->n; i++) lb_sum_tree_free(trees->list[i].tree);
    trees->n = 0;
}

static bool add_tree(lb_addition_trees *trees, lb_sum_tree *tree, int64_t first)
{
    lb_addition_tree *grown = trees->n < MOST_TREES ? lb_array_grow(trees->list, trees->n, sizeof *grown) : NULL;
    if (!grown) {
        lb_sum_tree_free(tree);
        return false;
    }
    trees->list = grown, grown[trees->n++] = (lb_addition_tree){tree, first};
    return true;
}

/* ---- asking ---- */

/* How many of the terms in `set` are below the node where i and j meet, those two counted; 0: no such number came
 * out. */
static lb_status ask(prober *prober, const uint32_t *set, uint32_t n, uint32_t i, uint32_t j, uint32_t *size)
{
    bool ran = false;
    *size = 0;
    prober->failed |= !prober->left;
    if (prober->failed) return LB_OK;
    prober->left--;
    lb_written_sum_clear(prober->sum);
    for (uint32_t k = 0; k < n; k++)
        lb_written_sum_put(prober->sum, set[k],
                           set[k] == i   ? prober->huge
                           : set[k] == j ? -prober->huge
                                         : prober->unit);
    LB_TRY(lb_written_sum_run(prober->sum, false, prober->answers, &ran, prober->err));
    const double survivors = ran ? prober->answers[prober->element] / (prober->unit * prober->sum->factor) : -1;
    if (!(survivors > -0.25) || !(survivors < n - 1.5) || fabs(survivors - rint(survivors)) > 0.25) {
        prober->failed = true;
        return LB_OK;
    }
    for (int64_t e = 0; e < prober->sum->elements; e++)
        prober->alike[e] &= prober->answers[e] == prober->answers[prober->element];
    *size = n - (uint32_t)rint(survivors);
    return LB_OK;
}

/* ---- one element's tree ---- */

static lb_status build(prober *p, const uint32_t *set, uint32_t n, uint32_t *node);

/* From the first term up: at each node above it the terms of the other operand have met it at one size. */
static lb_status climb(prober *prober, const uint32_t *set, uint32_t n, const uint32_t *sizes, uint32_t *node)
{
    uint32_t *group = malloc(n * sizeof *group), below = 1;
    lb_status status = group ? LB_OK : lb_fail(prober->err, LB_ERR_NOMEM, "out of memory for a sum");
    *node = set[0];
    while (status == LB_OK && !prober->failed && below < n) {
        uint32_t next = UINT32_MAX, count = 0, sibling;
        for (uint32_t k = 1; k < n; k++)
            if (sizes[k] > below && sizes[k] < next) next = sizes[k];
        for (uint32_t k = 1; k < n; k++)
            if (sizes[k] == next) group[count++] = set[k];
        prober->failed |= next == UINT32_MAX || below + count != next;
        if (prober->failed) break;
        status = build(prober, group, count, &sibling);
        if (status == LB_OK && !prober->failed) *node = lb_tree_add(&prober->builder, *node, sibling);
        below = next;
    }
    free(group);
    return status;
}

static lb_status build(prober *prober, const uint32_t *set, uint32_t n, uint32_t *node)
{
    *node = set[0];
    if (n == 1) return LB_OK;
    if (n == 2) {
        *node = lb_tree_add(&prober->builder, set[0], set[1]);
        return LB_OK;
    }
    uint32_t *sizes = malloc(n * sizeof *sizes);
    lb_status status = sizes ? LB_OK : lb_fail(prober->err, LB_ERR_NOMEM, "out of memory for a sum");
    for (uint32_t k = 1; k < n && status == LB_OK && !prober->failed; k++)
        status = ask(prober, set, n, set[0], set[k], &sizes[k]);
    if (status == LB_OK && !prober->failed) status = climb(prober, set, n, sizes, node);
    free(sizes);
    return status;
}

static lb_status build_one(prober *prober, lb_sum_tree **tree)
{
    uint32_t set[LB_WRITTEN_TERMS], root;
    for (uint32_t t = 0; t < prober->sum->n_terms; t++) set[t] = t;
    prober->builder = lb_tree_begin(prober->sum->n_terms);
    *tree = NULL;
    lb_status status = build(prober, set, prober->sum->n_terms, &root);
    const lb_status ended = lb_tree_end(&prober->builder, tree, NULL);
    if (status == LB_OK && ended == LB_ERR_NOMEM) status = lb_fail(prober->err, ended, "out of memory for a sum");
    prober->failed |= ended != LB_OK;
    return status;
}

/* ---- all elements ---- */

static lb_status build_all(prober *prober, lb_addition_trees *trees)
{
    const int64_t n = prober->sum->elements;
    memset(trees->of, 0xFF, (size_t)n * sizeof *trees->of);
    for (int64_t element = 0; element < n && !prober->failed; element++) {
        lb_sum_tree *tree;
        if (trees->of[element] != LB_NONE) continue;
        prober->element = element;
        memset(prober->alike, 1, (size_t)n);
        LB_TRY(build_one(prober, &tree));
        if (prober->failed) {
            lb_sum_tree_free(tree);
            return LB_OK;
        }
        for (int64_t k = element; k < n; k++)
            if (prober->alike[k] && trees->of[k] == LB_NONE) trees->of[k] = trees->n;
        prober->failed |= !add_tree(trees, tree, element);
    }
    return LB_OK;
}

/* ---- the recorded bits ---- */

static double rounded(lb_dtype dtype, double x)
{
    uint64_t room;
    lb_from_f64(dtype, &room, x, NULL);
    return lb_to_f64(dtype, &room);
}

static double scaled(const lb_addition_rule *rule, bool terms, lb_dtype dtype, double factor, double x)
{
    const bool times = rule->scaling == (terms ? LB_SCALING_TERMS_TIMES : LB_SCALING_SUM_TIMES),
               over = rule->scaling == (terms ? LB_SCALING_TERMS_OVER : LB_SCALING_SUM_OVER);
    /* A factor is a number of f32 to ops over narrower types. */
    const double number = dtype == LB_F64 ? factor : (double)(float)factor;
    return times ? rounded(dtype, x * number) : over ? rounded(dtype, x / rint(1 / factor)) : x;
}

/* Additions of one element in the order of the tree. */
static double add_up(const lb_written_sum *sum, const lb_sum_tree *tree, const lb_addition_rule *rule, int64_t element,
                     double *values)
{
    for (uint32_t t = 0; t < sum->n_terms; t++)
        values[t] = scaled(rule, true, sum->dtype, sum->factor, lb_written_sum_recorded(sum, t, element));
    for (uint32_t k = 0; k < tree->nodes; k++) {
        double total = values[tree->operand[tree->first[k]]];
        for (uint32_t i = tree->first[k] + 1; i < tree->first[k + 1]; i++) total += values[tree->operand[i]];
        values[tree->leaves + k] = rounded(rule->accumulate, total);
    }
    const double total = values[tree->leaves + tree->nodes - 1];
    return scaled(rule, false, rule->accumulate, sum->factor, total);
}

/* What was recorded. */
typedef struct recorded {
    double *target; /* per element */
    double *values; /* room for terms and nodes */
} recorded;

static lb_status open_recorded(const lb_written_sum *sum, recorded *r, lb_err *err)
{
    const lb_tensor *target = sum->ops.target;
    void *dense = malloc(lb_dtype_bytes(target->dtype, (size_t)sum->elements) + 1);
    *r = (recorded){malloc((size_t)sum->elements * sizeof *r->target), malloc(2 * sum->n_terms * sizeof *r->values)};
    lb_status status = dense && r->target && r->values ? lb_tensor_gather(target, dense, err)
                                                       : lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    if (status == LB_OK) lb_load_f64(r->target, target->dtype, dense, (size_t)sum->elements);
    free(dense);
    return status;
}

static void close_recorded(recorded *recorded)
{
    free(recorded->target), free(recorded->values);
}

static bool gives_bits(const lb_written_sum *sum, const lb_addition_trees *trees, const lb_addition_rule *rule,
                       const recorded *recorded)
{
    const lb_dtype dtype = sum->ops.target->dtype;
    for (int64_t e = 0; e < sum->elements; e++) {
        const double y = rounded(dtype, add_up(sum, trees->list[trees->of[e]].tree, rule, e, recorded->values));
        if (!(y == recorded->target[e]) && !(isnan(y) && isnan(recorded->target[e]))) return false;
    }
    return true;
}

/* Under which rule? Sums are taken in f64 and then rounded: of two numbers of f32 that is what f32 arithmetic gives. */
typedef enum width { AS_TERMS, WIDER, ANY_WIDTH } width;

static bool find_rule(const lb_written_sum *sum, const recorded *recorded, width width, lb_addition_trees *trees)
{
    const lb_dtype dtypes[] = {sum->dtype, LB_F32, LB_F64};
    const lb_addition_scaling first = sum->factor == 1 ? LB_SCALING_NONE : LB_SCALING_SUM_TIMES,
                              last = sum->factor == 1 ? LB_SCALING_NONE : LB_SCALING_TERMS_OVER;
    for (size_t i = width == WIDER; i < (width == AS_TERMS ? 1 : sizeof dtypes / sizeof *dtypes); i++) {
        if (i && lb_dtype_precision(dtypes[i]) <= lb_dtype_precision(sum->dtype)) continue;
        for (int k = first; k <= (int)last; k++) {
            const lb_addition_rule rule = {dtypes[i], (lb_addition_scaling)k};
            if (!gives_bits(sum, trees, &rule, recorded)) continue;
            trees->rule = rule;
            return true;
        }
    }
    return false;
}

/* ---- orders that have names ---- */

/* The folds of a piece of a collective. */
static lb_sum_tree *tree_of_piece(const lb_collective_slice *piece, uint32_t n)
{
    lb_tree_builder builder = lb_tree_begin(n);
    lb_sum_tree *tree = NULL;
    uint32_t registers[LB_WRITTEN_TERMS];
    for (uint32_t r = 0; r < n; r++) registers[r] = r;
    for (uint32_t k = 0; k + 1 < n; k++)
        registers[piece->folds[k].dst] =
            lb_tree_add(&builder, registers[piece->folds[k].dst], registers[piece->folds[k].src]);
    return lb_tree_end(&builder, &tree, NULL) == LB_OK ? tree : NULL;
}

static bool take_collective(const lb_written_sum *sum, const char *text, lb_addition_trees *trees)
{
    lb_collective_order order = LB_ORDER_INIT;
    lb_collective_pieces pieces = {0};
    if (lb_collective_order_parse(text, &order, NULL) != LB_OK ||
        lb_collective_order_pieces(&order, sum->n_terms, sum->elements, lb_dtype_bits(sum->dtype) / 8, &pieces, NULL) !=
            LB_OK)
        return false;
    bool whole = true;
    for (uint32_t i = 0; i < pieces.n && whole; i++) {
        const lb_collective_slice *piece = &pieces.pieces[i];
        lb_sum_tree *tree = piece->first < piece->last ? tree_of_piece(piece, sum->n_terms) : NULL;
        if (piece->first == piece->last) continue;
        for (int64_t e = piece->first; e < piece->last; e++) trees->of[e] = trees->n;
        whole = tree && add_tree(trees, tree, piece->first);
    }
    lb_collective_pieces_release(&pieces);
    return whole;
}

static bool take_named(const lb_written_sum *sum, const char *text, lb_addition_trees *trees)
{
    lb_sum_tree *tree = NULL;
    memset(trees->of, 0, (size_t)sum->elements * sizeof *trees->of);
    return lb_sum_tree_named(text, sum->n_terms, LB_SUM_ROW, sum->dtype, &tree, NULL) == LB_OK && tree &&
           add_tree(trees, tree, 0);
}

/* `wide` and `rotated` add in a wider type by what they are. */
static bool is_wide(const char *word)
{
    return !strcmp(word, "wide") || !strcmp(word, "rotated");
}

/* The trees of an order, if they give the recorded bits. `*known`: it is an order of so many terms. */
static bool gives_named(const lb_written_sum *sum, bool ranks, const recorded *recorded, const char *word, bool wide,
                        lb_addition_trees *trees, bool *known)
{
    clear_trees(trees);
    *known = ranks ? take_collective(sum, word, trees) : take_named(sum, word, trees);
    return *known && find_rule(sum, recorded, wide || (ranks && is_wide(word)) ? WIDER : AS_TERMS, trees);
}

/* The first that does, while all are counted. */
static bool find_named(const lb_written_sum *sum, bool ranks, const recorded *recorded, lb_addition_trees *trees)
{
    static const char of_ranks[] = LB_COLLECTIVE_ORDERS " " LB_COLLECTIVE_ORDERS_SPLIT,
                      of_terms[] = "sequential reversed " LB_ORDERS_PLAIN " " LB_ORDERS_CASCADE " " LB_ORDERS_SPLITK
                                   " " LB_ORDERS_BLOCKED " " LB_ORDERS_LANES " " LB_ORDERS_BUTTERFLY;
    char found[48] = "", word[48];
    bool known;
    if (sum->elements < FEW) return false; /* too few bits to tell orders apart: the ops are asked */
    for (int wide = 0; wide < 2 && !*found; wide++) {
        for (const char *at = ranks ? of_ranks : of_terms; *at; at += strspn(at, " ")) {
            snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
            at += strcspn(at, " ");
            const bool gives = gives_named(sum, ranks, recorded, word, wide, trees, &known);
            trees->tried += known, trees->excluded += known && !gives;
            if (gives && !*found) memcpy(found, word, sizeof found);
        }
        if (!*found) continue;
        gives_named(sum, ranks, recorded, found, wide, trees, &known);
        snprintf(trees->name, sizeof trees->name, "%.24s%s%s", found, wide ? " in " : "",
                 wide ? lb_dtype_name(trees->rule.accumulate) : "");
        return true;
    }
    clear_trees(trees);
    return false;
}

/* ---- orders of a few terms ---- */

/* All trees over so many terms: 945 of six. A tree is grown leaf by leaf, each put beside any node there is. */
enum { FEW_TERMS = 6 };

typedef struct grown_tree {
    uint8_t children[FEW_TERMS][2]; /* of node i: a leaf, or FEW_TERMS + another node */
    uint8_t nodes, root;
} grown_tree;

static uint32_t take_node(lb_tree_builder *builder, const grown_tree *tree, uint32_t at)
{
    if (at < FEW_TERMS) return at;
    const uint32_t x = take_node(builder, tree, tree->children[at - FEW_TERMS][0]),
                   y = take_node(builder, tree, tree->children[at - FEW_TERMS][1]);
    return lb_tree_add(builder, x, y);
}

static lb_sum_tree *tree_of(const grown_tree *g, uint32_t n)
{
    lb_tree_builder builder = lb_tree_begin(n);
    lb_sum_tree *tree = NULL;
    take_node(&builder, g, g->root);
    return lb_tree_end(&builder, &tree, NULL) == LB_OK ? tree : NULL;
}

/* The leaf beside node `at` (a leaf, or FEW_TERMS + a node). */
static grown_tree grow(const grown_tree *tree, uint32_t at, uint32_t leaf)
{
    grown_tree larger = *tree;
    const uint8_t node = (uint8_t)(FEW_TERMS + larger.nodes);
    for (uint32_t i = 0; i < tree->nodes; i++)
        for (int k = 0; k < 2; k++)
            if (tree->children[i][k] == at) larger.children[i][k] = node;
    if (larger.root == at) larger.root = node;
    larger.children[larger.nodes][0] = (uint8_t)at, larger.children[larger.nodes++][1] = (uint8_t)leaf;
    return larger;
}

typedef struct enumeration {
    const lb_written_sum *sum;
    const recorded *recorded;
    width width;
    lb_addition_trees *trees;
} enumeration;

static bool try_grown(const enumeration *enumeration, const grown_tree *grown, uint32_t leaves)
{
    const uint32_t n = enumeration->sum->n_terms;
    if (leaves == n) {
        clear_trees(enumeration->trees);
        lb_sum_tree *tree = tree_of(grown, n);
        return tree && add_tree(enumeration->trees, tree, 0) &&
               find_rule(enumeration->sum, enumeration->recorded, enumeration->width, enumeration->trees);
    }
    for (uint32_t at = 0; at < leaves; at++) {
        const grown_tree larger = grow(grown, at, leaves);
        if (try_grown(enumeration, &larger, leaves + 1)) return true;
    }
    for (uint32_t at = 0; at < grown->nodes; at++) {
        const grown_tree larger = grow(grown, FEW_TERMS + at, leaves);
        if (try_grown(enumeration, &larger, leaves + 1)) return true;
    }
    return false;
}

static bool find_among_all(const lb_written_sum *sum, const recorded *recorded, lb_addition_trees *trees)
{
    const grown_tree one = {.root = 0};
    bool found = false;
    if (sum->n_terms > FEW_TERMS || sum->elements < FEW) return false;
    memset(trees->of, 0, (size_t)sum->elements * sizeof *trees->of);
    for (int wide = 0; wide < 2 && !found; wide++) {
        const enumeration enumeration = {sum, recorded, wide ? WIDER : AS_TERMS, trees};
        found = try_grown(&enumeration, &one, 1);
    }
    if (!found) clear_trees(trees);
    return found;
}

/* ---- all of it ---- */

static lb_status find_by_asking(lb_written_sum *sum, uint64_t most_runs, lb_addition_trees *trees, bool *found,
                                lb_err *err)
{
    /* Units add up exactly in every type, and vanish beside what is huge: f16 ends at 65504. */
    const bool half = sum->dtype == LB_F16 || sum->ops.target->dtype == LB_F16;
    prober prober = {
        .sum = sum, .left = most_runs, .huge = half ? 0x1p15 : 0x1p100, .unit = half ? 0x1p-3 : 1, .err = err};
    prober.answers = malloc((size_t)sum->elements * sizeof *prober.answers),
    prober.alike = malloc((size_t)sum->elements);
    lb_status status = prober.answers && prober.alike ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    if (status == LB_OK) status = build_all(&prober, trees);
    *found = status == LB_OK && !prober.failed;
    free(prober.answers), free(prober.alike);
    return status;
}

lb_status lb_addition_trees_find(lb_written_sum *sum, bool ranks, uint64_t most_runs, lb_addition_trees *trees,
                                 bool *found, lb_err *err)
{
    recorded recorded = {0};
    *trees = (lb_addition_trees){.of = malloc((size_t)sum->elements * sizeof *trees->of)};
    lb_status status =
        trees->of ? open_recorded(sum, &recorded, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory for a sum");
    *found = status == LB_OK && (find_named(sum, ranks, &recorded, trees) || find_among_all(sum, &recorded, trees));
    if (status == LB_OK && !*found) {
        status = find_by_asking(sum, most_runs, trees, found, err);
        /* A wider type on the way fits a few elements by chance. */
        *found = *found && find_rule(sum, &recorded, sum->elements < FEW ? AS_TERMS : ANY_WIDTH, trees);
    }
    close_recorded(&recorded);
    return status;
}

void lb_addition_trees_release(lb_addition_trees *trees)
{
    for (uint32_t i = 0; i < trees->n; i++) lb_sum_tree_free(trees->list[i].tree);
    free(trees->list), free(trees->of);
    *trees = (lb_addition_trees){0};
}
