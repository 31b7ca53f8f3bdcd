/* Many ranks, one by one: see diff_many.h. */
#define _GNU_SOURCE /* asprintf */
#include "runs/diff_many.h"

#include "runs/diff_record.h"
#include "runs/diff_steps.h"
#include "runs/exchange_calls.h"
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
    lb_exchange_calls at[2];
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
    const many *many = context;
    lb_diff_options options = *many->session->options;
    lb_diff_session session = *many->session;
    lb_diff_exchanges exchanges = {0};
    lb_diff_half first = {.capture = session.a, .ranks = &many->halves[0]->ranks[unit], .n_ranks = 1};
    lb_diff_half second = {.capture = session.b, .ranks = &many->halves[1]->ranks[unit], .n_ranks = 1};
    options.progress = NULL;
    session.options = &options, session.report = calloc(1, sizeof *session.report), session.quiet = NULL,
    session.shared = 0;
    memset(session.lacks, 0, sizeof session.lacks);
    lb_status status = session.report ? lb_diff_steps_compare(&session, &first, &second, &exchanges, err)
                                      : lb_fail(err, LB_ERR_NOMEM, "out of memory for a rank");
    if (status == LB_OK && session.report->verdict == LB_VERDICT_MISSING) lb_diff_step_say_lacks(&session);
    if (status == LB_OK && session.report->out_of_memory)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for a rank");
    if (status == LB_OK) {
        lb_part_record_u64(record, &session.shared);
        lb_diff_record(record, session.report, &exchanges, session.report);
    }
    lb_diff_report_free(session.report);
    free(exchanges.list);
    drop_rank(session.a, first.ranks[0], unit), drop_rank(session.b, second.ranks[0], unit);
    return status;
}

/* A part says what it says of the rank that it is a record of, and of its partner. */
static void check_rank(const many *many, uint64_t unit, lb_part_record *record)
{
    const rank_result *r = &many->ranks[unit];
    const int32_t rank = many->halves[0]->ranks[unit];
    bool own = (!r->report.has_first || r->report.first.rank == rank) &&
               (!r->report.has_earliest || r->report.earliest.rank == rank);
    for (uint32_t i = 0; i < r->report.n_layers; i++) own &= r->report.layers[i].rank == rank;
    for (uint32_t i = 0; i < r->exchanges.n; i++) own &= r->exchanges.list[i].row.rank == rank;
    if (!own) lb_part_record_refuse(record, "rank", "rows of a rank other than %d", rank);
}

static lb_status fold_rank(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    many *many = context;
    uint64_t shared = 0;
    lb_part_record_u64(record, &shared);
    lb_diff_record(record, &many->ranks[unit].report, &many->ranks[unit].exchanges, many->session->report);
    check_rank(many, unit, record);
    many->shared += shared;
    return record->status;
}

/* ---- which collectives differ ------------------------------------------------------------------------------------ */

static lb_status work_calls(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const many *many = context;
    for (int side = 0; side < 2; side++)
        LB_TRY(lb_exchange_calls_write(many->halves[side]->capture, many->halves[side]->ranks[unit], many->step, record,
                                       err));
    return LB_OK;
}

static lb_status fold_calls(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    many *many = context;
    for (int side = 0; side < 2; side++)
        LB_TRY(lb_exchange_calls_read(record, many->halves[side]->ranks[unit], many->step, &many->at[side].ranks[unit],
                                      err));
    return LB_OK;
}

static lb_status open_step(many *many, lb_err *err)
{
    const lb_parts_loop calls = {"calls", many->n_ranks, work_calls, fold_calls, many};
    for (int side = 0; side < 2; side++) LB_TRY(lb_exchange_calls_open(&many->at[side], many->n_ranks, err));
    LB_TRY(lb_parts_each(many->session->options->parts, &calls, err));
    for (int side = 0; side < 2; side++) LB_TRY(lb_exchange_calls_meet(&many->at[side], err));
    return LB_OK;
}

static int by_exchange(const void *x, const void *y)
{
    const member *a = x, *b = y;
    if (a->exchange != b->exchange) return a->exchange < b->exchange ? -1 : 1;
    return a->rank != b->rank ? (a->rank < b->rank ? -1 : 1) : (a->row > b->row) - (a->row < b->row);
}

