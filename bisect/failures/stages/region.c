/* Regions: see region.h.
 *
 * A region must hold both ends of what it changes: a narrow value is written by one op and read by another, and at the
 * region's border values are rounded as they were. So sites are whole layers, then all ops that touch, not casts alone.
 */
#include "stages/region.h"

#include "judgement/bound.h"
#include "program/slice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct narrowing {
    lb_bisect_session *session;
    const lb_stage_region *region;
    int64_t step;
    bool kinds;      /* the ops of rows stand for all of their name, layer and phase */
    char later[512]; /* steps after it that the cure needs, changed whole beside what is tried in it */
    lb_err *err;
} narrowing;

bool lb_region_exists(const lb_bisect_session *session, const lb_stage_region *region)
{
    for (uint32_t s = 0; s < session->n_steps; s++) {
        const lb_program *program = lb_trial_program(session, session->failure.rank, session->steps[s]);
        for (uint32_t i = 0; program && i < program->n_ops; i++)
            if (region->touches(program, &program->ops[i])) return true;
    }
    return false;
}

static lb_status add_later(const narrowing *narrowing, lb_sites *sites)
{
    lb_site_form form = {narrowing->region->kind, narrowing->region->argument, "step=", "", ','};
    return *narrowing->later ? lb_sites_add(sites, &form, narrowing->later, narrowing->err) : LB_OK;
}

/* One site per layer that can take the change, in order of execution; ops outside every module go by phase. */
static lb_status list_layers(const narrowing *narrowing, const lb_program *program, lb_sites *sites, uint32_t *scopes,
                             uint8_t *seen)
{
    char inside[64], outside[64], pattern[320];
    snprintf(inside, sizeof inside, "step=%" PRId64 "&^(?:", narrowing->step);
    snprintf(outside, sizeof outside, "step=%" PRId64 "&^/&phase=", narrowing->step);
    lb_site_form in_layer = {narrowing->region->kind, narrowing->region->argument, inside, ")/", '|'};
    lb_site_form in_phase = {narrowing->region->kind, narrowing->region->argument, outside, "", ','};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        uint32_t slot = op->scope ? op->scope : program->n_scopes + op->phase;
        if (seen[slot] || !narrowing->region->touches(program, op)) continue;
        seen[slot] = 1;
        scopes[sites->n] = op->scope;
        lb_sites_escape(lb_op_layer(program, op), pattern, sizeof pattern);
        if (op->scope)
            LB_TRY(lb_sites_add(sites, &in_layer, pattern, narrowing->err));
        else
            LB_TRY(lb_sites_add(sites, &in_phase, lb_phase_name((lb_phase)op->phase), narrowing->err));
    }
    lb_sites_name(sites, "layers of step %" PRId64 " %s", narrowing->step, narrowing->region->how);
    return LB_OK;
}

static bool in_scopes(const lb_op *op, const uint32_t *scopes, uint32_t n_scopes)
{
    for (uint32_t k = 0; k < n_scopes; k++)
        if (op->scope == scopes[k]) return true;
    return false;
}

/* One site per op of these layers that can take the change; site k is op rows[k]. */
static lb_status list_single_ops(const narrowing *narrowing, const lb_program *program, const uint32_t *scopes,
                                 uint32_t n_scopes, lb_sites *sites, uint32_t *rows)
{
    char before[64], body[16];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", narrowing->step);
    lb_site_form form = {narrowing->region->kind, narrowing->region->argument, before, "", ','};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!in_scopes(&program->ops[i], scopes, n_scopes) || !narrowing->region->touches(program, &program->ops[i]))
            continue;
        rows[sites->n] = i;
        snprintf(body, sizeof body, "%u", i);
        LB_TRY(lb_sites_add(sites, &form, body, narrowing->err));
    }
    return LB_OK;
}

/* One site per op name in a layer and phase; site k is all of the kind of rows[k], which is its first. An optimizer
 * that does the same to each of hundreds of parameters is one culprit, not hundreds. */
