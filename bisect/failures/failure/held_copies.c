/* Copies of parameters: see held_copies.h. */
#define _GNU_SOURCE /* strcasestr */
#include "failure/held_copies.h"

#include "failure/model_ranks.h"
#include "pair/op_kind.h"
#include "failure/own_gradient.h"
#include "exchanges/rank_steps.h"
#include "program/slice.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A parameter as the first step finds it. */
typedef struct held {
    const char *name;
    uint32_t rank_row, value, op, class; /* `op`: its source */
    int64_t storage;
    lb_digest digest;
    bool constant; /* all elements are one number */
} held;

typedef struct search {
    lb_rank_steps at;
    const lb_program **programs; /* of the first step */
    lb_slice_flow **flows;
    held *list; /* by ranks: those of rank row r are [first[r], first[r + 1]) */
    uint32_t n, room, *first;
    bool *meets, *writes; /* ranks x ranks: activations are exchanged; messages */
    bool *reduces; /* the same: most of the gradients are reduced over both, and nothing is dispatched between them */
    lb_held_copies *out;
    lb_err *err;
} search;

static lb_status no_memory(search *s)
{
    return lb_fail(s->err, LB_ERR_NOMEM, "out of memory for parameters");
}

/* ---- the parameters, and who computes with whom ------------------------------------------------------------------ */

static bool is_constant(const lb_program *p, const lb_value *v)
{
    if (v->statistics == LB_NONE) return true; /* nothing is known */
    const lb_statistics *s = &p->statistics[v->statistics];
    return !(s->min < s->max);
}

static bool is_held(const lb_program *p, uint32_t value)
{
    uint32_t n;
    const lb_value *v = &p->values[value];
    return v->flags & LB_VALUE_PARAMETER && v->name != LB_NONE && !(v->flags & LB_VALUE_UNDEFINED) &&
           !lb_digest_is_none(v->logical) && lb_dtype_is_float(v->dtype) && !lb_program_shards_of(p, value, &n);
}

static lb_status list_held(search *s, uint32_t rank_row)
{
    const lb_program *p = s->programs[rank_row];
    for (uint32_t i = 0; p && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        const uint32_t value = lb_op_is_source(p, op) && op->results ? *lb_op_results(p, op) : LB_NONE;
        bool known = value == LB_NONE || !is_held(p, value);
        for (uint32_t k = s->first[rank_row]; k < s->n && !known; k++)
            known = s->list[k].storage == p->values[value].storage;
        if (known) continue;
        if (s->n == s->room) {
            const uint32_t room = s->room ? s->room * 2 : 128;
            held *grown = realloc(s->list, room * sizeof *grown);
            if (!grown) return no_memory(s);
            s->list = grown, s->room = room;
        }
        const lb_value *v = &p->values[value];
        s->list[s->n++] = (held){.name = lb_program_text(p, v->name),
                                 .rank_row = rank_row,
                                 .value = value,
                                 .op = i,
                                 .class = LB_NONE,
                                 .storage = v->storage,
                                 .digest = v->logical,
                                 .constant = is_constant(p, v)};
    }
    return LB_OK;
}

static uint32_t row_of(const search *s, int32_t rank)
{
    return lb_rank_steps_row(s->at.ranks, s->at.n_ranks, rank);
}

static void note_exchanges(search *s, uint32_t rank_row)
{
    const lb_program *p = s->programs[rank_row];
    const size_t n = s->at.n_ranks;
    for (uint32_t i = 0; p && i < p->n_collectives; i++) {
        const lb_collective *c = &p->collectives[i];
        const uint32_t peer = row_of(s, lb_model_ranks_peer(p, c));
        if (peer != LB_NONE && lb_model_ranks_hand_on(p, c))
            s->writes[rank_row * n + peer] = s->writes[peer * n + rank_row] = true;
        if (!lb_model_ranks_meet(p, c)) continue;
        for (uint32_t k = 0; k < c->ranks; k++) {
            const uint32_t other = row_of(s, (int32_t)p->refs[c->first_rank + k]);
            if (other != LB_NONE) s->meets[rank_row * n + other] = s->meets[other * n + rank_row] = true;
        }
    }
}

