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

static lb_status no_memory(search *search)
{
    return lb_fail(search->err, LB_ERR_NOMEM, "out of memory for parameters");
}

/* ---- the parameters, and who computes with whom ------------------------------------------------------------------ */

static bool is_constant(const lb_program *program, const lb_value *value)
{
    if (value->statistics == LB_NONE) return true; /* nothing is known */
    const lb_statistics *statistics = &program->statistics[value->statistics];
    return !(statistics->min < statistics->max);
}

static bool is_held(const lb_program *program, uint32_t value)
{
    uint32_t n;
    const lb_value *v = &program->values[value];
    return v->flags & LB_VALUE_PARAMETER && v->name != LB_NONE && !(v->flags & LB_VALUE_UNDEFINED) &&
           !lb_digest_is_none(v->logical) && lb_dtype_is_float(v->dtype) && !lb_program_shards_of(program, value, &n);
}

static lb_status list_held(search *search, uint32_t rank_row)
{
    const lb_program *program = search->programs[rank_row];
    for (uint32_t i = 0; program && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        const uint32_t value = lb_op_is_source(program, op) && op->results ? *lb_op_results(program, op) : LB_NONE;
        bool known = value == LB_NONE || !is_held(program, value);
        for (uint32_t k = search->first[rank_row]; k < search->n && !known; k++)
            known = search->list[k].storage == program->values[value].storage;
        if (known) continue;
        if (search->n == search->room) {
            const uint32_t room = search->room ? search->room * 2 : 128;
            held *grown = realloc(search->list, room * sizeof *grown);
            if (!grown) return no_memory(search);
            search->list = grown, search->room = room;
        }
        const lb_value *v = &program->values[value];
        search->list[search->n++] = (held){.name = lb_program_text(program, v->name),
                                           .rank_row = rank_row,
                                           .value = value,
                                           .op = i,
                                           .class = LB_NONE,
                                           .storage = v->storage,
                                           .digest = v->logical,
                                           .constant = is_constant(program, v)};
    }
    return LB_OK;
}

static uint32_t row_of(const search *search, int32_t rank)
{
    return lb_rank_steps_row(search->at.ranks, search->at.n_ranks, rank);
}

static void note_exchanges(search *search, uint32_t rank_row)
{
    const lb_program *program = search->programs[rank_row];
    const size_t n = search->at.n_ranks;
    for (uint32_t i = 0; program && i < program->n_collectives; i++) {
        const lb_collective *collective = &program->collectives[i];
        const uint32_t peer = row_of(search, lb_model_ranks_peer(program, collective));
        if (peer != LB_NONE && lb_model_ranks_hand_on(program, collective))
            search->writes[rank_row * n + peer] = search->writes[peer * n + rank_row] = true;
        if (!lb_model_ranks_meet(program, collective)) continue;
        for (uint32_t k = 0; k < collective->ranks; k++) {
            const uint32_t other = row_of(search, (int32_t)program->refs[collective->first_rank + k]);
            if (other != LB_NONE) search->meets[rank_row * n + other] = search->meets[other * n + rank_row] = true;
        }
    }
}

/* Adds `elements` for each member of the group once, by rows. `turns`: the last group that counted it. */
static void add_members(const search *search, const lb_program *program, const lb_collective *collective,
                        double elements, double *sums, uint32_t *turns, uint32_t turn)
{
    for (uint32_t k = 0; k < collective->ranks; k++) {
        const uint32_t row = row_of(search, (int32_t)program->refs[collective->first_rank + k]);
        if (row == LB_NONE || turns[row] == turn) continue;
        turns[row] = turn, sums[row] += elements;
    }
}

/* Elements of gradients that are reduced over this rank and each other, by rows: those of one collective, whose
 * gradients stand beside each other mostly, are added up first. Elements are whole numbers, added in any order. */
static double add_reduced(const search *search, const lb_program *program, const lb_own_gradients *own, double *reduced,
                          uint32_t *turns)
{
    const lb_collective *last = NULL;
    double all = 0, pending = 0;
    uint32_t turn = 0;
    for (uint32_t i = 0; i < own->n; i++) {
        const lb_own_gradient *gradient = &own->list[i];
        const double n = (double)lb_layout_numel(&program->values[own->values[gradient->first]].layout);
        all += n;
        if (!gradient->whole) continue;
        const lb_collective *collective = &program->collectives[gradient->collective];
        if (last && !lb_own_gradient_same_group(program, last, program, collective))
            add_members(search, program, last, pending, reduced, turns, ++turn), pending = 0;
        last = collective, pending += n;
    }
    if (last) add_members(search, program, last, pending, reduced, turns, ++turn);
    return all;
}