static lb_status list_op_kinds(const narrowing *narrowing, const lb_program *program, const uint32_t *scopes,
                               uint32_t n_scopes, lb_sites *sites, uint32_t *rows)
{
    char before[64], layer[320], name[160], body[512], after[40];
    snprintf(before, sizeof before, "step=%" PRId64 "&", narrowing->step);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        bool known = !in_scopes(op, scopes, n_scopes) || !narrowing->region->touches(program, op);
        for (uint32_t k = 0; k < sites->n && !known; k++) {
            const lb_op *first = &program->ops[rows[k]];
            known = first->scope == op->scope && first->phase == op->phase && first->name == op->name;
        }
        if (known) continue;
        rows[sites->n] = i;
        lb_sites_escape(lb_op_layer(program, op), layer, sizeof layer);
        lb_sites_escape(lb_op_name(program, op), name, sizeof name);
        snprintf(body, sizeof body, "^%s/%s$", layer, name);
        snprintf(after, sizeof after, "&phase=%s", lb_phase_name((lb_phase)op->phase));
        lb_site_form form = {narrowing->region->kind, narrowing->region->argument, before, after, '|'};
        LB_TRY(lb_sites_add(sites, &form, body, narrowing->err));
    }
    return LB_OK;
}

static lb_status list_ops(narrowing *narrowing, const lb_program *program, const uint32_t *scopes, uint32_t n_scopes,
                          lb_sites *sites, uint32_t *rows)
{
    enum { MANY = 64 };
    LB_TRY(list_single_ops(narrowing, program, scopes, n_scopes, sites, rows));
    narrowing->kinds = sites->n > MANY;
    if (narrowing->kinds) {
        lb_sites_release(sites);
        LB_TRY(list_op_kinds(narrowing, program, scopes, n_scopes, sites, rows));
    }
    lb_sites_name(sites, "%sops of %s%s %s", narrowing->kinds ? "kinds of " : "",
                  n_scopes == 1 ? lb_program_text(program, program->scopes[scopes[0]].path) : "these layers",
                  n_scopes == 1 && !scopes[0] ? "no layer" : "", narrowing->region->how);
    return LB_OK;
}

/* Does op j read what op i gives, or is it i's backward? An autograd node has the sequence number that was the next to
 * be given when its forward op ran. */
static bool belong(const lb_slice_flow *flow, uint32_t i, uint32_t j)
{
    const lb_op *a = &flow->program->ops[i], *b = &flow->program->ops[j];
    if (a->phase == LB_PHASE_FORWARD && b->phase == LB_PHASE_BACKWARD && b->node >= 0 && a->node == b->node + 1)
        return true;
    for (uint32_t e = flow->first_def[j]; e < flow->first_def[j + 1]; e++)
        if (flow->defs[e] == i) return true;
    return false;
}

/* group[k] gets the first row of the connected part of the region that rows[k] lies in: ops that hand a value on to
 * each other need the change together and are one culprit. */
static void find_groups(const lb_slice_flow *flow, const uint32_t *rows, uint32_t n, uint32_t *group)
{
    for (uint32_t i = 0; i < n; i++) group[i] = i;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++) {
            uint32_t a = group[i], b = group[j];
            if (a == b || !belong(flow, rows[i], rows[j])) continue;
            for (uint32_t k = 0; k < n; k++)
                if (group[k] == a || group[k] == b) group[k] = a < b ? a : b;
        }
}

/* "score and blend": the layers of a group, in order. */
static void list_group_layers(const lb_program *program, const uint32_t *rows, const uint32_t *group, uint32_t n,
                              uint32_t which, char *text, size_t size)
{
    text[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        bool before = false;
        for (uint32_t k = 0; k < i; k++)
            before |= group[k] == which && program->ops[rows[k]].scope == program->ops[rows[i]].scope;
        if (group[i] != which || before) continue;
        const char *layer = lb_op_layer(program, &program->ops[rows[i]]);
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", used ? ", " : "", *layer ? layer : "no layer");
    }
}

