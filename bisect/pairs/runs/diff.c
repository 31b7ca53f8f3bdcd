/* Diff of two captures: see lastbit/diff.h for the three questions.
 *
 * Per aligned step and rank: digests are compared op by op; only if something differs are both sides replayed
 * (shadow_pair.h); then one walk over A's program spreads the answers (diff_walk.h).
 */
#include "runs/diff_many.h"
#include "contents/content_map.h"
#include "runs/diff_implementations.h"
#include "runs/diff_orders.h"
#include "runs/diff_steps.h"
#include "diff/diff_tokens.h"
#include "sources/strangers.h"
#include "program/input_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool holds_world(lb_capture *capture, const int32_t *ranks, uint32_t n, int32_t *world)
{
    const int64_t *steps;
    const lb_program *p;
    if (!n || !lb_capture_steps(capture, &steps)) return false;
    if (lb_capture_program(capture, ranks[0], steps[0], &p, NULL) != LB_OK) return false;
    *world = p->world > 0 ? p->world : 1;
    return (uint32_t)*world == n;
}

static bool communicates(lb_capture *capture, int32_t rank)
{
    const int64_t *steps;
    const lb_program *p;
    return lb_capture_steps(capture, &steps) && lb_capture_program(capture, rank, steps[0], &p, NULL) == LB_OK &&
           p->n_collectives;
}

/* All ranks of a run against all of one that has several times as many: each rank, or the one process, is compared with
 * that many of the other side put together. Of as many ranks, each is compared with its own, and what a collective
 * gives to one with what all brought. */
static bool are_taken_together(const lb_diff_session *session, const lb_diff_half *first, const lb_diff_half *second)
{
    int32_t world_a, world_b;
    const uint32_t few = first->n_ranks < second->n_ranks ? first->n_ranks : second->n_ranks,
                   many = first->n_ranks < second->n_ranks ? second->n_ranks : first->n_ranks;
    if (!few || many % few || many == 1 || !holds_world(session->a, first->ranks, first->n_ranks, &world_a) ||
        !holds_world(session->b, second->ranks, second->n_ranks, &world_b))
        return false;
    return few != many || communicates(session->a, first->ranks[0]);
}

static lb_status diff_ranks(lb_diff_session *session, lb_err *err)
{
    lb_diff_half all_a = {.capture = session->a}, all_b = {.capture = session->b};
    all_a.n_ranks = lb_capture_ranks(session->a, &all_a.ranks),
    all_b.n_ranks = lb_capture_ranks(session->b, &all_b.ranks);
    if (are_taken_together(session, &all_a, &all_b))
        return lb_diff_are_many(&all_a, &all_b) ? lb_diff_many(session, &all_a, &all_b, err)
                                                : lb_diff_steps_compare(session, &all_a, &all_b, NULL, err);
    for (uint32_t i = 0; i < all_a.n_ranks; i++) {
        lb_diff_half first = {.capture = session->a, .ranks = &all_a.ranks[i], .n_ranks = 1};
        lb_diff_half second = {.capture = session->b, .ranks = first.ranks, .n_ranks = 1};
        uint32_t j = 0;
        while (j < all_b.n_ranks && all_b.ranks[j] != all_a.ranks[i]) j++;
        if (j < all_b.n_ranks) {
            LB_TRY(lb_diff_steps_compare(session, &first, &second, NULL, err));
        } else {
            char text[80];
            snprintf(text, sizeof text, "rank %d was captured on the first side only", all_a.ranks[i]);
            lb_report_missing(session->report, text);
        }
    }
    return LB_OK;
}

/* ---- by aligned ops, or by values ---- */

/* Ops without a partner: the sides spell something differently. */
static bool is_spelled_differently(const lb_diff_report *r)
{
    for (uint32_t i = 0; i < r->n_structures; i++) {
        const lb_phase phase = r->structures[i].phase;
        if (phase == LB_PHASE_FORWARD || phase == LB_PHASE_BACKWARD || phase == LB_PHASE_OPTIMIZER) return true;
    }
    return false;
}