/* Tokens that go to the experts of another rank. */
static bool dispatches(const lb_program *program, const lb_collective *collective)
{
    return lb_collective_run_kind(lb_op_name(program, &program->ops[collective->op])) == LB_EXCHANGE_ALL_TO_ALL;
}

static lb_status note_reductions(search *search, uint32_t rank_row)
{
    const lb_program *program = search->programs[rank_row];
    const uint32_t n = search->at.n_ranks;
    lb_own_gradients own;
    if (!program) return LB_OK;
    LB_TRY(lb_own_gradients_find(program, search->flows[rank_row], &own, search->err));
    double *reduced = calloc(n + 1, sizeof *reduced);
    uint32_t *turns = calloc(n + 1, sizeof *turns);
    bool *reduces = &search->reduces[(size_t)rank_row * n];
    if (reduced && turns) {
        const double all = add_reduced(search, program, &own, reduced, turns);
        for (uint32_t r = 0; r < n; r++) reduces[r] = all > 0 && 2 * reduced[r] >= all;
        for (uint32_t i = 0; i < program->n_collectives; i++) {
            const lb_collective *collective = &program->collectives[i];
            for (uint32_t k = 0; dispatches(program, collective) && k < collective->ranks; k++) {
                const uint32_t row = row_of(search, (int32_t)program->refs[collective->first_rank + k]);
                if (row != LB_NONE) reduces[row] = false;
            }
        }
    }
    const lb_status status = reduced && turns ? LB_OK : no_memory(search);
    free(reduced), free(turns);
    lb_own_gradients_release(&own);
    return status;
}

/* What a writes to b and b to c, a computes with c. */
static void close_messages(search *search)
{
    const size_t n = search->at.n_ranks;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; search->writes[i * n + k] && j < n; j++)
                if (search->writes[k * n + j]) search->writes[i * n + j] = true;
}

/* ---- equal numbers ----------------------------------------------------------------------------------------------- */

static void put_together(search *search, held *a, held *b)
{
    if (a->class == LB_NONE) a->class = b->class;
    if (a->class == LB_NONE) a->class = search->out->n_classes++;
    const uint32_t gone = b->class;
    b->class = a->class;
    for (uint32_t i = 0; gone != LB_NONE && gone != a->class && i < search->n; i++)
        if (search->list[i].class == gone) search->list[i].class = a->class;
}

/* How many parameters of its rank hold these very bits: layers that are deep copies of one begin alike. */
static uint32_t alike_on(const search *search, const held *held, uint32_t rank_row)
{
    uint32_t n = 0;
    for (uint32_t i = search->first[rank_row]; i < search->first[rank_row + 1]; i++)
        n += lb_digest_equal(search->list[i].digest, held->digest);
    return n;
}

static bool same_bits(const held *a, const held *b)
{
    return !a->constant && !b->constant && lb_digest_equal(a->digest, b->digest);
}

/* Most of what the ranks hold has the same bits: stages that one seed initialised. */
static uint32_t shared_by(const search *search, uint32_t a, uint32_t b, const held **first, const held **second)
{
    uint32_t shared = 0, own[2] = {0, 0};
    for (uint32_t k = search->first[b]; k < search->first[b + 1]; k++) own[1] += !search->list[k].constant;
    for (uint32_t i = search->first[a]; i < search->first[a + 1]; i++) {
        const held *x = &search->list[i];
        if (x->constant) continue;
        own[0]++;
        for (uint32_t k = search->first[b]; k < search->first[b + 1]; k++) {
            if (!same_bits(x, &search->list[k])) continue;
            if (!shared++) *first = x, *second = &search->list[k];
            break;
        }
    }
    const uint32_t fewer = own[0] < own[1] ? own[0] : own[1];
    return shared && 2 * shared > fewer && (shared > 1 || !strcmp((*first)->name, (*second)->name)) ? shared : 0;
}