/* One culprit per connected part of the region: its first op that is guilty. */
static lb_status blame_ops(const narrowing *narrowing, const lb_program *program, const uint32_t *rows, uint32_t n_rows)
{
    lb_slice_flow *flow = NULL;
    uint32_t *group = malloc((n_rows + 1) * sizeof *group);
    lb_status status = group ? lb_slice_flow_new(program, &flow, narrowing->err)
                             : lb_fail(narrowing->err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) find_groups(flow, rows, n_rows, group);
    for (uint32_t i = 0; i < n_rows && status == LB_OK; i++) {
        uint32_t size = 0, row = rows[i];
        char layers[160];
        lb_culprit *culprit;
        if (group[i] != i) continue;
        for (uint32_t k = 0; k < n_rows; k++) {
            if (group[k] != i) continue;
            if (!narrowing->region->guilty(program, &program->ops[row]) &&
                narrowing->region->guilty(program, &program->ops[rows[k]]))
                row = rows[k];
            size++;
        }
        list_group_layers(program, rows, group, n_rows, i, layers, sizeof layers);
        const lb_stage_place place = {narrowing->session->failure.rank, program->step, row};
        status = lb_stage_culprit_add(narrowing->session, narrowing->region->axis, place, &culprit, narrowing->err);
        if (status == LB_OK) status = lb_stage_culprit_all_ranks(narrowing->session, culprit, narrowing->err);
        if (status != LB_OK) break;
        snprintf(culprit->why, sizeof culprit->why, "With %u %s of %s %s%s, %s, the window ends without the failure.",
                 size,
                 narrowing->kinds ? (size == 1 ? "kind of op" : "kinds of ops")
                 : size == 1      ? "op"
                                  : "ops",
                 layers, narrowing->region->how, *narrowing->later ? ", in later steps too" : "",
                 lb_stage_besides(narrowing->session));
    }
    lb_slice_flow_free(flow);
    free(group);
    return status;
}

/* No smaller region than these layers. */
static lb_status blame_layers(const narrowing *narrowing, const lb_program *program, const uint32_t *scopes,
                              uint32_t n_scopes)
{
    for (uint32_t i = 0; i < n_scopes; i++) {
        lb_culprit *culprit;
        const lb_stage_place place = {narrowing->session->failure.rank, narrowing->step, LB_NONE};
        LB_TRY(lb_stage_culprit_add(narrowing->session, narrowing->region->axis, place, &culprit, narrowing->err));
        LB_TRY(lb_stage_culprit_all_ranks(narrowing->session, culprit, narrowing->err));
        snprintf(culprit->layer, sizeof culprit->layer, "%s",
                 lb_program_text(program, program->scopes[scopes[i]].path));
        snprintf(culprit->why, sizeof culprit->why,
                 "This layer needs to be %s as a whole: no smaller set of its ops cures.", narrowing->region->how);
    }
    return LB_OK;
}

static lb_status narrow_to_ops(narrowing *narrowing, const lb_program *program, const uint32_t *scopes,
                               uint32_t n_scopes, uint32_t *rows, uint32_t *n_rows)
{
    lb_sites sites = {0};
    uint32_t *found = NULL, count = 0;
    lb_status status = list_ops(narrowing, program, scopes, n_scopes, &sites, rows);
    uint32_t n_ops = sites.n;
    if (status == LB_OK) status = add_later(narrowing, &sites);
    if (status == LB_OK) status = lb_trial_narrow(narrowing->session, &sites, false, &found, &count, narrowing->err);
    if (status == LB_OK && count) status = lb_stage_cure_set(narrowing->session, &sites, found, count, narrowing->err);
    *n_rows = 0;
    for (uint32_t i = 0; i < count; i++)
        if (found[i] < n_ops) rows[(*n_rows)++] = rows[found[i]];
    lb_sites_release(&sites);
    free(found);
    return status;
}