/* What the other report knows of tokens and routing goes with the answer. */
static void take_over(lb_diff_report *to, lb_diff_report *from)
{
    to->tokens = from->tokens, to->n_tokens = from->n_tokens, to->tokens_approximate = from->tokens_approximate;
    to->routings = from->routings, to->n_routings = from->n_routings;
    for (uint32_t i = 0; i < to->n_tokens; i++) to->tokens[i].kind = lb_report_keep(to, to->tokens[i].kind);
    for (uint32_t i = 0; i < to->n_routings; i++) to->routings[i].layer = lb_report_keep(to, to->routings[i].layer);
    from->tokens = NULL, from->n_tokens = 0, from->routings = NULL, from->n_routings = 0;
}

/* Arguments and lines of a row live as long as their report. */
static void keep_texts(lb_diff_report *to, lb_diff_row *row)
{
    for (uint32_t i = 0; i < row->n_arguments; i++) {
        lb_diff_argument *x = &row->arguments[i];
        x->name = lb_report_keep(to, x->name), x->group = lb_report_keep(to, x->group);
        x->first = lb_report_keep(to, x->first), x->second = lb_report_keep(to, x->second);
    }
    for (int k = 0; k < 2; k++) row->lines[k] = lb_report_keep_line(to, &row->lines[k]);
}

/* All places that differ by themselves, beside the first that the walk over aligned ops has named. */
static void take_differences(lb_diff_report *to, const lb_diff_report *from)
{
    for (uint32_t i = 0; i < from->n_differences; i++) {
        lb_diff_difference d = from->differences[i];
        d.row.layer = lb_report_keep(to, d.row.layer), d.row.op = lb_report_keep(to, d.row.op),
        d.row.why = lb_report_keep(to, d.row.why);
        if (d.row.parameter) d.row.parameter = lb_report_keep(to, d.row.parameter);
        if (d.row.means) d.row.means = lb_report_keep(to, d.row.means);
        if (d.row.before) d.row.before = lb_report_keep(to, d.row.before);
        if (d.row.after) d.row.after = lb_report_keep(to, d.row.after);
        keep_texts(to, &d.row);
        if (d.layer_b) d.layer_b = lb_report_keep(to, d.layer_b);
        if (d.op_b) d.op_b = lb_report_keep(to, d.op_b);
        LB_DIFF_APPEND(to, differences, n_differences, d);
    }
    to->set = from->set;
    to->set.why = lb_report_keep(to, from->set.why ? from->set.why : "");
}

/* Nothing lacks but what ranks that cut a batch otherwise do not tell, and nothing was found. */
static bool is_cut_otherwise(const lb_diff_report *r)
{
    return r->n_cuts && r->n_cuts == r->n_missing && r->verdict != LB_VERDICT_DIVERGED;
}

/* Steps of one number are of different tokens: what the walk said of them goes. */
static void say_cut_steps(lb_diff_report *report, bool judged)
{
    if (judged) return;
    report->verdict = LB_VERDICT_MISSING;
    lb_report_missing(report, "the sides are given their input in other steps, so that steps of one number are not "
                              "compared: record both in the same ones");
}

/* Do ops that each side alone runs write memory that later steps have? The walk over aligned ops compares none. */
static bool leaves_alone(const lb_diff_report *r)
{
    return r->lone_writes[0] && r->lone_writes[1];
}

/* Is one module the other, or in it? */
static bool is_around(const char *x, const char *y)
{
    const size_t n = strlen(x);
    return !strncmp(x, y, n) && (!y[n] || y[n] == '.' || !n);
}

/* Are the numbers of a tensor of the first side all on the other, in another order or in other tensors? What a model is
 * given has no order of its own: rows that are exchanged are another batch. */
static bool is_mapped(const lb_diff_report *by_value, const char *name)
{
    if (lb_input_name_is(name)) return false;
    for (uint32_t i = 0; i < by_value->n_map; i++)
        if (!strcmp(by_value->map[i].first, name) && *by_value->map[i].second) return true;
    return false;
}

static bool is_of_one_rank(lb_capture *capture)
{
    const int32_t *ranks;
    return lb_capture_ranks(capture, &ranks) == 1;
}