/* Adds `elements` for each member of the group once, by rows. `turns`: the last group that counted it. */
static void add_members(const search *s, const lb_program *p, const lb_collective *c, double elements, double *sums,
                        uint32_t *turns, uint32_t turn)
{
    for (uint32_t k = 0; k < c->ranks; k++) {
        const uint32_t row = row_of(s, (int32_t)p->refs[c->first_rank + k]);
        if (row == LB_NONE || turns[row] == turn) continue;
        turns[row] = turn, sums[row] += elements;
    }
}

/* Elements of gradients that are reduced over this rank and each other, by rows: those of one collective, whose
 * gradients stand beside each other mostly, are added up first. Elements are whole numbers, added in any order. */
static double add_reduced(const search *s, const lb_program *p, const lb_own_gradients *own, double *reduced,
                          uint32_t *turns)
{
    const lb_collective *last = NULL;
    double all = 0, pending = 0;
    uint32_t turn = 0;
    for (uint32_t i = 0; i < own->n; i++) {
        const lb_own_gradient *g = &own->list[i];
        const double n = (double)lb_layout_numel(&p->values[own->values[g->first]].layout);
        all += n;
        if (!g->whole) continue;
        const lb_collective *c = &p->collectives[g->collective];
        if (last && !lb_own_gradient_same_group(p, last, p, c))
            add_members(s, p, last, pending, reduced, turns, ++turn), pending = 0;
        last = c, pending += n;
    }
    if (last) add_members(s, p, last, pending, reduced, turns, ++turn);
    return all;
}

/* Tokens that go to the experts of another rank. */
static bool dispatches(const lb_program *p, const lb_collective *c)
{
    return lb_collective_run_kind(lb_op_name(p, &p->ops[c->op])) == LB_EXCHANGE_ALL_TO_ALL;
}

static lb_status note_reductions(search *s, uint32_t rank_row)
{
    const lb_program *p = s->programs[rank_row];
    const uint32_t n = s->at.n_ranks;
    lb_own_gradients own;
    if (!p) return LB_OK;
    LB_TRY(lb_own_gradients_find(p, s->flows[rank_row], &own, s->err));
    double *reduced = calloc(n + 1, sizeof *reduced);
    uint32_t *turns = calloc(n + 1, sizeof *turns);
    bool *reduces = &s->reduces[(size_t)rank_row * n];
    if (reduced && turns) {
        const double all = add_reduced(s, p, &own, reduced, turns);
        for (uint32_t r = 0; r < n; r++) reduces[r] = all > 0 && 2 * reduced[r] >= all;
        for (uint32_t i = 0; i < p->n_collectives; i++) {
            const lb_collective *c = &p->collectives[i];
            for (uint32_t k = 0; dispatches(p, c) && k < c->ranks; k++) {
                const uint32_t row = row_of(s, (int32_t)p->refs[c->first_rank + k]);
                if (row != LB_NONE) reduces[row] = false;
            }
        }
    }
    const lb_status status = reduced && turns ? LB_OK : no_memory(s);
    free(reduced), free(turns);
    lb_own_gradients_release(&own);
    return status;
}

/* What a writes to b and b to c, a computes with c. */
static void close_messages(search *s)
{
    const size_t n = s->at.n_ranks;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; s->writes[i * n + k] && j < n; j++)
                if (s->writes[k * n + j]) s->writes[i * n + j] = true;
}

/* ---- equal numbers ----------------------------------------------------------------------------------------------- */

static void put_together(search *s, held *a, held *b)
{
    if (a->class == LB_NONE) a->class = b->class;
    if (a->class == LB_NONE) a->class = s->out->n_classes++;
    const uint32_t gone = b->class;
    b->class = a->class;
    for (uint32_t i = 0; gone != LB_NONE && gone != a->class && i < s->n; i++)
        if (s->list[i].class == gone) s->list[i].class = a->class;
}

/* How many parameters of its rank hold these very bits: layers that are deep copies of one begin alike. */
static uint32_t alike_on(const search *s, const held *h, uint32_t rank_row)
{
    uint32_t n = 0;
    for (uint32_t i = s->first[rank_row]; i < s->first[rank_row + 1]; i++)
        n += lb_digest_equal(s->list[i].digest, h->digest);
    return n;
}