static lb_status narrow_to_layers(narrowing *narrowing, const lb_program *program, uint32_t *scopes, uint32_t *n_scopes)
{
    lb_sites layers = {0};
    uint32_t *guilty = NULL, count = 0;
    uint8_t *seen = calloc(program->n_scopes + 8, 1);
    lb_status status = seen ? list_layers(narrowing, program, &layers, scopes, seen)
                            : lb_fail(narrowing->err, LB_ERR_NOMEM, "out of memory");
    uint32_t n_layers = layers.n;
    if (status == LB_OK) status = add_later(narrowing, &layers);
    if (status == LB_OK) status = lb_trial_narrow(narrowing->session, &layers, false, &guilty, &count, narrowing->err);
    if (status == LB_OK && count)
        status = lb_stage_cure_set(narrowing->session, &layers, guilty, count, narrowing->err);
    *n_scopes = 0;
    for (uint32_t i = 0; i < count; i++)
        if (guilty[i] < n_layers) scopes[(*n_scopes)++] = scopes[guilty[i]];
    lb_sites_release(&layers);
    free(seen);
    free(guilty);
    return status;
}

static lb_status narrow_to_steps(narrowing *narrowing)
{
    lb_sites steps = {0};
    lb_site_form form = {narrowing->region->kind, narrowing->region->argument, "step=", "", ','};
    uint32_t *found = NULL, count = 0;
    lb_status status =
        lb_stage_sites_add_steps(narrowing->session, &form, narrowing->session->n_steps, &steps, narrowing->err);
    lb_sites_name(&steps, "steps %s", narrowing->region->how);
    if (status == LB_OK)
        status = lb_trial_narrow_steps(narrowing->session, &steps, true, &found, &count, narrowing->err);
    if (status == LB_OK && count) status = lb_stage_cure_set(narrowing->session, &steps, found, count, narrowing->err);
    narrowing->step = count ? narrowing->session->steps[found[0]] : narrowing->session->failure.step;
    if (count) lb_stage_step_list(narrowing->session, found + 1, count - 1, narrowing->later, sizeof narrowing->later);
    lb_sites_release(&steps);
    free(found);
    return status;
}

/* ---- what was lost first ------------------------------------------------------------------------------------------ *
 * Before steps and layers are searched: what an op gave when everything was changed is compared with the type that it
 * has in the recording. An op whose numbers do not fit there, with those that read its result, is a chain
 *
 *      mul f16  131072   does not fit ──▶ cos f16   fits: it reads what must stay wide
 *      mul f8   2^-14    nothing but 0 ──▶ _to_copy f32
 *
 * and is changed by itself: first the chain that is nearest to what went bad first, then all of the step. A chain hands
 * its values on, so that no part of it cures. */

enum { CHAIN = 8, LOST = 256 };

typedef struct chain_list {
    uint32_t rows[LOST], chain[LOST]; /* ops, ascending; the first of rows whose chain each is of */
    uint32_t n;
} chain_list;

static lb_dtype dtype_given(const lb_program *program, const lb_op *op)
{
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(program, op, r);
        if (v != LB_NONE && lb_dtype_is_float(program->values[v].dtype)) return program->values[v].dtype;
    }
    return LB_F64;
}

/* Would the recorded type of that op's result make infinities, or nothing but 0, of what it gave in the trial that
 * changed everything? */
static bool does_not_fit(const lb_trace_row *changed, uint32_t op)
{
    const lb_trace_sum *sum = &changed->sums[op];
    const lb_dtype dtype = dtype_given(changed->program, &changed->program->ops[op]);
    if (!(changed->bits[op] & LB_TRACE_RAN) || !(sum->largest > 0)) return false;
    return sum->largest > lb_dtype_max_finite(dtype) || sum->largest < lb_bound_ulp(dtype, 0) / 2;
}

