/* The calls of one layer on both sides: which op of B's call is which of A's. Layers have met already, by phase and
 * path; here is which call stands against which, and which op inside it. */
#include "pair/aligner.h"

#include "pair/sequence.h"

#include <stdlib.h>
#include <string.h>

/* ---- ops inside a call ---- */

/* Of B's op: the kind of the op of A that it is with A's rows; its own when it is none. */
static uint64_t kind_among(const lb_aligner *al, lb_layer_run run, const lb_layer_op *layer_op)
{
    lb_row_operands with_rows;
    for (uint32_t i = 0; i < run.n; i++) /* a weight may have as many times another's rows by chance */
        if (run.first[i].kind == layer_op->kind) return layer_op->kind;
    for (uint32_t i = 0; i < run.n; i++)
        if (run.first[i].name == layer_op->name &&
            lb_batch_rows_meet(al->out->joins.rows, al->a, run.first[i].op, al->b, layer_op->op, &with_rows))
            return run.first[i].kind;
    return layer_op->kind;
}

/* The longest common subsequence: ops that one side alone runs leave those before and after them paired.
 * match[i]: index in `b` of the partner of a.first[i]; NULL when out of memory. */
static uint32_t *match_runs(lb_aligner *al, lb_layer_run a, lb_layer_run b, bool by_name)
{
    uint32_t *match = malloc((a.n + 1) * sizeof *match);
    uint64_t *keys = malloc(((size_t)a.n + b.n + 1) * sizeof *keys);
    if (match && keys) {
        for (uint32_t i = 0; i < a.n; i++) keys[i] = by_name ? a.first[i].name : a.first[i].kind;
        for (uint32_t i = 0; i < b.n; i++)
            keys[a.n + i] = by_name               ? b.first[i].name
                            : al->out->joins.rows ? kind_among(al, a, &b.first[i])
                                                  : b.first[i].kind;
        lb_sequence_match(keys, a.n, keys + a.n, b.n, match);
    } else {
        free(match);
        match = NULL;
        al->failed = true;
    }
    free(keys);
    return match;
}

/* ---- one call against several ---- */

/* By name alone: parts of a batch have different shapes, and whether they can be put together is what a join asks. An
 * op that lacks in one part stays alone in all. */
static void join_calls(lb_aligner *al, lb_layer_run run, const lb_layer_run *parts, uint32_t n)
{
    uint32_t **matches = calloc(n, sizeof *matches), *ops = malloc(2 * n * sizeof *ops), joined = al->out->joins.n;
    al->failed |= !matches || !ops;
    for (uint32_t k = 0; !al->failed && k < n; k++) matches[k] = match_runs(al, run, parts[k], true);
    for (uint32_t i = 0; !al->failed && i < run.n; i++) {
        bool everywhere = true;
        for (uint32_t k = 0; k < n && everywhere; k++) {
            everywhere = matches[k][i] != UINT32_MAX;
            if (everywhere) ops[k] = parts[k].first[matches[k][i]].op;
        }
        if (everywhere && !(al->side_a->own && al->side_a->own[run.first[i].op]))
            lb_aligner_join(al, run.first[i].op, ops, n, ops + n);
    }
    for (uint32_t i = 0; i < run.n && al->out->joins.n - joined != run.n; i++) al->out->irregular[run.first[i].op] = 1;
    for (uint32_t k = 0; matches && k < n; k++) free(matches[k]);
    free(matches), free(ops);
}

/* ---- one call against one ---- */

/* An op over weights alone is the same in any batch, and has to stay a plain pair: as a join of one
 * part it would be cut into rows that it does not have. */
static bool carries_rows(const lb_aligner *al, uint32_t op_a, uint32_t op_b)
{
    lb_row_operands with_rows;
    return al->out->joins.rows && lb_batch_rows_meet(al->out->joins.rows, al->a, op_a, al->b, op_b, &with_rows) &&
           with_rows.all;
}

/* Between two pairs that are neighbours: the ops of one name, in order. */
static void pair_reshaped(lb_aligner *al, lb_layer_run a, lb_layer_run b)
{
    if (!a.n || !b.n) return;
    uint32_t *match = match_runs(al, a, b, true);
    for (uint32_t i = 0; match && i < a.n; i++)
        if (match[i] != UINT32_MAX) al->out->reshaped_b_of_a[a.first[i].op] = b.first[match[i]].op;
    free(match);
}

/* `match`: as match_runs gives it, ascending. */
static void pair_all_reshaped(lb_aligner *al, lb_layer_run a, lb_layer_run b, const uint32_t *match)
{
    uint32_t first_a = 0, first_b = 0;
    for (uint32_t i = 0; i < a.n; i++) {
        if (match[i] == UINT32_MAX) continue;
        pair_reshaped(al, (lb_layer_run){a.first + first_a, i - first_a},
                      (lb_layer_run){b.first + first_b, match[i] - first_b});
        first_a = i + 1, first_b = match[i] + 1;
    }
    pair_reshaped(al, (lb_layer_run){a.first + first_a, a.n - first_a},
                  (lb_layer_run){b.first + first_b, b.n - first_b});
}