/* The walk's first place is one of ops that each side spells in a way of its own, and no difference by values lies
 * there: what these ops give is the same then, and the place is none. Nor is a tensor whose numbers the other side has
 * in another order. Of several ranks the walk knows which one holds what: there a rank may hold another one's part, and
 * all numbers are on the other side, too. */
static bool is_refuted(const lb_diff_session *session, const lb_diff_report *by_value)
{
    const lb_diff_row *first = &session->report->first;
    if (!session->report->has_first || !is_of_one_rank(session->a) || !is_of_one_rank(session->b)) return false;
    if (first->value && first->layer && by_value->n_differences && is_mapped(by_value, first->layer)) return true;
    bool named = !first->lone || !first->layer || !by_value->n_differences;
    for (uint32_t i = 0; i < by_value->n_differences && !named; i++) {
        const char *const layers[] = {by_value->differences[i].row.layer, by_value->differences[i].layer_b};
        for (int k = 0; k < 2; k++)
            named |= layers[k] && (is_around(layers[k], first->layer) || is_around(first->layer, layers[k]));
    }
    return !named;
}

/* Do the sides spell several layers of a forward pass by ops of their own? One program with an edit does so in a place
 * or two, and there the first op that differs is the place, whatever follows from it. */
static bool are_written_apart(const lb_diff_session *session)
{
    enum { LEAST_LAYERS = 3 };
    const lb_diff_report *r = session->report;
    uint32_t layers = 0;
    for (uint32_t i = 0; i < r->n_structures; i++)
        layers += r->structures[i].phase == LB_PHASE_FORWARD && *r->structures[i].ops_a && *r->structures[i].ops_b;
    return layers >= LEAST_LAYERS;
}

/* What is known of both sides before they are judged by values. */
typedef struct known_of_both {
    bool strangers;  /* names do not say which tensor is which */
    bool by_chance;  /* nor does any: ops that line up by them do so by chance */
    bool spelled;    /* some op has no partner */
    bool infer, cut; /* see lb_strangers_infer */
    bool narrow;     /* a side computes in 16 bits or fewer: values alone may add places, and take none back */
} known_of_both;

/* The walk over ops that line up by chance has found nothing, whatever it says. */
static void withdraw_chance(lb_diff_session *session, lb_diff_report **by_value)
{
    lb_diff_report *walked = session->report;
    take_over(*by_value, walked);
    (*by_value)->verdict = LB_VERDICT_MISSING;
    session->report = *by_value, *by_value = walked;
}

/* What values alone say; the report is NULL before they were asked. */
typedef struct values_answer {
    lb_diff_report *report;
    lb_diff_implementations_answer answer;
    lb_status status;
} values_answer;

/* Fails where the answer is lost; what values could not judge is the answer's own status. */
static lb_status ask(const lb_diff_implementations_question *question, values_answer *asked, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    asked->report = calloc(1, sizeof *asked->report);
    if (!asked->report) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    asked->status = lb_diff_implementations(question, asked->report, &asked->answer, &why);
    if (asked->report->out_of_memory) asked->status = lb_fail(&why, LB_ERR_NOMEM, "out of memory for what differs");
    if (asked->status == LB_ERR_NOMEM || asked->status == LB_ERR_IO ||
        (asked->status == LB_ERR_INVALID && question->map))
        return lb_fail(err, asked->status, "%s", why.message);
    return LB_OK;
}

/* They are asked once. */
static lb_status ask_values(const lb_diff_session *session, const known_of_both *known, values_answer *asked,
                            lb_err *err)
{
    const lb_diff_implementations_question question = {
        .captures = {session->a, session->b},
        .options = session->options,
        .map = session->map,
        .place = session->report->has_first ? &session->report->first : NULL,
        .cut = known->cut,
        .as_one = known->infer && session->report->verdict != LB_VERDICT_DIVERGED}; /* else the walk has a place */
    return asked->report ? LB_OK : ask(&question, asked, err);
}

/* Are both one function from the second side's states, too? */
static lb_status ask_turned(const lb_diff_session *session, bool *same, lb_err *err)
{
    const lb_diff_implementations_question question = {.captures = {session->b, session->a},
                                                       .options = session->options};
    values_answer turned = {0};
    const lb_status status = ask(&question, &turned, err);
    *same = status == LB_OK && turned.status == LB_OK && turned.answer.judged &&
            turned.report->verdict != LB_VERDICT_DIVERGED;
    if (turned.report) lb_diff_report_share_cost(session->report, turned.report);
    lb_diff_report_free(turned.report);
    return status;
}