static bool can_lose(const narrowing *narrowing, const lb_program *program, uint32_t op)
{
    return narrowing->region->touches(program, &program->ops[op]) &&
           narrowing->region->guilty(program, &program->ops[op]);
}

/* The last op of that step up to `until` that leads to it and does not fit; LB_NONE when all do. */
static uint32_t last_lost(const narrowing *narrowing, const lb_trace_row *row, const lb_trace_row *changed,
                          uint32_t until)
{
    uint8_t *marks = calloc((size_t)row->program->n_ops + 1, 1);
    uint32_t found = LB_NONE;
    if (!marks) return LB_NONE;
    marks[until] = 1;
    lb_slice_grow(row->flow, true, 0, NULL, marks);
    for (uint32_t i = until + 1; i-- > 0 && found == LB_NONE;)
        if (marks[i] && can_lose(narrowing, row->program, i) && does_not_fit(changed, i)) found = i;
    free(marks);
    return found;
}

/* What went bad first, or fails: where the walk back ends in that step. */
static const lb_trace_row *find_bad(const narrowing *narrowing, uint32_t *op)
{
    const lb_origin *origin = &narrowing->session->out->origin;
    const lb_failure *failure = &narrowing->session->failure;
    const lb_trace_row *row = origin->op == LB_NONE || origin->rank != failure->rank || origin->broken == LB_NONE
                                  ? NULL
                                  : lb_trace_find(narrowing->session->trace, origin->rank, origin->step);
    *op = row && lb_trace_broke(row, origin->broken) ? origin->broken : failure->op;
    return *op == failure->op ? lb_trace_find(narrowing->session->trace, failure->rank, failure->step) : row;
}

static void sort_rows(uint32_t *rows, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && rows[k - 1] > rows[k]; k--) {
            const uint32_t swap = rows[k];
            rows[k] = rows[k - 1], rows[k - 1] = swap;
        }
}

/* The chain that begins with `first`: its readers, and theirs as long as what they give does not fit. */
static uint32_t list_chain(const narrowing *narrowing, const lb_trace_row *row, const lb_trace_row *changed,
                           uint32_t first, uint32_t *rows)
{
    const lb_program *program = row->program;
    uint32_t count = 0;
    rows[count++] = first;
    for (uint32_t k = 0; k < count; k++) {
        if (k && !(can_lose(narrowing, program, rows[k]) && does_not_fit(changed, rows[k]))) continue;
        for (uint32_t u = row->flow->first_use[rows[k]]; u < row->flow->first_use[rows[k] + 1]; u++) {
            const uint32_t user = row->flow->uses[u];
            bool known = !narrowing->region->touches(program, &program->ops[user]) || count == CHAIN;
            for (uint32_t i = 0; i < count && !known; i++) known = rows[i] == user;
            if (!known) rows[count++] = user;
        }
    }
    sort_rows(rows, count);
    return count;
}

/* An op is of the first chain that reaches it. */
static void add_chain(chain_list *list, const uint32_t *rows, uint32_t count, uint32_t first)
{
    uint32_t joins = first;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < list->n; k++)
            if (list->rows[k] == rows[i]) joins = list->chain[k];
    for (uint32_t i = 0; i < count && list->n < LOST; i++) {
        bool known = false;
        for (uint32_t k = 0; k < list->n && !known; k++) known = list->rows[k] == rows[i];
        if (!known) list->rows[list->n] = rows[i], list->chain[list->n++] = joins;
    }
}

/* The chain that op is of, by itself. */
static void take_chain(const chain_list *list, uint32_t op, chain_list *chain)
{
    uint32_t which = LB_NONE;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->rows[i] == op) which = list->chain[i];
    for (uint32_t i = 0; i < list->n && which != LB_NONE; i++)
        if (list->chain[i] == which) chain->rows[chain->n] = list->rows[i], chain->chain[chain->n++] = which;
}