/* `sure`: the sides call this layer equally often. Otherwise (an expert that got no token of a micro-batch) call i may
 * be another one, although names and shapes agree. */
static void pair_calls(lb_aligner *al, lb_layer_run a, lb_layer_run b, bool sure)
{
    lb_alignment *out = al->out;
    uint32_t *match = match_runs(al, a, b, false), pairs = 0, joined = 0, room;
    for (uint32_t i = 0; match && i < a.n; i++) {
        if (match[i] == UINT32_MAX) continue;
        uint32_t op_a = a.first[i].op, op_b = b.first[match[i]].op;
        if (carries_rows(al, op_a, op_b)) {
            joined += lb_aligner_join(al, op_a, &op_b, 1, &room);
            continue;
        }
        out->b_of_a[op_a] = op_b, out->a_of_b[op_b] = op_a;
        pairs++;
    }
    if (match && !out->joins.rows) pair_all_reshaped(al, a, b, match);
    free(match);
    out->pairs += pairs, pairs += joined;
    /* Where something is unaligned, names and shapes alone may have paired what are not partners. */
    for (uint32_t i = 0; i < a.n && (pairs != a.n || pairs != b.n || !sure); i++) out->irregular[a.first[i].op] = 1;
}

/* The calls of B that are parts of call `i` of `n` of A: an n-th of the calls of each program, since each of B's
 * programs runs its share of every call. None where the numbers do not divide. */
static uint32_t parts_of(const lb_layer_run *run, uint32_t nb, uint32_t i, uint32_t n, lb_layer_run *parts)
{
    uint32_t found = 0;
    for (uint32_t first = 0, end; first < nb; first = end) {
        for (end = first; end < nb && run[end].first->part == run[first].first->part;) end++;
        uint32_t share = (end - first) / n;
        if (share * n != end - first) return 0;
        for (uint32_t k = 0; k < share; k++) parts[found++] = run[first + i * share + k];
    }
    return found;
}

/* A layer that goes forward equally often on both sides and backward less often on one (a module that blocks share, one
 * of whose gradients is cut) is no batch in parts: its calls meet by their numbers. */
static bool lacks_a_gradient(const lb_aligner *al, const lb_layer_op *a, const lb_layer_op *b)
{
    return a->phase == LB_PHASE_BACKWARD &&
           lb_layer_forward_calls(&al->ops[0], a) == lb_layer_forward_calls(&al->ops[1], b);
}

/* Calls of passes that meet by their data have one number. Else more calls on B's side are parts of A's, where they
 * divide. Else equally many calls meet in order, whatever their numbers, and others by number. */
static void align_calls(lb_aligner *al, const lb_layer_run *a, uint32_t na, const lb_layer_run *b, uint32_t nb)
{
    lb_layer_run *parts = malloc(nb * sizeof *parts);
    al->failed |= !parts;
    const bool by_pass = al->out->forwards.used;
    bool several = parts && !by_pass && !al->out->joins.rows && nb > na && parts_of(b, nb, 0, na, parts) &&
                   !lacks_a_gradient(al, a[0].first, b[0].first);
    for (uint32_t i = 0; i < na && several && !al->failed; i++) {
        uint32_t n = parts_of(b, nb, i, na, parts);
        join_calls(al, a[i], parts, n);
    }
    for (uint32_t i = 0, j = 0; i < na && j < nb && !several && !al->failed;) {
        int order = na == nb && !by_pass ? 0 : lb_layer_call_compare(a[i].first, b[j].first);
        if (order == 0) pair_calls(al, a[i], b[j], na == nb || by_pass);
        i += order <= 0, j += order >= 0;
    }
    free(parts);
}

static void align_layer(lb_aligner *al, lb_layer_run a, lb_layer_run b)
{
    uint32_t na, nb;
    lb_layer_run *calls_a = lb_layer_calls(a, &na), *calls_b = lb_layer_calls(b, &nb);
    if (calls_a && calls_b)
        align_calls(al, calls_a, na, calls_b, nb);
    else
        al->failed = true;
    free(calls_a), free(calls_b);
}

void lb_aligner_match_layers(lb_aligner *al)
{
    const lb_layer_ops *a = &al->ops[0], *b = &al->ops[1];
    lb_alignment *out = al->out;
    for (uint32_t i = 0, j = 0; i < a->n && j < b->n && !al->failed;) {
        const int order = lb_layer_compare(&a->list[i], &b->list[j]);
        const lb_layer_run of_a = lb_layer_run_first(a->list + i, a->n - i),
                           of_b = lb_layer_run_first(b->list + j, b->n - j);
        if (order == 0) align_layer(al, of_a, of_b);
        if (order <= 0) i += of_a.n;
        if (order >= 0) j += of_b.n;
    }
    out->only_a = a->n - out->pairs - out->joins.n, out->only_b = b->n - out->pairs - out->joins.n_part_ops;
}