static lb_status add_twins(search *search, const held *a, const held *b, uint32_t parameters)
{
    lb_held_twins *grown = realloc(search->out->twins, (search->out->n_twins + 1) * sizeof *grown);
    if (!grown) return no_memory(search);
    search->out->twins = grown;
    grown[search->out->n_twins++] =
        (lb_held_twins){{search->at.ranks[a->rank_row], search->at.ranks[b->rank_row]}, {a->name, b->name}, parameters};
    return LB_OK;
}

/* Experts are each rank's own, also where one seed made them. */
static bool is_expert(const char *name)
{
    return strcasestr(name, "expert") && !strcasestr(name, "shared");
}

static void join_pair(search *search, uint32_t a, uint32_t b)
{
    for (uint32_t i = search->first[a]; i < search->first[a + 1]; i++)
        for (uint32_t k = search->first[b]; k < search->first[b + 1]; k++) {
            held *x = &search->list[i], *y = &search->list[k];
            if (!same_bits(x, y) || is_expert(x->name)) continue;
            if (!strcmp(x->name, y->name) || (alike_on(search, x, a) == 1 && alike_on(search, x, b) == 1))
                put_together(search, x, y);
        }
}

static lb_status join_by_numbers(search *search)
{
    const held *first = NULL, *second = NULL;
    const uint32_t n = search->at.n_ranks;
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = a + 1; b < n; b++) {
            const bool stages = search->writes[a * n + b] && !search->meets[a * n + b];
            const uint32_t twins = stages ? shared_by(search, a, b, &first, &second) : 0;
            if (twins) LB_TRY(add_twins(search, first, second, twins));
            if (twins || (!stages && !search->meets[a * n + b])) continue;
            join_pair(search, a, b);
        }
    return LB_OK;
}

/* ---- constants: what is done with them --------------------------------------------------------------------------- */

/* The k-th op of forward that computes something from this parameter; LB_NONE. */
static uint32_t reader_of(const lb_program *program, const held *held, uint32_t k)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_FORWARD || !lb_op_computes(program, op) || !lb_op_outcomes(op)) continue;
        if (lb_op_reads(program, op, held->storage) != LB_NONE && !k--) return i;
    }
    return LB_NONE;
}

static const lb_value *outcome_of(const lb_program *program, uint32_t op)
{
    const uint32_t value = op == LB_NONE ? LB_NONE : lb_op_outcome(program, &program->ops[op], 0);
    return value == LB_NONE ? NULL : &program->values[value];
}

static bool same_results(const search *search, const held *a, const held *b)
{
    const lb_program *p = search->programs[a->rank_row], *q = search->programs[b->rank_row];
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

static int64_t last_dim(const lb_value *value)
{
    return value->layout.ndim ? value->layout.shape[value->layout.ndim - 1] : 1;
}

/* What leaves the last dimension in its place. */
static bool keeps_last(const lb_program *program, const lb_op *op)
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
    if (op->flags & LB_OP_VIEW) return lb_op_name_among(program, op, turned, 3) < 0;
    return lb_op_name_among(program, op, names, (int)(sizeof names / sizeof *names)) >= 0;
}

/* Are the parts that this op gathers put side by side, along the last dimension, as shards of features are? */
static bool joined_by_columns(const lb_program *program, const lb_slice_flow *flow, uint32_t gather, int64_t last)
{
    static const char *const cat[] = {"aten::cat"};
    for (uint32_t u = flow->first_use[gather]; u < flow->first_use[gather + 1]; u++) {
        const lb_op *op = &program->ops[flow->uses[u]];
        const lb_value *value = outcome_of(program, flow->uses[u]);
        if (value && lb_op_name_among(program, op, cat, 1) >= 0 && last_dim(value) != last) return true;
    }
    return false;
}

/* Its rows, unmixed, reach a gather behind which they lie with the rows of the other ranks. */
static bool reaches_gather(const lb_program *program, const lb_slice_flow *flow, uint32_t reader, int64_t last)
{
    enum { FOLLOWED = 64 };
    uint32_t queue[FOLLOWED] = {reader}, n = 1;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t u = flow->first_use[queue[k]]; u < flow->first_use[queue[k] + 1]; u++) {
            const uint32_t use = flow->uses[u];
            const lb_op *op = &program->ops[use];
            const lb_value *value = outcome_of(program, use);
            bool known = false;
            for (uint32_t t = 0; t < n; t++) known |= queue[t] == use;
            if (known || !value || last_dim(value) != last) continue;
            if (op->flags & LB_OP_COLLECTIVE) {
                if (lb_collective_run_kind(lb_op_name(program, op)) == LB_EXCHANGE_ALL_GATHER &&
                    !joined_by_columns(program, flow, use, last))
                    return true;
                continue;
            }
            if (op->phase == LB_PHASE_FORWARD && keeps_last(program, op) && n < FOLLOWED) queue[n++] = use;
        }
    return false;
}