static void list_chains(const narrowing *narrowing, const lb_trace_row *row, const lb_trace_row *changed,
                        chain_list *list)
{
    uint32_t rows[CHAIN];
    for (uint32_t i = 0; i < row->program->n_ops && list->n < LOST; i++)
        if (can_lose(narrowing, row->program, i) && does_not_fit(changed, i)) {
            const uint32_t count = list_chain(narrowing, row, changed, i, rows);
            add_chain(list, rows, count, i);
        }
}

/* One site per chain; site k is the chain first[k]. */
static lb_status list_chain_sites(const narrowing *narrowing, const chain_list *list, lb_sites *sites, uint32_t *first)
{
    char before[64];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", narrowing->step);
    lb_site_form form = {narrowing->region->kind, narrowing->region->argument, before, "", ','};
    for (uint32_t i = 0; i < list->n; i++) {
        char body[LOST * 11];
        size_t used = 0;
        bool listed = false;
        for (uint32_t k = 0; k < sites->n && !listed; k++) listed = first[k] == list->chain[i];
        if (listed) continue;
        for (uint32_t k = i; k < list->n; k++)
            if (list->chain[k] == list->chain[i])
                used += (size_t)snprintf(body + used, sizeof body - used, "%s%u", used ? "," : "", list->rows[k]);
        first[sites->n] = list->chain[i];
        LB_TRY(lb_sites_add(sites, &form, body, narrowing->err));
    }
    lb_sites_name(sites, "chains of ops whose numbers do not fit %s", narrowing->region->how);
    return LB_OK;
}

/* The same happens in later steps: they are changed whole, in every trial. */
static lb_status change_later(narrowing *narrowing)
{
    uint32_t rows[64], count = 0;
    for (uint32_t s = 0; s < narrowing->session->n_steps && count < 64; s++)
        if (narrowing->session->steps[s] > narrowing->step) rows[count++] = s;
    lb_stage_step_list(narrowing->session, rows, count, narrowing->later, sizeof narrowing->later);
    return add_later(narrowing, &narrowing->session->background);
}

static lb_status set_cure(const narrowing *narrowing, const lb_sites *sites, const uint32_t *found, uint32_t count)
{
    lb_sites cure = {0};
    lb_status status = add_later(narrowing, &cure);
    if (status == LB_OK) status = lb_stage_cure_set(narrowing->session, sites, found, count, narrowing->err);
    if (status == LB_OK) status = lb_sites_append(&cure, &narrowing->session->cure, NULL, narrowing->err);
    if (status == LB_OK) status = lb_stage_cure_set(narrowing->session, &cure, NULL, 0, narrowing->err);
    lb_sites_release(&cure);
    return status;
}

/* The chains of the list that are needed; *n_rows 0 where all of them do not cure. */
static lb_status try_chains(narrowing *narrowing, const chain_list *list, uint32_t *rows, uint32_t *n_rows)
{
    lb_sites sites = {0}, before = narrowing->session->background;
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    uint32_t first[LOST], *found = NULL, count = 0;
    *n_rows = 0;
    narrowing->session->background = (lb_sites){0};
    lb_status status = lb_sites_append(&narrowing->session->background, &before, NULL, narrowing->err);
    if (status == LB_OK && *narrowing->later) status = add_later(narrowing, &narrowing->session->background);
    if (status == LB_OK) status = list_chain_sites(narrowing, list, &sites, first);
    if (status == LB_OK) status = lb_trial_run(narrowing->session, &sites, NULL, "whole", &outcome, narrowing->err);
    if (status == LB_OK && outcome == LB_OUTCOME_OTHER &&
        narrowing->step < narrowing->session->steps[narrowing->session->n_steps - 1]) {
        status = change_later(narrowing);
        if (status == LB_OK) status = lb_trial_run(narrowing->session, &sites, NULL, "whole", &outcome, narrowing->err);
    }
    if (status == LB_OK && outcome == LB_OUTCOME_CURED)
        status = lb_trial_narrow(narrowing->session, &sites, true, &found, &count, narrowing->err);
    if (status == LB_OK && count) status = set_cure(narrowing, &sites, found, count);
    if (!count) narrowing->later[0] = '\0';
    for (uint32_t i = 0; i < list->n; i++)
        for (uint32_t k = 0; k < count; k++)
            if (first[found[k]] == list->chain[i]) rows[(*n_rows)++] = list->rows[i];
    sort_rows(rows, *n_rows);
    lb_sites_release(&narrowing->session->background);
    narrowing->session->background = before;
    lb_sites_release(&sites);
    free(found);
    return status;
}