static lb_status add_member(many *many, member one, lb_err *err)
{
    member *grown = lb_array_grow(many->members, many->n_members, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    many->members = grown, many->members[many->n_members++] = one;
    return LB_OK;
}

static lb_status add_exchange(many *many, int64_t step, uint32_t first, lb_err *err)
{
    exchange_result *grown = lb_array_grow(many->exchanges, many->n_exchanges, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for collectives");
    many->exchanges = grown;
    many->exchanges[many->n_exchanges++] = (exchange_result){.step = step, .first = first, .why = ""};
    return LB_OK;
}

/* Rows of one step become members of its exchanges; what meets no rank that was recorded is an exchange of one. A
 * member's exchange is first one of the step's, then one of all. */
static lb_status gather_step(many *many, int64_t step, lb_err *err)
{
    const uint32_t before = many->n_members;
    uint32_t lone = many->at[0].all.n;
    for (uint32_t r = 0; r < many->n_ranks; r++)
        for (uint32_t i = 0; i < many->ranks[r].exchanges.n; i++) {
            const lb_diff_row *row = &many->ranks[r].exchanges.list[i].row;
            if (row->step != step) continue;
            const uint32_t found = lb_exchange_calls_find(&many->at[0], row->rank, row->index);
            LB_TRY(add_member(many, (member){r, i, found == LB_NONE ? lone++ : found}, err));
        }
    if (many->n_members > before)
        qsort(many->members + before, many->n_members - before, sizeof *many->members, by_exchange);
    for (uint32_t i = before, last = LB_NONE; i < many->n_members; i++) {
        member *one = &many->members[i];
        if (one->exchange != last) LB_TRY(add_exchange(many, step, i, err));
        last = one->exchange;
        one->exchange = many->n_exchanges - 1;
        many->exchanges[one->exchange].n++;
    }
    return LB_OK;
}

static bool has_rows(const many *many, int64_t step)
{
    for (uint32_t r = 0; r < many->n_ranks; r++)
        for (uint32_t i = 0; i < many->ranks[r].exchanges.n; i++)
            if (many->ranks[r].exchanges.list[i].row.step == step) return true;
    return false;
}

/* ---- what a collective did --------------------------------------------------------------------------------------- */

static const lb_diff_exchange *row_of(const many *many, const member *x)
{
    return &many->ranks[x->rank].exchanges.list[x->row];
}

static bool received_others(const many *many, const exchange_result *x)
{
    bool differs = false;
    for (uint32_t i = 0; i < x->n; i++) differs |= row_of(many, &many->members[x->first + i])->differs;
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
    many *many = context;
    const exchange_result *x = &many->exchanges[many->first_exchange + unit];
    const lb_diff_row *row = &row_of(many, &many->members[x->first])->row;
    const bool asked = received_others(many, x);
    for (int side = 0; side < 2; side++) {
        lb_collective_results results = {0};
        lb_collective_bits bits = {0};
        const uint32_t number = !asked ? LB_NONE
                                : side ? lb_exchange_calls_find(&many->at[1], row->other_rank, row->other)
                                       : lb_exchange_calls_find(&many->at[0], row->rank, row->index);
        if (number != LB_NONE)
            LB_TRY(lb_collective_results_check_one(many->halves[side]->capture, x->step, &many->at[side].all, number,
                                                   &results, &bits, err));
        side_record found = {.known = bits.known, .order = bits.order, .from = -1, .to = -1};
        const lb_collective_finding *first = results.n ? &results.list[0] : NULL;
        if (first) {
            found.message = first->message, found.from = first->from, found.to = first->to;
            found.ranks = first->ranks, found.n_ranks = first->n_ranks;
        }
        found_record(record, &found);
        lb_collective_results_release(&results);
        if (asked && unit % SOME == SOME - 1) lb_capture_unload(many->halves[side]->capture);
    }
    return LB_OK;
}

/* "rank 7", "ranks 3, 5 and 2 more"; "": none brought different numbers. */
static void name_givers(const many *many, const exchange_result *x, char *text, size_t size)
{
    enum { SHOWN = 4 };
    uint32_t n = 0;
    int at = 0;
    *text = '\0';
    for (uint32_t i = 0; i < x->n; i++) n += row_of(many, &many->members[x->first + i])->given;
    uint32_t shown = 0;
    for (uint32_t i = 0; i < x->n && shown < SHOWN; i++) {
        const lb_diff_exchange *row = row_of(many, &many->members[x->first + i]);
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

static lb_status judge_exchange(many *many, exchange_result *x, const side_record found[2], lb_err *err)
{
    char givers[120], *text = NULL;
    int n = 0;
    name_givers(many, x, givers, sizeof givers);
    const int wrong = found[0].message ? 0 : found[1].message ? 1 : -1;
    x->local = LB_VERDICT_ROUNDING;
    if (!received_others(many, x)) {
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
    x->why = lb_report_keep(many->session->report, text);
    free(text);
    return LB_OK;
}

static lb_status fold_exchange(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    many *many = context;
    exchange_result *x = &many->exchanges[many->first_exchange + unit];
    side_record found[2] = {{0}, {0}};
    x->from = x->to = -1;
    for (int side = 0; side < 2; side++) {
        found_record(record, &found[side]);
        if (found[side].message && (!side || !found[0].message)) x->from = found[side].from, x->to = found[side].to;
    }
    const lb_status status = record->status == LB_OK ? judge_exchange(many, x, found, err) : record->status;
    for (int side = 0; side < 2; side++)
        if (found[side].ranks != x->wrong) free(found[side].ranks);
    return status;
}

/* The collectives of one step, of which something differs. */
static lb_status judge_step(many *many, int64_t step, lb_err *err)
{
    many->step = step, many->first_exchange = many->n_exchanges;
    lb_status status = open_step(many, err);
    if (status == LB_OK) status = gather_step(many, step, err);
    const lb_parts_loop exchanges = {"collective", many->n_exchanges - many->first_exchange, work_exchange,
                                     fold_exchange, many};
    if (status == LB_OK) status = lb_parts_each(many->session->options->parts, &exchanges, err);
    for (int side = 0; side < 2; side++) lb_exchange_calls_release(&many->at[side]);
    return status;
}

static lb_status judge_exchanges(many *many, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(many->halves[0]->capture, &steps);
    for (uint32_t i = 0; i < n; i++)
        if (has_rows(many, steps[i])) LB_TRY(judge_step(many, steps[i], err));
    return LB_OK;
}

/* ---- how bad it is ----------------------------------------------------------------------------------------------- */

/* What a collective hands on is as bad as the worst that its members brought, or as it is itself; and what a rank
 * brings may have come from one before. Verdicts only grow, so that this ends. */
static bool spread_once(many *many)
{
    bool grew = false;
    for (uint32_t i = 0; i < many->n_exchanges; i++) {
        exchange_result *x = &many->exchanges[i];
        lb_verdict handed = lb_verdict_worse(x->handed, x->local);
        for (uint32_t k = 0; k < x->n; k++) {
            const member *who = &many->members[x->first + k];
            const lb_diff_exchange *row = row_of(many, who);
            handed = lb_verdict_worse(handed, row->brought);
            if (row->met) handed = lb_verdict_worse(handed, many->ranks[who->rank].worst[row->met - 1]);
        }
        grew |= lb_verdict_severity(handed) > lb_verdict_severity(x->handed);
        x->handed = handed;
    }
    for (uint32_t i = 0; i < many->n_members; i++) {
        const member *who = &many->members[i];
        lb_verdict *worst = many->ranks[who->rank].worst;
        worst[who->row] = lb_verdict_worse(worst[who->row], many->exchanges[who->exchange].handed);
    }
    for (uint32_t r = 0; r < many->n_ranks; r++)
        for (uint32_t i = 1; i < many->ranks[r].exchanges.n; i++)
            many->ranks[r].worst[i] = lb_verdict_worse(many->ranks[r].worst[i], many->ranks[r].worst[i - 1]);
    return grew;
}

static lb_status spread(many *many, lb_err *err)
{
    for (uint32_t r = 0; r < many->n_ranks; r++) {
        many->ranks[r].worst = calloc(many->ranks[r].exchanges.n + 1, sizeof *many->ranks[r].worst);
        if (!many->ranks[r].worst) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", many->n_ranks);
        for (uint32_t i = 0; i < many->ranks[r].exchanges.n; i++) many->ranks[r].worst[i] = LB_VERDICT_IDENTICAL;
    }
    for (uint32_t i = 0; i < many->n_exchanges; i++) many->exchanges[i].handed = LB_VERDICT_IDENTICAL;
    while (spread_once(many)) {
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

static void offer(lb_diff_report *report, const lb_diff_row *row)
{
    if (row->verdict == LB_VERDICT_IDENTICAL) return;
    if (!report->has_earliest || is_before(row, &report->earliest, false))
        report->earliest = *row, report->has_earliest = true;
    const int worse = lb_verdict_severity(row->verdict) - lb_verdict_severity(report->verdict);
    if (!report->has_first || worse > 0 || (worse == 0 && is_before(row, &report->first, true)))
        report->first = *row, report->has_first = true;
    report->verdict = lb_verdict_worse(report->verdict, row->verdict);
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

static void add_numbers(lb_diff_report *to, const lb_diff_report *report)
{
    to->ops += report->ops, to->identical += report->identical, to->unseen += report->unseen,
        to->rewritten += report->rewritten;
    to->cost.runs += report->cost.runs, to->cost.ops += report->cost.ops, to->exact_runs += report->exact_runs;
    to->recorded_ops += report->recorded_ops, to->sources += report->sources,
        to->sources_identical += report->sources_identical;
    to->n_cuts += report->n_cuts;
    for (int i = 0; i < LB_ULP_BUCKETS; i++) to->ulp_counts[i] += report->ulp_counts[i];
    to->tokens_looked_up |= report->tokens_looked_up, to->tokens_approximate |= report->tokens_approximate;
    for (int k = 0; k < 2; k++) to->lone_writes[k] |= report->lone_writes[k];
    to->untold |= report->untold, to->out_of_memory |= report->out_of_memory;
}

static void add_rank(lb_diff_report *to, rank_result *rank)
{
    lb_diff_report *report = &rank->report;
    if (report->has_first) raise(rank, &report->first), offer(to, &report->first);
    if (report->has_earliest) raise(rank, &report->earliest), offer(to, &report->earliest);
    if (report->has_undecided && (!to->has_undecided || report->undecided_step < to->undecided_step))
        to->has_undecided = true, to->undecided_step = report->undecided_step;
    for (uint32_t i = 0; i < report->n_layers; i++) {
        raise(rank, &report->layers[i]);
        LB_DIFF_APPEND(to, layers, n_layers, report->layers[i]);
    }
    for (uint32_t i = 0; i < report->n_structures; i++)
        LB_DIFF_APPEND(to, structures, n_structures, report->structures[i]);
    for (uint32_t i = 0; i < report->n_missing; i++) lb_report_missing(to, report->missing[i]);
    for (uint32_t i = 0; i < report->n_findings; i++) lb_report_finding(to, report->findings[i]);
    for (uint32_t i = 0; i < report->n_tokens; i++) add_tokens(to, &report->tokens[i]);
    for (uint32_t i = 0; i < report->n_routings; i++) LB_DIFF_APPEND(to, routings, n_routings, report->routings[i]);
    for (uint32_t i = 0; i < report->n_places; i++) lb_report_place(to, &report->places[i]);
    for (uint32_t i = 0; !to->n_map && i < report->n_map; i++) LB_DIFF_APPEND(to, map, n_map, report->map[i]);
    add_numbers(to, report);
}

/* Of a collective in which a rank called something else, or received something else, the others have what follows. */
static bool is_wrong_at(const exchange_result *x, int32_t rank)
{
    bool among = !x->n_wrong;
    for (uint32_t i = 0; i < x->n_wrong; i++) among |= x->wrong[i] == rank;
    return among;
}

/* The row of a layer that this rank has already, or a new one behind its others. */
static void add_exchange_row(many *many, const member *who, const exchange_result *x)
{
    lb_diff_report *to = many->session->report;
    lb_diff_exchange *exchange = &many->ranks[who->rank].exchanges.list[who->row];
    lb_diff_row row = exchange->row;
    row.local = !exchange->differs ? LB_VERDICT_IDENTICAL : is_wrong_at(x, row.rank) ? x->local : LB_VERDICT_ROUNDING;
    row.inherited = lb_verdict_worse(exchange->brought, x->n ? x->handed : LB_VERDICT_IDENTICAL);
    if (!exchange->differs) row.inherited = LB_VERDICT_IDENTICAL;
    row.verdict = lb_verdict_worse(row.local, row.inherited);
    row.why = x->why, row.hop_from = x->from, row.hop_to = x->to;
    lb_report_layer(&many->ranks[who->rank].report, &row);
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

static void put_together(many *many)
{
    for (uint32_t i = 0; i < many->n_members; i++)
        add_exchange_row(many, &many->members[i], &many->exchanges[many->members[i].exchange]);
    for (uint32_t r = 0; r < many->n_ranks; r++) add_rank(many->session->report, &many->ranks[r]);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

lb_status lb_diff_many(lb_diff_session *session, const lb_diff_half *first, const lb_diff_half *second, lb_err *err)
{
    many many = {.session = session, .halves = {first, second}, .n_ranks = first->n_ranks};
    many.ranks = calloc(many.n_ranks + 1, sizeof *many.ranks);
    if (!many.ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", many.n_ranks);
    session->one_by_one = true;
    const lb_parts_loop ranks = {"rank", many.n_ranks, work_rank, fold_rank, &many};
    lb_status status = lb_parts_each(session->options->parts, &ranks, err);
    if (status == LB_OK) status = judge_exchanges(&many, err);
    if (status == LB_OK) status = spread(&many, err);
    if (status == LB_OK) put_together(&many), session->shared += many.shared;
    for (uint32_t r = 0; r < many.n_ranks; r++) release_rank(&many.ranks[r]);
    for (uint32_t i = 0; i < many.n_exchanges; i++) free(many.exchanges[i].wrong);
    free(many.ranks), free(many.exchanges), free(many.members);
    return status;
}
