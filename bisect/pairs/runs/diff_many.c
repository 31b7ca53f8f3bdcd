/* Many ranks, one by one: see diff_many.h. */
#define _GNU_SOURCE /* asprintf */
#include "runs/diff_many.h"

#include "runs/diff_record.h"
#include "runs/diff_steps.h"
#include "exchanges/collective_results.h"
#include "parts/parts_each.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank has shown, once it is folded. */
typedef struct rank_result {
    lb_diff_report report; /* its strings are the whole report's */
    lb_diff_exchanges exchanges;
    lb_verdict *worst; /* per exchange: what came in up to it, at its worst */
} rank_result;

/* A collective in which something differs. */
typedef struct exchange_result {
    int64_t step;
    uint32_t numbers[2];      /* among the exchanges of its step, on either side */
    uint32_t first, n;        /* of members */
    lb_verdict local, handed; /* its own; what it hands on */
    const char *why;
    int32_t from, to;
    int32_t *wrong; /* where its own is diverged: the ranks at which it is */
    uint32_t n_wrong;
} exchange_result;

/* A rank's row of a exchange. */
typedef struct member {
    uint32_t rank, row; /* of ranks[], of its exchanges */
    uint32_t exchange;
} member;

/* An op of a collective, and its exchange. */
typedef struct op_exchange {
    int32_t rank;
    uint32_t op, exchange;
} op_exchange;

/* The calls of all ranks in one step of one side, and what meets there. */
typedef struct step_exchanges {
    lb_collective_extract *ranks;
    bool met;
    lb_collective_meetings all;
    op_exchange *ops; /* by rank and op, so that a step is looked through once */
    uint32_t n_ops;
} step_exchanges;

typedef struct many {
    lb_diff_session *session;
    const lb_diff_half *halves[2];
    uint32_t n_ranks;
    rank_result *ranks;
    exchange_result *exchanges;
    uint32_t n_exchanges;
    member *members; /* of exchanges one behind the other, in order of ranks */
    uint32_t n_members;
    int64_t step; /* the one whose collectives are asked about, and from which exchange on they are */
    uint32_t first_exchange;
    step_exchanges at[2];
    uint64_t shared;
} many;

