/* What a diff has found so far: see diff_report.h. */
#include "diff/diff_report.h"

#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- the report's memory: strings in an arena that never moves, and where its rows are ---- */

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    char bytes[];
} chunk;

/* Rows by what they are of. A table knows the first `n` rows of its array: those that were appended past it, as another
 * report's are, follow when something is looked up. */
struct lb_report_store {
    chunk *chunks;
    lb_hash layers, places, missing, findings;
};

static struct lb_report_store *store_of(lb_diff_report *report)
{
    if (!report->store) report->store = calloc(1, sizeof *report->store);
    report->out_of_memory |= !report->store;
    return report->store;
}

const char *lb_report_keep(lb_diff_report *report, const char *text)
{
    size_t n = strlen(text) + 1;
    struct lb_report_store *store = store_of(report);
    chunk *c = store ? store->chunks : NULL;
    if (store && (!c || c->size - c->used < n)) {
        size_t size = n > 65536 ? n : 65536;
        chunk *fresh = malloc(sizeof *fresh + size);
        if (fresh) *fresh = (chunk){c, 0, size}, store->chunks = fresh;
        c = fresh;
    }
    if (!c) return report->out_of_memory = true, "";
    char *at = c->bytes + c->used;
    memcpy(at, text, n);
    c->used += n;
    return at;
}

lb_code_line lb_report_keep_line(lb_diff_report *report, const lb_code_line *line)
{
    if (!line->number) return *line;
    return (lb_code_line){.number = line->number,
                          .file = lb_report_keep(report, line->file),
                          .function = lb_report_keep(report, line->function),
                          .text = lb_report_keep(report, line->text)};
}

static uint64_t text_hash(const char *text, uint64_t seed)
{
    return XXH3_64bits_withSeed(text, strlen(text), seed);
}

/* ---- sentences, each once ---- */

static bool is_listed(lb_diff_report *report, lb_hash *index, char *const *list, uint32_t n, const char *text)
{
    while (index->n < n)
        if (!lb_hash_add(index, text_hash(list[index->n], 0), index->n)) return report->out_of_memory = true, false;
    LB_HASH_EACH(row, index, text_hash(text, 0))
    if (strcmp(list[row], text) == 0) return true;
    return false;
}

void lb_report_missing(lb_diff_report *report, const char *text)
{
    struct lb_report_store *store = store_of(report);
    if (store && !is_listed(report, &store->missing, report->missing, report->n_missing, text))
        LB_DIFF_APPEND(report, missing, n_missing, (char *)lb_report_keep(report, text));
}

void lb_report_finding(lb_diff_report *report, const char *text)
{
    struct lb_report_store *store = store_of(report);
    if (store && !is_listed(report, &store->findings, report->findings, report->n_findings, text))
        LB_DIFF_APPEND(report, findings, n_findings, (char *)lb_report_keep(report, text));
}

/* ---- rows ---- */

static uint64_t layer_hash(const lb_diff_row *row)
{
    return text_hash(row->layer, (uint64_t)row->rank);
}

/* The last row of that layer and rank; LB_NONE. */
static uint32_t find_layer(lb_diff_report *report, const lb_diff_row *like)
{
    struct lb_report_store *store = store_of(report);
    uint32_t found = LB_NONE;
    if (!store) return LB_NONE;
    while (store->layers.n < report->n_layers)
        if (!lb_hash_add(&store->layers, layer_hash(&report->layers[store->layers.n]), store->layers.n))
            return report->out_of_memory = true, LB_NONE;
    LB_HASH_EACH(row, &store->layers, layer_hash(like))
    if (report->layers[row].rank == like->rank && !strcmp(report->layers[row].layer, like->layer) &&
        (found == LB_NONE || row > found))
        found = row;
    return found;
}