/* Judged by values alone; the answer stands in the place of the report where it says more: it proves that both are one
 * function, or names a place where the walk over aligned ops could not judge. */
static lb_status try_implementations(lb_diff_session *session, const known_of_both *known, values_answer *asked,
                                     lb_err *err)
{
    LB_TRY(ask_values(session, known, asked, err));
    lb_diff_report *by_value = asked->report;
    const lb_diff_implementations_answer answer = asked->answer;
    const lb_status status = asked->status;
    bool judged = answer.judged;
    lb_diff_report_share_cost(session->report, by_value);
    bool strangers = known->strangers ||
                     answer.padded; /* of rows of another length ops that line up by name have no element in common */
    const bool same = by_value->verdict != LB_VERDICT_DIVERGED,
               missing = session->report->verdict == LB_VERDICT_MISSING || is_cut_otherwise(session->report);
    /* Where it is not known which token is which, places are none: that all is the same is a proof. */
    judged &= same || !by_value->untold || !session->report->n_cuts;
    /* In 16 bits the last bit of a state at the window's begin is as large as a difference: values prove that both are
     * one function, from the states of either side, and name no place that the walk does not. */
    judged &= same || !known->narrow || session->report->verdict == LB_VERDICT_DIVERGED;
    if (judged && same && known->narrow && session->report->verdict != LB_VERDICT_DIVERGED)
        LB_TRY(ask_turned(session, &judged, err));
    /* Of sides whose ops line up places are the walk's; values alone prove that nothing differs, which names could
     * not. */
    const bool proves = same && (missing || known->spelled);
    const bool of_input = session->report->first.value && session->report->first.layer &&
                          lb_input_name_is(session->report->first.layer),
               gives_way = answer.cleared && by_value->n_differences &&
                           (of_input || (!session->report->first.value && are_written_apart(session)));
    strangers |= judged && !same && !known->narrow && (gives_way || is_refuted(session, by_value));
    if (known->cut && status == LB_OK) say_cut_steps(by_value, judged), judged = true;
    if (status == LB_OK && judged && !same && !missing && !strangers) {
        const uint32_t first = session->report->n_differences;
        take_differences(session->report, by_value);
        for (uint32_t i = 0; i < by_value->n_findings; i++) lb_report_finding(session->report, by_value->findings[i]);
        if (session->report->verdict != LB_VERDICT_DIVERGED)
            lb_report_row(session->report, &session->report->differences[first].row);
    } else if (status == LB_OK && judged && (strangers || proves || missing)) {
        take_over(by_value, session->report);
        asked->report = session->report, session->report = by_value;
    } else if (status == LB_OK && !judged && known->by_chance && session->report->verdict == LB_VERDICT_DIVERGED &&
               !session->without_replay) {
        withdraw_chance(session, &asked->report);
    } else if (status == LB_OK && !judged &&
               (strangers || leaves_alone(session->report) || session->report->unseen)) /* why values did not tell */
        for (uint32_t i = 0; i < by_value->n_missing; i++) lb_report_missing(session->report, by_value->missing[i]);
    return LB_OK;
}

/* Has one of the first `most` steps of a side floats of 16 bits or fewer, but for one dtype? */
static bool has_narrow(lb_capture *capture, uint32_t most, lb_dtype but)
{
    const int32_t *ranks;
    const int64_t *steps;
    const lb_program *p;
    const uint32_t n = lb_capture_steps(capture, &steps);
    if (!lb_capture_ranks(capture, &ranks)) return false;
    for (uint32_t k = 0; k < n && k < most; k++) {
        if (lb_capture_program(capture, ranks[0], steps[k], &p, NULL) != LB_OK) return false;
        for (uint32_t i = 0; i < p->n_values; i++) {
            const lb_dtype dtype = p->values[i].dtype;
            if (lb_dtype_is_float(dtype) && lb_dtype_bits(dtype) <= 16 && dtype != but) return true;
        }
    }
    return false;
}