bool lb_diff_are_many(const lb_diff_half *first, const lb_diff_half *second)
{
    return first->n_ranks == second->n_ranks && first->n_ranks > LB_DIFF_TOGETHER;
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static void release_rank(rank_result *r)
{
    lb_diff_report *p = &r->report;
    free(p->layers), free(p->structures), free(p->missing), free(p->findings), free(p->tokens), free(p->routings);
    free(p->differences), free(p->places), free(p->map);
    free(r->exchanges.list), free(r->worst);
    *r = (rank_result){0};
}

/* What was read of one rank counts no longer, so that a worker's memory does not grow with how many it has done. Bytes
 * that a rank shares may have been read from another's files: now and then all go. */
static void drop_rank(lb_capture *capture, int32_t rank, uint64_t unit)
{
    enum { ALL = 64 };
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(capture, &steps);
    for (uint32_t i = 0; i < n; i++) lb_capture_drop_program(capture, rank, steps[i]);
    lb_capture_unload_rank(capture, rank);
    if (unit % ALL == ALL - 1) lb_capture_unload(capture);
}

static lb_status work_rank(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const many *m = context;
    lb_diff_options options = *m->session->options;
    lb_diff_session s = *m->session;
    lb_diff_exchanges exchanges = {0};
    lb_diff_half first = {.capture = s.a, .ranks = &m->halves[0]->ranks[unit], .n_ranks = 1};
    lb_diff_half second = {.capture = s.b, .ranks = &m->halves[1]->ranks[unit], .n_ranks = 1};
    options.progress = NULL;
    s.options = &options, s.report = calloc(1, sizeof *s.report), s.quiet = NULL, s.shared = 0;
    memset(s.lacks, 0, sizeof s.lacks);
    lb_status status = s.report ? lb_diff_steps_compare(&s, &first, &second, &exchanges, err)
                                : lb_fail(err, LB_ERR_NOMEM, "out of memory for a rank");
    if (status == LB_OK && s.report->verdict == LB_VERDICT_MISSING) lb_diff_step_say_lacks(&s);
    if (status == LB_OK && s.report->out_of_memory) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a rank");
    if (status == LB_OK) {
        lb_part_record_u64(record, &s.shared);
        lb_diff_record(record, s.report, &exchanges, s.report);
    }
    lb_diff_report_free(s.report);
    free(exchanges.list);
    drop_rank(s.a, first.ranks[0], unit), drop_rank(s.b, second.ranks[0], unit);
    return status;
}

/* A part says what it says of the rank that it is a record of, and of its partner. */
static void check_rank(const many *m, uint64_t unit, lb_part_record *record)
{
    const rank_result *r = &m->ranks[unit];
    const int32_t rank = m->halves[0]->ranks[unit];
    bool own = (!r->report.has_first || r->report.first.rank == rank) &&
               (!r->report.has_earliest || r->report.earliest.rank == rank);
    for (uint32_t i = 0; i < r->report.n_layers; i++) own &= r->report.layers[i].rank == rank;
    for (uint32_t i = 0; i < r->exchanges.n; i++) own &= r->exchanges.list[i].row.rank == rank;
    if (!own) lb_part_record_refuse(record, "rank", "rows of a rank other than %d", rank);
}

static lb_status fold_rank(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    many *m = context;
    uint64_t shared = 0;
    lb_part_record_u64(record, &shared);
    lb_diff_record(record, &m->ranks[unit].report, &m->ranks[unit].exchanges, m->session->report);
    check_rank(m, unit, record);
    m->shared += shared;
    return record->status;
}

/* ---- which collectives differ ------------------------------------------------------------------------------------ */

static void release_step(step_exchanges *at, uint32_t n_ranks)
{
    if (at->met) lb_collective_meetings_release(&at->all);
    for (uint32_t r = 0; at->ranks && r < n_ranks; r++) lb_collective_extract_release(&at->ranks[r]);
    free(at->ranks), free(at->ops);
    *at = (step_exchanges){0};
}

static int by_rank_and_op(const void *x, const void *y)
{
    const op_exchange *a = x, *b = y;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return (a->op > b->op) - (a->op < b->op);
}

static lb_status index_step(step_exchanges *at, lb_err *err)
{
    at->ops = calloc(at->all.n_members + 1, sizeof *at->ops);
    if (!at->ops) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    for (uint32_t i = 0; i < at->all.n; i++)
        for (uint32_t k = 0; k < at->all.list[i].n; k++) {
            const lb_collective_member *m = &at->all.list[i].members[k];
            at->ops[at->n_ops++] = (op_exchange){m->program->rank, m->number, i};
        }
    if (at->n_ops) qsort(at->ops, at->n_ops, sizeof *at->ops, by_rank_and_op);
    return LB_OK;
}

/* What a rank called in the step, on both sides. No program is kept for it. */
static lb_status write_calls(lb_capture *capture, int32_t rank, int64_t step, lb_part_record *record, lb_err *err)
{
    const lb_program *whole = NULL;
    lb_collective_extract calls = {0};
    void *bytes = NULL;
    size_t size = 0;
    if (lb_capture_program(capture, rank, step, &whole, NULL) != LB_OK) whole = NULL;
    if (whole) LB_TRY(lb_collective_extract_make(whole, &calls, err));
    lb_status status = whole ? lb_program_encode(calls.program, &bytes, &size, err) : LB_OK;
    uint32_t n = whole ? calls.program->n_ops : 0;
    const void *written = bytes;
    lb_part_record_bytes(record, &written, &size);
    lb_part_record_count(record, &n);
    for (uint32_t i = 0; i < n; i++) lb_part_record_u32(record, &calls.numbers[i]);
    free(bytes);
    lb_collective_extract_release(&calls);
    lb_capture_drop_program(capture, rank, step);
    lb_capture_unload_rank(capture, rank);
    return status;
}

static lb_status read_calls(lb_part_record *record, int32_t rank, int64_t step, lb_collective_extract *calls,
                            lb_err *err)
{
    const void *bytes = NULL;
    size_t size = 0;
    uint32_t n = 0;
    lb_part_record_bytes(record, &bytes, &size);
    lb_err why = LB_ERR_INIT;
    const lb_status decoded =
        record->status == LB_OK && size ? lb_program_decode(bytes, size, &calls->program, &why) : LB_OK;
    if (decoded == LB_ERR_NOMEM) return lb_fail(err, decoded, "%s", why.message);
    if (decoded != LB_OK) lb_part_record_refuse(record, "calls", "%.150s", why.message);
    if (calls->program && (calls->program->rank != rank || calls->program->step != step))
        lb_part_record_refuse(record, "calls", "of another rank or step");
    calls->numbers = lb_part_record_rows(record, NULL, &n, sizeof *calls->numbers);
    for (uint32_t i = 0; i < n; i++) lb_part_record_u32(record, &calls->numbers[i]);
    if (n != (calls->program ? calls->program->n_ops : 0))
        lb_part_record_refuse(record, "calls", "%u numbers of a program of %u ops", n,
                              calls->program ? calls->program->n_ops : 0);
    return record->status;
}

static lb_status work_calls(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const many *m = context;
    for (int side = 0; side < 2; side++)
        LB_TRY(write_calls(m->halves[side]->capture, m->halves[side]->ranks[unit], m->step, record, err));
    return LB_OK;
}

static lb_status fold_calls(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    many *m = context;
    for (int side = 0; side < 2; side++)
        LB_TRY(read_calls(record, m->halves[side]->ranks[unit], m->step, &m->at[side].ranks[unit], err));
    return LB_OK;
}

static lb_status open_step(many *m, lb_err *err)
{
    const lb_parts_loop calls = {"calls", m->n_ranks, work_calls, fold_calls, m};
    for (int side = 0; side < 2; side++) {
        m->at[side].ranks = calloc(m->n_ranks + 1, sizeof *m->at[side].ranks);
        if (!m->at[side].ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", m->n_ranks);
    }
    LB_TRY(lb_parts_each(m->session->options->parts, &calls, err));
    for (int side = 0; side < 2; side++) {
        step_exchanges *at = &m->at[side];
        LB_TRY(lb_collective_meetings_find_extracts(at->ranks, m->n_ranks, &at->all, err));
        at->met = true;
        LB_TRY(index_step(at, err));
    }
    return LB_OK;
}

/* The exchange of the step in which this rank runs this op; LB_NONE. */
static uint32_t exchange_of(const step_exchanges *at, int32_t rank, uint32_t op)
{
    const op_exchange key = {rank, op, 0};
    const op_exchange *found = at->n_ops ? bsearch(&key, at->ops, at->n_ops, sizeof key, by_rank_and_op) : NULL;
    return found ? found->exchange : LB_NONE;
}

static int by_exchange(const void *x, const void *y)
{
    const member *a = x, *b = y;
    if (a->exchange != b->exchange) return a->exchange < b->exchange ? -1 : 1;
    return a->rank != b->rank ? (a->rank < b->rank ? -1 : 1) : (a->row > b->row) - (a->row < b->row);
}

static lb_status add_member(many *m, member one, lb_err *err)
{
    member *grown = lb_array_grow(m->members, m->n_members, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    m->members = grown, m->members[m->n_members++] = one;
    return LB_OK;
}

static lb_status add_exchange(many *m, int64_t step, uint32_t first, lb_err *err)
{
    exchange_result *grown = lb_array_grow(m->exchanges, m->n_exchanges, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    m->exchanges = grown;
    m->exchanges[m->n_exchanges++] = (exchange_result){.step = step, .first = first, .why = ""};
    return LB_OK;
}

/* Rows of one step become members of its exchanges; what meets no rank that was recorded is an exchange of one. A
 * member's exchange is first one of the step's, then one of all. */
static lb_status gather_step(many *m, int64_t step, lb_err *err)
{
    const uint32_t before = m->n_members;
    uint32_t lone = m->at[0].all.n;
    for (uint32_t r = 0; r < m->n_ranks; r++)
        for (uint32_t i = 0; i < m->ranks[r].exchanges.n; i++) {
            const lb_diff_row *row = &m->ranks[r].exchanges.list[i].row;
            if (row->step != step) continue;
            const uint32_t found = exchange_of(&m->at[0], row->rank, row->index);
            LB_TRY(add_member(m, (member){r, i, found == LB_NONE ? lone++ : found}, err));
        }
    if (m->n_members > before) qsort(m->members + before, m->n_members - before, sizeof *m->members, by_exchange);
    for (uint32_t i = before, last = LB_NONE; i < m->n_members; i++) {
        member *one = &m->members[i];
        if (one->exchange != last) LB_TRY(add_exchange(m, step, i, err));
        last = one->exchange;
        one->exchange = m->n_exchanges - 1;
        m->exchanges[one->exchange].n++;
    }
    return LB_OK;
}

static bool has_rows(const many *m, int64_t step)
{
    for (uint32_t r = 0; r < m->n_ranks; r++)
        for (uint32_t i = 0; i < m->ranks[r].exchanges.n; i++)
            if (m->ranks[r].exchanges.list[i].row.step == step) return true;
    return false;
}

/* ---- what a collective did --------------------------------------------------------------------------------------- */

static const lb_diff_exchange *row_of(const many *m, const member *x)
{
    return &m->ranks[x->rank].exchanges.list[x->row];
}

static bool received_others(const many *m, const exchange_result *x)
{
    bool differs = false;
    for (uint32_t i = 0; i < x->n; i++) differs |= row_of(m, &m->members[x->first + i])->differs;
    return differs;
}

/* What one side's bytes say. */
typedef struct side_record {
    bool known;
    const char *order, *message;
    int32_t from, to;
    int32_t *ranks; /* that received what is wrong, or called something else */
    uint32_t n_ranks;
} side_record;

static void found_record(lb_part_record *r, side_record *found)
{
    lb_part_record_bool(r, &found->known);
    lb_part_record_text(r, &found->order), lb_part_record_text(r, &found->message);
    lb_part_record_i32(r, &found->from), lb_part_record_i32(r, &found->to);
    found->ranks = lb_part_record_rows(r, found->ranks, &found->n_ranks, sizeof *found->ranks);
    for (uint32_t i = 0; i < found->n_ranks; i++) lb_part_record_i32(r, &found->ranks[i]);
}

static lb_status work_exchange(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    enum { SOME = 16 }; /* whose bytes, of all ranks, a worker has at a time */
    many *m = context;
    const exchange_result *x = &m->exchanges[m->first_exchange + unit];
    const lb_diff_row *row = &row_of(m, &m->members[x->first])->row;
    const bool asked = received_others(m, x);
    for (int side = 0; side < 2; side++) {
        lb_collective_results results = {0};
        lb_collective_bits bits = {0};
        const uint32_t number = !asked ? LB_NONE
                                : side ? exchange_of(&m->at[1], row->other_rank, row->other)
                                       : exchange_of(&m->at[0], row->rank, row->index);
        if (number != LB_NONE)
            LB_TRY(lb_collective_results_check_one(m->halves[side]->capture, x->step, &m->at[side].all, number,
                                                   &results, &bits, err));
        side_record found = {.known = bits.known, .order = bits.order, .from = -1, .to = -1};
        const lb_collective_finding *first = results.n ? &results.list[0] : NULL;
        if (first) {
            found.message = first->message, found.from = first->from, found.to = first->to;
            found.ranks = first->ranks, found.n_ranks = first->n_ranks;
        }
        found_record(record, &found);
        lb_collective_results_release(&results);
        if (asked && unit % SOME == SOME - 1) lb_capture_unload(m->halves[side]->capture);
    }
    return LB_OK;
}

/* "rank 7", "ranks 3, 5 and 2 more"; "": none brought different numbers. */
static void name_givers(const many *m, const exchange_result *x, char *text, size_t size)
{
    enum { SHOWN = 4 };
    uint32_t n = 0;
    int at = 0;
    *text = '\0';
    for (uint32_t i = 0; i < x->n; i++) n += row_of(m, &m->members[x->first + i])->given;
    uint32_t shown = 0;
    for (uint32_t i = 0; i < x->n && shown < SHOWN; i++) {
        const lb_diff_exchange *row = row_of(m, &m->members[x->first + i]);
        if (!row->given) continue;
        at += snprintf(text + at, size - (size_t)at, "%s%d", shown ? ", " : n == 1 ? "rank " : "ranks ", row->row.rank);
        shown++;
    }
    if (n > SHOWN) snprintf(text + at, size - (size_t)at, " and %u more", n - SHOWN);
}

static bool in_two_orders(const side_record found[2])
{
    return found[0].order && *found[0].order && found[1].order && *found[1].order &&
           strcmp(found[0].order, found[1].order) != 0;
}

static lb_status judge_exchange(many *m, exchange_result *x, const side_record found[2], lb_err *err)
{
    char givers[120], *text = NULL;
    int n = 0;
    name_givers(m, x, givers, sizeof givers);
    const int wrong = found[0].message ? 0 : found[1].message ? 1 : -1;
    x->local = LB_VERDICT_ROUNDING;
    if (!received_others(m, x)) {
        x->local = LB_VERDICT_IDENTICAL;
        n = asprintf(&text, "%s brought other numbers to it, of which nothing was received", givers);
    } else if (wrong >= 0) {
        x->local = LB_VERDICT_DIVERGED;
        x->wrong = found[wrong].ranks, x->n_wrong = found[wrong].n_ranks;
        n = asprintf(&text, "on the %s side %s", wrong ? "second" : "first", found[wrong].message);
    } else if (!found[0].known || !found[1].known) {
        x->local = LB_VERDICT_MISSING;
        n = asprintf(&text, "%s%swhat its members brought to it was not kept", givers,
                     *givers ? " brought other numbers; whether its result follows from them is not known, for " : "");
    } else if (*givers) {
        n = asprintf(&text,
                     "%s brought other numbers to it; on each side its result is one that some order of what was "
                     "brought gives",
                     givers);
    } else if (in_two_orders(found)) {
        x->local = LB_VERDICT_REORDERED;
        n = asprintf(&text,
                     "the same terms in another order: the first side's bits are those of %s, the second's of %s",
                     found[0].order, found[1].order);
    } else {
        n = asprintf(&text, "the same terms in another order: on each side its result is one that some order gives");
    }
    if (n < 0) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a collective");
    x->why = lb_report_keep(m->session->report, text);
    free(text);
    return LB_OK;
}

static lb_status fold_exchange(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    many *m = context;
    exchange_result *x = &m->exchanges[m->first_exchange + unit];
    side_record found[2] = {{0}, {0}};
    x->from = x->to = -1;
    for (int side = 0; side < 2; side++) {
        found_record(record, &found[side]);
        if (found[side].message && (!side || !found[0].message)) x->from = found[side].from, x->to = found[side].to;
    }
    const lb_status status = record->status == LB_OK ? judge_exchange(m, x, found, err) : record->status;
    for (int side = 0; side < 2; side++)
        if (found[side].ranks != x->wrong) free(found[side].ranks);
    return status;
}

/* The collectives of one step, of which something differs. */
static lb_status judge_step(many *m, int64_t step, lb_err *err)
{
    m->step = step, m->first_exchange = m->n_exchanges;
    lb_status status = open_step(m, err);
    if (status == LB_OK) status = gather_step(m, step, err);
    const lb_parts_loop exchanges = {"collective", m->n_exchanges - m->first_exchange, work_exchange, fold_exchange, m};
    if (status == LB_OK) status = lb_parts_each(m->session->options->parts, &exchanges, err);
    for (int side = 0; side < 2; side++) release_step(&m->at[side], m->n_ranks);
    return status;
}

static lb_status judge_exchanges(many *m, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(m->halves[0]->capture, &steps);
    for (uint32_t i = 0; i < n; i++)
        if (has_rows(m, steps[i])) LB_TRY(judge_step(m, steps[i], err));
    return LB_OK;
}

/* ---- how bad it is ----------------------------------------------------------------------------------------------- */

/* What a collective hands on is as bad as the worst that its members brought, or as it is itself; and what a rank
 * brings may have come from one before. Verdicts only grow, so that this ends. */
static bool spread_once(many *m)
{
    bool grew = false;
    for (uint32_t i = 0; i < m->n_exchanges; i++) {
        exchange_result *x = &m->exchanges[i];
        lb_verdict handed = lb_verdict_worse(x->handed, x->local);
        for (uint32_t k = 0; k < x->n; k++) {
            const member *who = &m->members[x->first + k];
            const lb_diff_exchange *row = row_of(m, who);
            handed = lb_verdict_worse(handed, row->brought);
            if (row->met) handed = lb_verdict_worse(handed, m->ranks[who->rank].worst[row->met - 1]);
        }
        grew |= lb_verdict_severity(handed) > lb_verdict_severity(x->handed);
        x->handed = handed;
    }
    for (uint32_t i = 0; i < m->n_members; i++) {
        const member *who = &m->members[i];
        lb_verdict *worst = m->ranks[who->rank].worst;
        worst[who->row] = lb_verdict_worse(worst[who->row], m->exchanges[who->exchange].handed);
    }
    for (uint32_t r = 0; r < m->n_ranks; r++)
        for (uint32_t i = 1; i < m->ranks[r].exchanges.n; i++)
            m->ranks[r].worst[i] = lb_verdict_worse(m->ranks[r].worst[i], m->ranks[r].worst[i - 1]);
    return grew;
}

static lb_status spread(many *m, lb_err *err)
{
    for (uint32_t r = 0; r < m->n_ranks; r++) {
        m->ranks[r].worst = calloc(m->ranks[r].exchanges.n + 1, sizeof *m->ranks[r].worst);
        if (!m->ranks[r].worst) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", m->n_ranks);
        for (uint32_t i = 0; i < m->ranks[r].exchanges.n; i++) m->ranks[r].worst[i] = LB_VERDICT_IDENTICAL;
    }
    for (uint32_t i = 0; i < m->n_exchanges; i++) m->exchanges[i].handed = LB_VERDICT_IDENTICAL;
    while (spread_once(m)) {
    }
    return LB_OK;
}

/* What came into a row by collectives. */
static void raise(const rank_result *r, lb_diff_row *row)
{
    if (row->met && row->met <= r->exchanges.n)
        row->inherited = lb_verdict_worse(row->inherited, r->worst[row->met - 1]);
    row->verdict = lb_verdict_worse(row->local, row->inherited);
}

/* ---- one report -------------------------------------------------------------------------------------------------- */

/* Of rows with the report's verdict the one to name: its own before what is inherited, then the earliest. */
static bool is_before(const lb_diff_row *x, const lb_diff_row *y, bool own)
{
    if (own && (x->local == x->verdict) != (y->local == y->verdict)) return x->local == x->verdict;
    if (own && x->lossy != y->lossy) return x->lossy;
    if (x->step != y->step) return x->step < y->step;
    if (x->order != y->order) return x->order < y->order;
    return x->rank < y->rank;
}

static void offer(lb_diff_report *r, const lb_diff_row *row)
{
    if (row->verdict == LB_VERDICT_IDENTICAL) return;
    if (!r->has_earliest || is_before(row, &r->earliest, false)) r->earliest = *row, r->has_earliest = true;
    const int worse = lb_verdict_severity(row->verdict) - lb_verdict_severity(r->verdict);
    if (!r->has_first || worse > 0 || (worse == 0 && is_before(row, &r->first, true)))
        r->first = *row, r->has_first = true;
    r->verdict = lb_verdict_worse(r->verdict, row->verdict);
}

static void add_tokens(lb_diff_report *to, const lb_diff_tokens *t)
{
    for (uint32_t i = 0; i < to->n_tokens; i++) {
        lb_diff_tokens *sum = &to->tokens[i];
        if (strcmp(sum->kind, t->kind) != 0 || sum->has_targets != t->has_targets) continue;
        sum->count += t->count, sum->k3 += t->k3, sum->kl += t->kl, sum->top1 += t->top1, sum->mean_abs += t->mean_abs;
        if (t->max_abs > sum->max_abs) sum->max_abs = t->max_abs;
        return;
    }
    LB_DIFF_APPEND(to, tokens, n_tokens, *t);
}

static void add_numbers(lb_diff_report *to, const lb_diff_report *r)
{
    to->ops += r->ops, to->identical += r->identical, to->unseen += r->unseen, to->rewritten += r->rewritten;
    to->cost.runs += r->cost.runs, to->cost.ops += r->cost.ops, to->exact_runs += r->exact_runs;
    to->recorded_ops += r->recorded_ops, to->sources += r->sources, to->sources_identical += r->sources_identical;
    to->n_cuts += r->n_cuts;
    for (int i = 0; i < LB_ULP_BUCKETS; i++) to->ulp_counts[i] += r->ulp_counts[i];
    to->tokens_looked_up |= r->tokens_looked_up, to->tokens_approximate |= r->tokens_approximate;
    for (int k = 0; k < 2; k++) to->lone_writes[k] |= r->lone_writes[k];
    to->untold |= r->untold, to->out_of_memory |= r->out_of_memory;
}

static void add_rank(lb_diff_report *to, rank_result *rank)
{
    lb_diff_report *r = &rank->report;
    if (r->has_first) raise(rank, &r->first), offer(to, &r->first);
    if (r->has_earliest) raise(rank, &r->earliest), offer(to, &r->earliest);
    if (r->has_undecided && (!to->has_undecided || r->undecided_step < to->undecided_step))
        to->has_undecided = true, to->undecided_step = r->undecided_step;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        raise(rank, &r->layers[i]);
        LB_DIFF_APPEND(to, layers, n_layers, r->layers[i]);
    }
    for (uint32_t i = 0; i < r->n_structures; i++) LB_DIFF_APPEND(to, structures, n_structures, r->structures[i]);
    for (uint32_t i = 0; i < r->n_missing; i++) lb_report_missing(to, r->missing[i]);
    for (uint32_t i = 0; i < r->n_findings; i++) lb_report_finding(to, r->findings[i]);
    for (uint32_t i = 0; i < r->n_tokens; i++) add_tokens(to, &r->tokens[i]);
    for (uint32_t i = 0; i < r->n_routings; i++) LB_DIFF_APPEND(to, routings, n_routings, r->routings[i]);
    for (uint32_t i = 0; i < r->n_places; i++) lb_report_place(to, &r->places[i]);
    for (uint32_t i = 0; !to->n_map && i < r->n_map; i++) LB_DIFF_APPEND(to, map, n_map, r->map[i]);
    add_numbers(to, r);
}

/* Of a collective in which a rank called something else, or received something else, the others have what follows. */
static bool is_wrong_at(const exchange_result *x, int32_t rank)
{
    bool among = !x->n_wrong;
    for (uint32_t i = 0; i < x->n_wrong; i++) among |= x->wrong[i] == rank;
    return among;
}

/* The row of a layer that this rank has already, or a new one behind its others. */
static void add_exchange_row(many *m, const member *who, const exchange_result *x)
{
    lb_diff_report *to = m->session->report;
    lb_diff_exchange *exchange = &m->ranks[who->rank].exchanges.list[who->row];
    lb_diff_row row = exchange->row;
    row.local = !exchange->differs ? LB_VERDICT_IDENTICAL : is_wrong_at(x, row.rank) ? x->local : LB_VERDICT_ROUNDING;
    row.inherited = lb_verdict_worse(exchange->brought, x->n ? x->handed : LB_VERDICT_IDENTICAL);
    if (!exchange->differs) row.inherited = LB_VERDICT_IDENTICAL;
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    row.why = x->why, row.hop_from = x->from, row.hop_to = x->to;
    lb_report_layer(&m->ranks[who->rank].report, &row);
    offer(to, &row);
    if (row.verdict == LB_VERDICT_MISSING && (!to->has_undecided || row.step < to->undecided_step))
        to->has_undecided = true, to->undecided_step = row.step;
    if (row.local != LB_VERDICT_DIVERGED) return;
    lb_diff_difference d = {
        .row = row, .effect = NAN, .times = 1, .steps = 1, .last_step = row.step, .op_b = row.op, .layer_b = row.layer};
    d.ranks[0] = lb_program_view_rank_bit((uint32_t)row.rank);
    d.ranks[1] = lb_program_view_rank_bit((uint32_t)row.other_rank);
    lb_report_place(to, &d);
}

static void put_together(many *m)
{
    for (uint32_t i = 0; i < m->n_members; i++)
        add_exchange_row(m, &m->members[i], &m->exchanges[m->members[i].exchange]);
    for (uint32_t r = 0; r < m->n_ranks; r++) add_rank(m->session->report, &m->ranks[r]);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

lb_status lb_diff_many(lb_diff_session *s, const lb_diff_half *first, const lb_diff_half *second, lb_err *err)
{
    many m = {.session = s, .halves = {first, second}, .n_ranks = first->n_ranks};
    m.ranks = calloc(m.n_ranks + 1, sizeof *m.ranks);
    if (!m.ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", m.n_ranks);
    s->one_by_one = true;
    const lb_parts_loop ranks = {"rank", m.n_ranks, work_rank, fold_rank, &m};
    lb_status status = lb_parts_each(s->options->parts, &ranks, err);
    if (status == LB_OK) status = judge_exchanges(&m, err);
    if (status == LB_OK) status = spread(&m, err);
    if (status == LB_OK) put_together(&m), s->shared += m.shared;
    for (uint32_t r = 0; r < m.n_ranks; r++) release_rank(&m.ranks[r]);
    for (uint32_t i = 0; i < m.n_exchanges; i++) free(m.exchanges[i].wrong);
    free(m.ranks), free(m.exchanges), free(m.members);
    return status;
}