static bool same_bits(const held *a, const held *b)
{
    return !a->constant && !b->constant && lb_digest_equal(a->digest, b->digest);
}

/* Most of what the ranks hold has the same bits: stages that one seed initialised. */
static uint32_t shared_by(const search *s, uint32_t a, uint32_t b, const held **first, const held **second)
{
    uint32_t shared = 0, own[2] = {0, 0};
    for (uint32_t k = s->first[b]; k < s->first[b + 1]; k++) own[1] += !s->list[k].constant;
    for (uint32_t i = s->first[a]; i < s->first[a + 1]; i++) {
        const held *x = &s->list[i];
        if (x->constant) continue;
        own[0]++;
        for (uint32_t k = s->first[b]; k < s->first[b + 1]; k++) {
            if (!same_bits(x, &s->list[k])) continue;
            if (!shared++) *first = x, *second = &s->list[k];
            break;
        }
    }
    const uint32_t fewer = own[0] < own[1] ? own[0] : own[1];
    return shared && 2 * shared > fewer && (shared > 1 || !strcmp((*first)->name, (*second)->name)) ? shared : 0;
}

static lb_status add_twins(search *s, const held *a, const held *b, uint32_t parameters)
{
    lb_held_twins *grown = realloc(s->out->twins, (s->out->n_twins + 1) * sizeof *grown);
    if (!grown) return no_memory(s);
    s->out->twins = grown;
    grown[s->out->n_twins++] =
        (lb_held_twins){{s->at.ranks[a->rank_row], s->at.ranks[b->rank_row]}, {a->name, b->name}, parameters};
    return LB_OK;
}

/* Experts are each rank's own, also where one seed made them. */
static bool is_expert(const char *name)
{
    return strcasestr(name, "expert") && !strcasestr(name, "shared");
}

static void join_pair(search *s, uint32_t a, uint32_t b)
{
    for (uint32_t i = s->first[a]; i < s->first[a + 1]; i++)
        for (uint32_t k = s->first[b]; k < s->first[b + 1]; k++) {
            held *x = &s->list[i], *y = &s->list[k];
            if (!same_bits(x, y) || is_expert(x->name)) continue;
            if (!strcmp(x->name, y->name) || (alike_on(s, x, a) == 1 && alike_on(s, x, b) == 1)) put_together(s, x, y);
        }
}

static lb_status join_by_numbers(search *s)
{
    const held *first = NULL, *second = NULL;
    const uint32_t n = s->at.n_ranks;
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = a + 1; b < n; b++) {
            const bool stages = s->writes[a * n + b] && !s->meets[a * n + b];
            const uint32_t twins = stages ? shared_by(s, a, b, &first, &second) : 0;
            if (twins) LB_TRY(add_twins(s, first, second, twins));
            if (twins || (!stages && !s->meets[a * n + b])) continue;
            join_pair(s, a, b);
        }
    return LB_OK;
}

/* ---- constants: what is done with them --------------------------------------------------------------------------- */

/* The k-th op of forward that computes something from this parameter; LB_NONE. */
static uint32_t reader_of(const lb_program *p, const held *h, uint32_t k)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->phase != LB_PHASE_FORWARD || !lb_op_computes(p, op) || !lb_op_outcomes(op)) continue;
        if (lb_op_reads(p, op, h->storage) != LB_NONE && !k--) return i;
    }
    return LB_NONE;
}

static const lb_value *outcome_of(const lb_program *p, uint32_t op)
{
    const uint32_t value = op == LB_NONE ? LB_NONE : lb_op_outcome(p, &p->ops[op], 0);
    return value == LB_NONE ? NULL : &p->values[value];
}