static lb_diff_row *layer_row(lb_diff_report *report, const lb_diff_row *from)
{
    const uint32_t known = report->out_of_memory ? LB_NONE : find_layer(report, from);
    if (known != LB_NONE) return &report->layers[known];
    lb_diff_row row = *from;
    row.op = NULL, row.index = row.other = LB_NONE, row.why = "";
    row.verdict = row.local = row.inherited = LB_VERDICT_IDENTICAL;
    row.measured = false, row.bound_ratio = NAN;
    memset(row.lines, 0, sizeof row.lines);
    row.n_arguments = 0, row.means = NULL, row.met = 0;
    memset(&row.difference, 0, sizeof row.difference);
    row.difference.cosine = 1, row.difference.first = -1;
    uint32_t before = report->n_layers;
    LB_DIFF_APPEND(report, layers, n_layers, row);
    return report->n_layers > before ? &report->layers[before] : NULL;
}

void lb_report_layer(lb_diff_report *report, const lb_diff_row *row)
{
    lb_diff_row *layer = layer_row(report, row);
    if (!layer) return;
    bool worst = lb_verdict_severity(row->verdict) > lb_verdict_severity(layer->verdict);
    if (worst) layer->why = row->why, layer->phase = row->phase, layer->step = row->step;
    if (worst) memcpy(layer->lines, row->lines, sizeof layer->lines);
    if (row->measured && (!layer->measured || worst || row->difference.rel_l2 > layer->difference.rel_l2))
        layer->difference = row->difference, layer->measured = true;
    if (row->met > layer->met) layer->met = row->met;
    layer->verdict = lb_verdict_worse(layer->verdict, row->verdict);
    layer->local = lb_verdict_worse(layer->local, row->local);
    layer->inherited = lb_verdict_worse(layer->inherited, row->inherited);
    if (!(row->bound_ratio <= layer->bound_ratio) && row->bound_ratio == row->bound_ratio)
        layer->bound_ratio = row->bound_ratio;
}

/* Rows are reported where their difference is met; what stands for ops of one side alone lies before that. Of two that
 * begin at one op the one with fewer of them says more. */
static bool comes_before(const lb_diff_row *row, const lb_diff_row *first)
{
    if (row->step != first->step || row->rank != first->rank || row->order == LB_NONE || first->order == LB_NONE)
        return false;
    return row->order != first->order ? row->order < first->order : row->lone < first->lone;
}

/* Of rounding, a cast that loses more than all that came in to it says more than whatever differs before it, in earlier
 * steps, too. */
static bool outranks(const lb_diff_row *row, const lb_diff_row *first)
{
    return row->lossy != first->lossy ? row->lossy : comes_before(row, first);
}

void lb_report_row(lb_diff_report *report, const lb_diff_row *row)
{
    lb_report_layer(report, row);
    if (row->verdict == LB_VERDICT_IDENTICAL) return;
    if (!report->has_earliest) report->earliest = *row, report->has_earliest = true;
    if ((row->verdict == LB_VERDICT_MISSING || row->verdict == LB_VERDICT_OPAQUE) &&
        (!report->has_undecided || row->step < report->undecided_step))
        report->undecided_step = row->step, report->has_undecided = true;
    bool worst = lb_verdict_severity(row->verdict) > lb_verdict_severity(report->verdict);
    /* Of the worst verdict, the first op that has it of its own; an inheriting one only until such an op comes. */
    bool own = lb_verdict_severity(row->verdict) == lb_verdict_severity(report->verdict) &&
               row->local == row->verdict &&
               (report->first.local != report->first.verdict || outranks(row, &report->first));
    if (!report->has_first || worst || own) report->first = *row, report->has_first = true;
    report->verdict = lb_verdict_worse(report->verdict, row->verdict);
}

/* ---- places ---- */

/* What follows from ops of one side alone shows in many places, with more of these ops or fewer; one optimizer updates
 * many parameters. */