static lb_status narrow_lost(narrowing *narrowing, uint32_t *rows, uint32_t *n_rows)
{
    uint32_t bad;
    const lb_trace_row *row = find_bad(narrowing, &bad);
    lb_trace *kept = narrowing->session->changed; /* further trials need not be traced */
    narrowing->session->changed = NULL;
    *n_rows = 0;
    const lb_trace_row *changed =
        row && kept ? lb_trace_find(kept, narrowing->session->failure.rank, row->program->step) : NULL;
    lb_status status = LB_OK;
    if (changed && bad < row->program->n_ops) {
        chain_list nearest = {.n = 0}, all = {.n = 0};
        const uint32_t last = last_lost(narrowing, row, changed, bad);
        narrowing->step = row->program->step;
        list_chains(narrowing, row, changed, &all);
        take_chain(&all, last, &nearest);
        if (nearest.n) status = try_chains(narrowing, &nearest, rows, n_rows);
        if (status == LB_OK && !*n_rows && all.n > nearest.n && all.n < LOST)
            status = try_chains(narrowing, &all, rows, n_rows);
    }
    lb_trace_free(kept);
    return status;
}

lb_status lb_region_narrow(lb_bisect_session *session, const lb_stage_region *region, int64_t *step, uint32_t **ops,
                           uint32_t *n_ops, lb_err *err)
{
    narrowing narrowing = {.session = session, .region = region, .err = err};
    uint32_t near[LOST];
    *ops = NULL, *n_ops = 0;
    LB_TRY(narrow_lost(&narrowing, near, n_ops));
    const bool direct = *n_ops > 0;
    if (!direct) LB_TRY(narrow_to_steps(&narrowing));
    const lb_program *program = lb_trial_program(session, session->failure.rank, narrowing.step);
    *step = narrowing.step;
    if (!program)
        return lb_fail(err, LB_ERR_NOT_FOUND, "step %" PRId64 " of rank %d was not recorded", narrowing.step,
                       session->failure.rank);
    uint32_t *scopes = malloc((program->n_scopes + 8) * sizeof *scopes), n_scopes = 0;
    *ops = malloc(((size_t)program->n_ops + 1) * sizeof **ops);
    lb_status status = scopes && *ops ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && direct) memcpy(*ops, near, *n_ops * sizeof *near);
    if (status == LB_OK && !direct) status = narrow_to_layers(&narrowing, program, scopes, &n_scopes);
    if (status == LB_OK && n_scopes) status = narrow_to_ops(&narrowing, program, scopes, n_scopes, *ops, n_ops);
    if (status == LB_OK && *n_ops)
        status = blame_ops(&narrowing, program, *ops, *n_ops);
    else if (status == LB_OK && n_scopes)
        status = blame_layers(&narrowing, program, scopes, n_scopes);
    else if (status == LB_OK) {
        lb_culprit *culprit;
        status = lb_stage_culprit_add(session, region->axis,
                                      (lb_stage_place){session->failure.rank, narrowing.step, LB_NONE}, &culprit, err);
        if (status == LB_OK)
            snprintf(culprit->why, sizeof culprit->why,
                     "No smaller region than everything in the steps named, %s, cures.", region->how);
    }
    free(scopes);
    return status;
}