/* Does a side compute in 16 bits or fewer? There finite numbers of exact arithmetic may stand for what overflowed: not
 * in bf16, which holds numbers as large as f32 does. */
static bool is_narrow(lb_capture *capture)
{
    return has_narrow(capture, 1, LB_NO_DTYPE);
}

static bool may_overflow(lb_capture *capture)
{
    return has_narrow(capture, UINT32_MAX, LB_BF16);
}

/* What cannot be compared by values has no use for a table of them. */
static lb_status say_unused_map(lb_diff_session *session)
{
    char text[400];
    snprintf(text, sizeof text, "--map %.200s was not used: these two are compared by the names of their tensors",
             session->options->table);
    lb_report_finding(session->report, text);
    return LB_OK;
}

static lb_status judge_by_value(lb_diff_session *session, values_answer *asked, lb_err *err)
{
    const lb_verdict verdict = session->report->verdict;
    const bool left = leaves_alone(session->report);
    const bool unseen = session->report->unseen && verdict != LB_VERDICT_DIVERGED;
    /* A loss that is apart though all that leaves the step agrees: masks that both sides took hide what gave it. */
    const bool unsure = verdict == LB_VERDICT_MISSING || verdict == LB_VERDICT_DIVERGED || session->report->n_missing ||
                        left || unseen || session->report->logged_apart;
    if (session->options->digests_only) return session->map ? say_unused_map(session) : LB_OK;
    bool may = false;
    known_of_both known = {.spelled = is_spelled_differently(session->report)};
    LB_TRY(lb_strangers_infer(session->a, session->b, session->options->first_step, session->options->last_step,
                              &known.infer, &known.cut, err));
    if (known.cut) {
        known.strangers = known.spelled = true;
        return try_implementations(session, &known, asked, err);
    }
    if (unsure || session->map) LB_TRY(lb_strangers_may_be_compared(session->a, session->b, &may, err));
    if (!may && unseen && (session->report->n_findings || session->report->n_structures))
        lb_report_missing(session->report,
                          "results that follow from memory which nothing wrote have no digest, and these runs "
                          "cannot be compared by value");
    if (!may) return session->map ? say_unused_map(session) : LB_OK;
    if (session->map) {
        known.strangers = known.spelled = true;
        return try_implementations(session, &known, asked, err);
    }
    bool modules = false;
    LB_TRY(lb_strangers_are(session->a, session->b, &known.strangers, err));
    if (known.strangers) LB_TRY(lb_strangers_share_modules(session->a, session->b, &modules, err));
    known.by_chance = known.strangers && !modules;
    if (!known.strangers) LB_TRY(lb_strangers_hold_turned(session->a, session->b, &known.strangers, err));
    if (!known.strangers) LB_TRY(lb_strangers_hold_merged(session->a, session->b, &known.strangers, err));
    known.narrow = !known.strangers && (is_narrow(session->a) || is_narrow(session->b));
    /* What came before the window the walk cannot judge; values can, from one side's numbers. */
    const bool began_apart = session->report->past_unknown && !may_overflow(session->a) && !may_overflow(session->b);
    if (known.narrow && (!session->options->smallest || verdict != LB_VERDICT_DIVERGED) && !began_apart) return LB_OK;
    if (session->options->smallest && !known.strangers && (may_overflow(session->a) || may_overflow(session->b)))
        return LB_OK;
    if (!known.strangers && !known.spelled && !left && !unseen && !is_cut_otherwise(session->report) &&
        verdict != LB_VERDICT_DIVERGED && verdict != LB_VERDICT_MISSING)
        return LB_OK;
    return try_implementations(session, &known, asked, err);
}

/* Are the sides' names so different that values judge whatever the walk over aligned ops cannot? Of sides that only
 * infer the walk says which steps are taken together. */
static lb_status may_values_come_first(const lb_diff_session *session, bool *first, lb_err *err)
{
    bool infer, cut;
    *first = false;
    if (session->options->digests_only || !is_of_one_rank(session->a) || !is_of_one_rank(session->b)) return LB_OK;
    LB_TRY(lb_strangers_infer(session->a, session->b, session->options->first_step, session->options->last_step, &infer,
                              &cut, err));
    return infer || cut ? LB_OK : lb_strangers_are(session->a, session->b, first, err);
}