static bool same_results(const search *s, const held *a, const held *b)
{
    const lb_program *p = s->programs[a->rank_row], *q = s->programs[b->rank_row];
    const uint32_t i = reader_of(p, a, 0), k = reader_of(q, b, 0);
    const lb_value *x = outcome_of(p, i), *y = outcome_of(q, k);
    return x && y && !strcmp(lb_op_name(p, &p->ops[i]), lb_op_name(q, &q->ops[k])) && !is_constant(p, x) &&
           !lb_digest_is_none(x->logical) && lb_digest_equal(x->logical, y->logical);
}

static bool mentions_norm(const char *text)
{
    for (; *text; text++)
        if (!strncasecmp(text, "norm", 4)) return true;
    return false;
}

static int64_t last_dim(const lb_value *v)
{
    return v->layout.ndim ? v->layout.shape[v->layout.ndim - 1] : 1;
}

/* What leaves the last dimension in its place. */
static bool keeps_last(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::add",      "aten::sub",
                                        "aten::mul",      "aten::div",
                                        "aten::gelu",     "aten::relu",
                                        "aten::silu",     "aten::native_dropout",
                                        "aten::_to_copy", "aten::clone",
                                        "aten::copy_",    "aten::contiguous",
                                        "aten::add_",     "aten::mul_",
                                        "aten::div_",     "aten::native_layer_norm",
                                        "aten::rms_norm", "aten::_fused_rms_norm"};
    static const char *const turned[] = {"aten::t", "aten::permute", "aten::mT"};
    if (op->flags & LB_OP_VIEW) return lb_op_name_among(p, op, turned, 3) < 0;
    return lb_op_name_among(p, op, names, (int)(sizeof names / sizeof *names)) >= 0;
}

/* Are the parts that this op gathers put side by side, along the last dimension, as shards of features are? */
static bool joined_by_columns(const lb_program *p, const lb_slice_flow *flow, uint32_t gather, int64_t last)
{
    static const char *const cat[] = {"aten::cat"};
    for (uint32_t u = flow->first_use[gather]; u < flow->first_use[gather + 1]; u++) {
        const lb_op *op = &p->ops[flow->uses[u]];
        const lb_value *v = outcome_of(p, flow->uses[u]);
        if (v && lb_op_name_among(p, op, cat, 1) >= 0 && last_dim(v) != last) return true;
    }
    return false;
}

/* Its rows, unmixed, reach a gather behind which they lie with the rows of the other ranks. */
static bool reaches_gather(const lb_program *p, const lb_slice_flow *flow, uint32_t reader, int64_t last)
{
    enum { FOLLOWED = 64 };
    uint32_t queue[FOLLOWED] = {reader}, n = 1;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t u = flow->first_use[queue[k]]; u < flow->first_use[queue[k] + 1]; u++) {
            const uint32_t use = flow->uses[u];
            const lb_op *op = &p->ops[use];
            const lb_value *v = outcome_of(p, use);
            bool known = false;
            for (uint32_t t = 0; t < n; t++) known |= queue[t] == use;
            if (known || !v || last_dim(v) != last) continue;
            if (op->flags & LB_OP_COLLECTIVE) {
                if (lb_collective_run_kind(lb_op_name(p, op)) == LB_EXCHANGE_ALL_GATHER &&
                    !joined_by_columns(p, flow, use, last))
                    return true;
                continue;
            }
            if (op->phase == LB_PHASE_FORWARD && keeps_last(p, op) && n < FOLLOWED) queue[n++] = use;
        }
    return false;
}

static bool is_of_heads(const lb_value *v)
{
    return v->layout.ndim >= 4 && v->layout.shape[v->layout.ndim - 2] > 1;
}

/* A norm's weight, whose features every rank has: by what it is applied to. */
static bool norm_is_common(const search *s, const held *h)
{
    const lb_program *p = s->programs[h->rank_row];
    const int64_t n = lb_layout_numel(&p->values[h->value].layout);
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t reader = reader_of(p, h, k);
        const lb_value *v = outcome_of(p, reader);
        if (!v) return false;
        const lb_op *op = &p->ops[reader];
        const bool norm = mentions_norm(lb_op_name(p, op)) || mentions_norm(lb_op_class(p, op)) ||
                          mentions_norm(lb_op_layer(p, op)) || mentions_norm(h->name);
        if (!norm || last_dim(v) != n || p->values[h->value].layout.ndim != 1) continue;
        if (is_of_heads(v) || reaches_gather(p, s->flows[h->rank_row], reader, n)) return true;
    }
    return false;
}