static bool is_same_place(const lb_diff_difference *x, const lb_diff_difference *y)
{
    const bool lone = x->row.lone && y->row.lone, updates = x->row.phase == LB_PHASE_OPTIMIZER;
    const char *names[][2] = {{updates ? "" : x->row.layer, updates ? "" : y->row.layer},
                              {x->row.op, y->row.op},
                              {lone ? "" : x->row.why, lone ? "" : y->row.why},
                              {x->op_b ? x->op_b : "", y->op_b ? y->op_b : ""}};
    bool same = x->row.phase == y->row.phase;
    for (size_t i = 0; i < sizeof names / sizeof *names && same; i++) same = !strcmp(names[i][0], names[i][1]);
    return same;
}

/* One more sight of a place. Of those in one step the one with fewest ops of one side alone says most. */
static void join_place(lb_diff_difference *known, const lb_diff_difference *again)
{
    const bool here = known->row.step == again->row.step, new_rank = again->ranks[0] & ~known->ranks[0],
               elsewhere = known->row.order != again->row.order && known->row.lone == again->row.lone;
    known->steps += !here && again->row.step > known->last_step && !new_rank;
    known->times += here && !new_rank && elsewhere;
    known->last_step = again->row.step;
    for (int k = 0; k < 2; k++) known->ranks[k] |= again->ranks[k];
    if (!here || new_rank || again->row.lone >= known->row.lone) return;
    known->row = again->row, known->layer_b = again->layer_b;
}

/* Of all that makes two places one; `why` does so at some alone. */
static uint64_t place_hash(const lb_diff_difference *place)
{
    const bool updates = place->row.phase == LB_PHASE_OPTIMIZER;
    uint64_t hash = text_hash(updates ? "" : place->row.layer, place->row.phase);
    hash = text_hash(place->row.op, hash);
    return text_hash(place->op_b ? place->op_b : "", hash);
}

/* The first place that is this one; LB_NONE. */
static uint32_t find_place(lb_diff_report *report, const lb_diff_difference *like)
{
    struct lb_report_store *store = store_of(report);
    uint32_t found = LB_NONE;
    if (!store) return LB_NONE;
    while (store->places.n < report->n_places)
        if (!lb_hash_add(&store->places, place_hash(&report->places[store->places.n]), store->places.n))
            return report->out_of_memory = true, LB_NONE;
    LB_HASH_EACH(row, &store->places, place_hash(like))
    if (row < found && is_same_place(&report->places[row], like)) found = row;
    return found;
}

void lb_report_place(lb_diff_report *report, const lb_diff_difference *place)
{
    const uint32_t known = report->out_of_memory ? LB_NONE : find_place(report, place);
    if (known != LB_NONE)
        join_place(&report->places[known], place);
    else
        LB_DIFF_APPEND(report, places, n_places, *place);
}

void lb_report_settle_differences(lb_diff_report *report)
{
    if (report->verdict != LB_VERDICT_DIVERGED || report->n_differences) return;
    free(report->differences);
    report->differences = report->places, report->n_differences = report->n_places;
    report->places = NULL, report->n_places = 0;
    if (report->store) lb_hash_clear(&report->store->places);
}

void lb_diff_report_share_cost(lb_diff_report *x, lb_diff_report *y)
{
    const uint64_t recorded = x->recorded_ops > y->recorded_ops ? x->recorded_ops : y->recorded_ops;
    x->cost.runs += y->cost.runs, x->cost.ops += y->cost.ops, x->exact_runs += y->exact_runs;
    y->cost = x->cost, y->exact_runs = x->exact_runs;
    x->recorded_ops = y->recorded_ops = recorded;
}

void lb_diff_report_free(lb_diff_report *report)
{
    if (!report) return;
    struct lb_report_store *store = report->store;
    for (chunk *c = store ? store->chunks : NULL; c;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    if (store) {
        lb_hash_release(&store->layers), lb_hash_release(&store->places);
        lb_hash_release(&store->missing), lb_hash_release(&store->findings);
    }
    free(store);
    free(report->layers), free(report->structures), free(report->missing);
    free(report->findings), free(report->tokens), free(report->routings);
    free(report->differences), free(report->places), free(report->map);
    free(report);
}