/* What the walk replays is not asked for where names line up nothing, so that it cannot judge, and values can.
 * `*enough`: the report stands; else it is empty, and values, if they were asked, are not asked again. */
static lb_status try_values_first(lb_diff_session *session, values_answer *asked, bool *enough, lb_err *err)
{
    lb_diff_report *walked = session->report;
    *enough = false;
    session->without_replay = true;
    LB_TRY(diff_ranks(session, err));
    if (session->shared && !session->one_by_one && session->report->n_missing)
        LB_TRY(judge_by_value(session, asked, err));
    session->without_replay = false;
    *enough = session->report != walked;
    if (*enough) return LB_OK;
    lb_diff_report_free(session->report);
    session->report = calloc(1, sizeof *session->report);
    session->shared = 0, session->one_by_one = session->swapped = false;
    return session->report ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* A step that is there and could not be read is none that both sides lack. */
static lb_status refusal_of(lb_capture *a, lb_capture *b, lb_err *err)
{
    LB_TRY(lb_capture_refusal(a, err));
    return lb_capture_refusal(b, err);
}

lb_status lb_diff_run(lb_capture *a, lb_capture *b, const lb_diff_options *options, lb_diff_report **out, lb_err *err)
{
    lb_layer_names_map *rules = NULL;
    lb_content_map map = {0};
    LB_TRY(lb_layer_names_map_new(options->maps, options->n_maps, &rules, err));
    lb_diff_session session = {
        .a = a, .b = b, .options = options, .rules = rules, .report = calloc(1, sizeof *session.report)};
    values_answer asked = {0};
    bool values_first = false, enough = false;
    lb_status status = options->table ? lb_content_map_read(options->table, &map, err) : LB_OK;
    if (options->table) session.map = &map;
    if (status == LB_OK)
        status = session.report ? may_values_come_first(&session, &values_first, err)
                                : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && values_first) status = try_values_first(&session, &asked, &enough, err);
    if (status == LB_OK && !enough) status = diff_ranks(&session, err);
    const int64_t *steps;
    if (status == LB_OK) status = refusal_of(a, b, err);
    for (int k = 0; k < 2 && status == LB_OK && session.shared == 0; k++)
        if (!lb_capture_steps(k ? b : a, &steps)) status = lb_capture_lacks(k ? b : a, INT64_MIN, INT64_MAX, err);
    if (status == LB_OK && session.shared == 0)
        status =
            lb_fail(err, LB_ERR_NOT_FOUND, "%s and %s share no step of one rank; see `lastbit ls` for what each holds",
                    lb_capture_path(a), lb_capture_path(b));
    lb_layer_names_map_free(rules);
    if (status == LB_OK && session.shared && !session.one_by_one && !enough)
        status = judge_by_value(&session, &asked, err);
    lb_diff_report_free(asked.report);
    if (status == LB_OK && session.report->verdict == LB_VERDICT_MISSING && !session.one_by_one)
        lb_diff_step_say_lacks(&session);
    if (status == LB_OK && session.report->unseen && !session.report->identical &&
        session.report->verdict == LB_VERDICT_IDENTICAL)
        lb_report_missing(session.report, "no op has results with digests on both sides: their bits were not compared");
    if (status == LB_OK && session.report->n_missing)
        session.report->verdict = lb_verdict_worse(session.report->verdict, LB_VERDICT_MISSING);
    if (status == LB_OK) lb_report_settle_differences(session.report);
    if (status == LB_OK) lb_diff_tokens_finish(session.report);
    if (status == LB_OK && !options->digests_only && !session.one_by_one)
        status = lb_diff_name_exchanges(session.report, a, b, err);
    if (status == LB_OK && !session.one_by_one)
        status = lb_diff_name_orders(session.report, a, b, options, session.swapped, err);
    if (status == LB_OK) status = refusal_of(a, b, err);
    if (status == LB_OK && session.report->out_of_memory)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for what differs");
    lb_content_map_release(&map);
    if (status == LB_OK)
        *out = session.report;
    else
        lb_diff_report_free(session.report);
    return status;
}