static bool is_of_norm(const search *s, const held *h)
{
    const lb_program *p = s->programs[h->rank_row];
    return mentions_norm(h->name) ||
           mentions_norm(lb_program_text(p, p->scopes[lb_program_owner(p, h->name)].class_name));
}

/* Of two that are equal as the recording begins and bear one name: what is done with them makes them copies. */
static bool used_alike(const search *s, const held *a, const held *b)
{
    const size_t at = (size_t)a->rank_row * s->at.n_ranks + b->rank_row;
    if (s->writes[at]) return false;
    if (s->reduces[at] && !is_expert(a->name) && (!s->meets[at] || is_of_norm(s, a))) return true;
    return s->meets[at] && a->constant && (same_results(s, a, b) || (norm_is_common(s, a) && norm_is_common(s, b)));
}

static int by_start(const void *x, const void *y)
{
    const held *a = *(held *const *)x, *b = *(held *const *)y;
    const int names = strcmp(a->name, b->name);
    if (names) return names;
    if (a->digest.hi != b->digest.hi) return a->digest.hi < b->digest.hi ? -1 : 1;
    if (a->digest.lo != b->digest.lo) return a->digest.lo < b->digest.lo ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool starts_alike(const held *a, const held *b)
{
    return !strcmp(a->name, b->name) && lb_digest_equal(a->digest, b->digest);
}

/* Puts `a` together with those of later ranks. All that were put together already need no further question. */
static bool join_with(search *s, held *a, held *const *others, uint32_t n)
{
    bool all = true;
    for (uint32_t k = 0; k < n; k++) {
        held *b = others[k];
        const bool together = a->class != LB_NONE && a->class == b->class;
        if (!together && b->rank_row > a->rank_row && used_alike(s, a, b)) put_together(s, a, b);
        all &= a->class != LB_NONE && a->class == b->class;
    }
    return all;
}

/* Those of one name and of the same bits lie together when sorted, and are taken up in the order of ranks, for classes
 * have their numbers from the first who come. Once all of them are of one class the rest is known. */
static lb_status join_by_use(search *s)
{
    held **sorted = malloc((s->n + 1) * sizeof *sorted);
    uint32_t *places = malloc((s->n + 1) * sizeof *places), *ends = malloc((s->n + 1) * sizeof *ends);
    bool *done = calloc(s->n + 1, sizeof *done);
    const bool room = sorted && places && ends && done;
    for (uint32_t i = 0; room && i < s->n; i++) sorted[i] = &s->list[i];
    if (room && s->n) qsort(sorted, s->n, sizeof *sorted, by_start);
    for (uint32_t i = s->n; room && i-- > 0;) {
        places[sorted[i] - s->list] = i;
        ends[i] = i + 1 < s->n && starts_alike(sorted[i], sorted[i + 1]) ? ends[i + 1] : i + 1;
    }
    for (uint32_t i = 0; room && i < s->n; i++) {
        const uint32_t at = places[i], end = ends[at];
        if (!done[end]) done[end] = join_with(s, &s->list[i], sorted + at + 1, end - at - 1);
    }
    free(sorted), free(places), free(ends), free(done);
    return room ? LB_OK : no_memory(s);
}

/* ---- chunks of one rank ------------------------------------------------------------------------------------------ */

/* Does a message of this rank stand between the first readers of both? Then they are parts of a model between which
 * others stand. */
static bool message_between(const lb_program *p, const held *a, const held *b)
{
    uint32_t i = reader_of(p, a, 0), k = reader_of(p, b, 0);
    if (i == LB_NONE || k == LB_NONE) return false;
    const uint32_t from = i < k ? i : k, to = i < k ? k : i;
    for (uint32_t c = 0; c < p->n_collectives; c++)
        if (p->collectives[c].op > from && p->collectives[c].op < to && lb_model_ranks_peer(p, &p->collectives[c]) >= 0)
            return true;
    return false;
}

static lb_status find_chunks(search *s, uint32_t rank_row)
{
    const held *first = NULL, *second = NULL;
    uint32_t n = 0;
    for (uint32_t i = s->first[rank_row]; i < s->first[rank_row + 1]; i++)
        for (uint32_t k = i + 1; k < s->first[rank_row + 1]; k++) {
            const held *a = &s->list[i], *b = &s->list[k];
            if (!same_bits(a, b) || !message_between(s->programs[rank_row], a, b)) continue;
            if (!n++) first = a, second = b;
        }
    return n ? add_twins(s, first, second, n) : LB_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static int by_rank_and_name(const void *x, const void *y)
{
    const lb_held_copy *a = x, *b = y;
    if (a->rank_row != b->rank_row) return a->rank_row < b->rank_row ? -1 : 1;
    return strcmp(a->name, b->name);
}

static lb_status hand_over(search *s)
{
    lb_held_copies *out = s->out;
    out->list = calloc(s->n + 1, sizeof *out->list);
    if (!out->list) return no_memory(s);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->list[i].class != LB_NONE)
            out->list[out->n++] = (lb_held_copy){s->list[i].name, s->list[i].rank_row, s->list[i].class};
    if (out->n) qsort(out->list, out->n, sizeof *out->list, by_rank_and_name);
    return LB_OK;
}

static lb_status run(search *s)
{
    const uint32_t n = s->at.n_ranks;
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < n && status == LB_OK; r++) {
        if (lb_capture_program(s->at.capture, s->at.ranks[r], s->out->step, &s->programs[r], NULL) != LB_OK)
            s->programs[r] = NULL;
        if (s->programs[r]) status = lb_slice_flow_new(s->programs[r], &s->flows[r], s->err);
        s->first[r] = s->n;
        if (status == LB_OK) status = list_held(s, r);
        s->first[r + 1] = s->n;
        if (status == LB_OK) note_exchanges(s, r);
    }
    if (status != LB_OK) return status;
    close_messages(s);
    for (uint32_t r = 0; r < n && status == LB_OK; r++) status = note_reductions(s, r);
    if (status == LB_OK) status = join_by_numbers(s);
    if (status == LB_OK) status = join_by_use(s);
    for (uint32_t r = 0; r < n && status == LB_OK; r++)
        if (s->programs[r]) status = find_chunks(s, r);
    return status == LB_OK ? hand_over(s) : status;
}