static bool is_of_heads(const lb_value *value)
{
    return value->layout.ndim >= 4 && value->layout.shape[value->layout.ndim - 2] > 1;
}

/* A norm's weight, whose features every rank has: by what it is applied to. */
static bool norm_is_common(const search *search, const held *held)
{
    const lb_program *program = search->programs[held->rank_row];
    const int64_t n = lb_layout_numel(&program->values[held->value].layout);
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t reader = reader_of(program, held, k);
        const lb_value *value = outcome_of(program, reader);
        if (!value) return false;
        const lb_op *op = &program->ops[reader];
        const bool norm = mentions_norm(lb_op_name(program, op)) || mentions_norm(lb_op_class(program, op)) ||
                          mentions_norm(lb_op_layer(program, op)) || mentions_norm(held->name);
        if (!norm || last_dim(value) != n || program->values[held->value].layout.ndim != 1) continue;
        if (is_of_heads(value) || reaches_gather(program, search->flows[held->rank_row], reader, n)) return true;
    }
    return false;
}

static bool is_of_norm(const search *search, const held *held)
{
    const lb_program *program = search->programs[held->rank_row];
    return mentions_norm(held->name) ||
           mentions_norm(lb_program_text(program, program->scopes[lb_program_owner(program, held->name)].class_name));
}