lb_status lb_held_copies_find(lb_capture *capture, lb_held_copies *out, lb_err *err)
{
    search s = {.at = lb_rank_steps_of(capture), .out = out, .err = err};
    const int64_t *steps;
    const size_t n = s.at.n_ranks;
    *out = (lb_held_copies){0};
    if (n < 2 || !lb_capture_steps(capture, &steps)) return LB_OK;
    out->step = steps[0];
    s.programs = calloc(n, sizeof *s.programs), s.flows = calloc(n, sizeof *s.flows);
    s.first = calloc(n + 2, sizeof *s.first), s.meets = calloc(n * n, sizeof *s.meets),
    s.writes = calloc(n * n, sizeof *s.writes);
    s.reduces = calloc(n * n, sizeof *s.reduces);
    const lb_status status =
        s.programs && s.flows && s.first && s.meets && s.writes && s.reduces ? run(&s) : no_memory(&s);
    for (size_t r = 0; s.flows && r < n; r++) lb_slice_flow_free(s.flows[r]);
    free(s.programs), free(s.flows), free(s.list), free(s.first), free(s.meets), free(s.writes), free(s.reduces);
    if (status != LB_OK) lb_held_copies_release(out);
    return status;
}

void lb_held_copies_release(lb_held_copies *copies)
{
    free(copies->list), free(copies->twins);
    *copies = (lb_held_copies){0};
}

uint32_t lb_held_copies_class(const lb_held_copies *copies, uint32_t rank_row, const char *name)
{
    const lb_held_copy wanted = {name, rank_row, 0};
    const lb_held_copy *found =
        copies->n ? bsearch(&wanted, copies->list, copies->n, sizeof wanted, by_rank_and_name) : NULL;
    return found ? found->class : LB_NONE;
}