/* Of two that are equal as the recording begins and bear one name: what is done with them makes them copies. */
static bool used_alike(const search *search, const held *a, const held *b)
{
    const size_t at = (size_t)a->rank_row * search->at.n_ranks + b->rank_row;
    if (search->writes[at]) return false;
    if (search->reduces[at] && !is_expert(a->name) && (!search->meets[at] || is_of_norm(search, a))) return true;
    return search->meets[at] && a->constant &&
           (same_results(search, a, b) || (norm_is_common(search, a) && norm_is_common(search, b)));
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
static bool join_with(search *search, held *a, held *const *others, uint32_t n)
{
    bool all = true;
    for (uint32_t k = 0; k < n; k++) {
        held *b = others[k];
        const bool together = a->class != LB_NONE && a->class == b->class;
        if (!together && b->rank_row > a->rank_row && used_alike(search, a, b)) put_together(search, a, b);
        all &= a->class != LB_NONE && a->class == b->class;
    }
    return all;
}

/* Those of one name and of the same bits lie together when sorted, and are taken up in the order of ranks, for classes
 * have their numbers from the first who come. Once all of them are of one class the rest is known. */
static lb_status join_by_use(search *search)
{
    held **sorted = malloc((search->n + 1) * sizeof *sorted);
    uint32_t *places = malloc((search->n + 1) * sizeof *places), *ends = malloc((search->n + 1) * sizeof *ends);
    bool *done = calloc(search->n + 1, sizeof *done);
    const bool room = sorted && places && ends && done;
    for (uint32_t i = 0; room && i < search->n; i++) sorted[i] = &search->list[i];
    if (room && search->n) qsort(sorted, search->n, sizeof *sorted, by_start);
    for (uint32_t i = search->n; room && i-- > 0;) {
        places[sorted[i] - search->list] = i;
        ends[i] = i + 1 < search->n && starts_alike(sorted[i], sorted[i + 1]) ? ends[i + 1] : i + 1;
    }
    for (uint32_t i = 0; room && i < search->n; i++) {
        const uint32_t at = places[i], end = ends[at];
        if (!done[end]) done[end] = join_with(search, &search->list[i], sorted + at + 1, end - at - 1);
    }
    free(sorted), free(places), free(ends), free(done);
    return room ? LB_OK : no_memory(search);
}

/* ---- chunks of one rank ------------------------------------------------------------------------------------------ */

/* Does a message of this rank stand between the first readers of both? Then they are parts of a model between which
 * others stand. */
static bool message_between(const lb_program *program, const held *a, const held *b)
{
    uint32_t i = reader_of(program, a, 0), k = reader_of(program, b, 0);
    if (i == LB_NONE || k == LB_NONE) return false;
    const uint32_t from = i < k ? i : k, to = i < k ? k : i;
    for (uint32_t c = 0; c < program->n_collectives; c++)
        if (program->collectives[c].op > from && program->collectives[c].op < to &&
            lb_model_ranks_peer(program, &program->collectives[c]) >= 0)
            return true;
    return false;
}

static lb_status find_chunks(search *search, uint32_t rank_row)
{
    const held *first = NULL, *second = NULL;
    uint32_t n = 0;
    for (uint32_t i = search->first[rank_row]; i < search->first[rank_row + 1]; i++)
        for (uint32_t k = i + 1; k < search->first[rank_row + 1]; k++) {
            const held *a = &search->list[i], *b = &search->list[k];
            if (!same_bits(a, b) || !message_between(search->programs[rank_row], a, b)) continue;
            if (!n++) first = a, second = b;
        }
    return n ? add_twins(search, first, second, n) : LB_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static int by_rank_and_name(const void *x, const void *y)
{
    const lb_held_copy *a = x, *b = y;
    if (a->rank_row != b->rank_row) return a->rank_row < b->rank_row ? -1 : 1;
    return strcmp(a->name, b->name);
}

static lb_status hand_over(search *search)
{
    lb_held_copies *out = search->out;
    out->list = calloc(search->n + 1, sizeof *out->list);
    if (!out->list) return no_memory(search);
    for (uint32_t i = 0; i < search->n; i++)
        if (search->list[i].class != LB_NONE)
            out->list[out->n++] = (lb_held_copy){search->list[i].name, search->list[i].rank_row, search->list[i].class};
    if (out->n) qsort(out->list, out->n, sizeof *out->list, by_rank_and_name);
    return LB_OK;
}

static lb_status run(search *search)
{
    const uint32_t n = search->at.n_ranks;
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < n && status == LB_OK; r++) {
        if (lb_capture_program(search->at.capture, search->at.ranks[r], search->out->step, &search->programs[r],
                               NULL) != LB_OK)
            search->programs[r] = NULL;
        if (search->programs[r]) status = lb_slice_flow_new(search->programs[r], &search->flows[r], search->err);
        search->first[r] = search->n;
        if (status == LB_OK) status = list_held(search, r);
        search->first[r + 1] = search->n;
        if (status == LB_OK) note_exchanges(search, r);
    }
    if (status != LB_OK) return status;
    close_messages(search);
    for (uint32_t r = 0; r < n && status == LB_OK; r++) status = note_reductions(search, r);
    if (status == LB_OK) status = join_by_numbers(search);
    if (status == LB_OK) status = join_by_use(search);
    for (uint32_t r = 0; r < n && status == LB_OK; r++)
        if (search->programs[r]) status = find_chunks(search, r);
    return status == LB_OK ? hand_over(search) : status;
}

lb_status lb_held_copies_find(lb_capture *capture, lb_held_copies *copies, lb_err *err)
{
    search search = {.at = lb_rank_steps_of(capture), .out = copies, .err = err};
    const int64_t *steps;
    const size_t n = search.at.n_ranks;
    *copies = (lb_held_copies){0};
    if (n < 2 || !lb_capture_steps(capture, &steps)) return LB_OK;
    copies->step = steps[0];
    search.programs = calloc(n, sizeof *search.programs), search.flows = calloc(n, sizeof *search.flows);
    search.first = calloc(n + 2, sizeof *search.first), search.meets = calloc(n * n, sizeof *search.meets),
    search.writes = calloc(n * n, sizeof *search.writes);
    search.reduces = calloc(n * n, sizeof *search.reduces);
    const lb_status status =
        search.programs && search.flows && search.first && search.meets && search.writes && search.reduces
            ? run(&search)
            : no_memory(&search);
    for (size_t r = 0; search.flows && r < n; r++) lb_slice_flow_free(search.flows[r]);
    free(search.programs), free(search.flows), free(search.list), free(search.first), free(search.meets),
        free(search.writes), free(search.reduces);
    if (status != LB_OK) lb_held_copies_release(copies);
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
