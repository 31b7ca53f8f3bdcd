/* What was found: see explain_session.h. */
#include "explain/explain_session.h"

#include "kernel/ops.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *lb_explain_cause_name(lb_cause cause)
{
    static const char *const names[] = {
#define LB_CAUSE_TEXT(name, text) text,
        LB_CAUSES(LB_CAUSE_TEXT)
#undef LB_CAUSE_TEXT
    };
    return names[cause];
}

const char *lb_explain_proof_name(lb_proof proof)
{
    static const char *const names[] = {"none", "bits", "bound", "exact"};
    return names[proof];
}

typedef struct texts {
    char **list;
    uint32_t n;
} texts;

const char *lb_explain_findings_keep(lb_explain_report *report, const char *text)
{
    texts *texts = report->store;
    if (!*text) return "";
    for (uint32_t i = texts->n; i-- > 0 && i + 64 > texts->n;)
        if (!strcmp(texts->list[i], text)) return texts->list[i];
    char **grown = lb_array_grow(texts->list, texts->n, sizeof *grown);
    if (!grown) return "";
    texts->list = grown;
    char *copy = strdup(text);
    if (copy) texts->list[texts->n++] = copy;
    return copy ? copy : "";
}

void lb_explain_findings_add_missing(lb_explain_report *report, const char *text)
{
    for (uint32_t i = 0; i < report->n_missing; i++)
        if (!strcmp(report->missing[i], text)) return;
    char **grown = lb_array_grow(report->missing, report->n_missing, sizeof *grown);
    if (grown)
        report->missing = grown, report->missing[report->n_missing++] = (char *)lb_explain_findings_keep(report, text);
}

void lb_explain_findings_add_note(lb_explain_report *report, const char *text)
{
    const char *what = strstr(text, ": ");
    for (uint32_t i = 0; i < report->n_notes; i++)
        if (strstr(report->notes[i], what ? what : text)) return;
    char **grown = lb_array_grow(report->notes, report->n_notes, sizeof *grown);
    if (grown) report->notes = grown, report->notes[report->n_notes++] = (char *)lb_explain_findings_keep(report, text);
}

lb_status lb_explain_findings_add(lb_explain_report *report, const lb_explain_finding *row, lb_err *err)
{
    lb_explain_finding *grown = lb_array_grow(report->findings, report->n_findings, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    report->findings = grown;
    report->findings[report->n_findings++] = *row;
    return LB_OK;
}

void lb_explain_report_free(lb_explain_report *report)
{
    if (!report) return;
    texts *texts = report->store;
    for (uint32_t i = 0; texts && i < texts->n; i++) free(texts->list[i]);
    if (texts) free(texts->list);
    for (uint32_t i = 0; i < report->n_budgets; i++) free(report->budgets[i].rows);
    for (uint32_t i = 0; i < report->n_routings; i++) lb_routing_report_release(&report->routings[i]);
    for (uint32_t i = 0; i < report->n_rows; i++) free(report->rows[i].of_first), free(report->rows[i].of_second);
    free(texts), free(report->findings), free(report->missing), free(report->notes), free(report->layers),
        free(report->budgets), free(report->routings);
    free(report->rows);
    free(report);
}

lb_explain_report *lb_explain_findings_new(void)
{
    lb_explain_report *report = calloc(1, sizeof *report);
    if (report) report->store = calloc(1, sizeof(texts));
    if (report && report->store) return report;
    free(report);
    return NULL;
}

/* Rows of one kind, behind those that there are. */
#define JOIN(rows, n)                                                                                                  \
    do {                                                                                                               \
        void *grown_ = lb_array_reserve(whole->rows, whole->n, part->n, sizeof *whole->rows);                          \
        if (!grown_) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");                                  \
        whole->rows = grown_;                                                                                          \
        for (uint32_t i_ = 0; i_ < part->n; i_++) whole->rows[whole->n++] = part->rows[i_];                            \
        part->n = 0;                                                                                                   \
    } while (0)

lb_status lb_explain_findings_join(lb_explain_report *whole, lb_explain_report *part, lb_err *err)
{
    JOIN(findings, n_findings);
    JOIN(layers, n_layers);
    JOIN(budgets, n_budgets);
    JOIN(routings, n_routings);
    JOIN(rows, n_rows);
    for (uint32_t i = 0; i < part->n_missing; i++) lb_explain_findings_add_missing(whole, part->missing[i]);
    for (uint32_t i = 0; i < part->n_notes; i++) lb_explain_findings_add_note(whole, part->notes[i]);
    whole->turned |= part->turned;
    whole->cost.runs += part->cost.runs, whole->cost.ops += part->cost.ops;
    whole->ops += part->ops, whole->differing += part->differing;
    return LB_OK;
}

/* Ops that round: in a list of many, masks and copies are in the way. */
static bool is_telling(const lb_program *program, uint32_t row)
{
    lb_op_form form;
    const lb_op *op = &program->ops[row];
    const lb_op_row *known = lb_op_find(lb_op_name(program, op), &form);
    if (known && known->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS | LB_ROW_UNDEFINED)) return false;
    uint32_t v = op->results ? lb_op_results(program, op)[0] : op->written ? lb_op_written(program, op)[0] : LB_NONE;
    return v != LB_NONE && lb_dtype_is_float(program->values[v].dtype);
}

typedef struct name_list {
    char *text;
    size_t used, room;
} name_list;

/* Each name once, with how often it is there. */
static void list_names(const lb_program *program, const uint32_t *ops, uint32_t n_ops, name_list *names)
{
    bool any = false;
    for (uint32_t i = 0; i < n_ops; i++) any |= is_telling(program, ops[i]);
    for (uint32_t i = 0; i < n_ops && names->used < names->room - 1; i++) {
        const char *name = lb_op_name(program, &program->ops[ops[i]]);
        uint32_t count = 0;
        bool known = any && !is_telling(program, ops[i]);
        for (uint32_t k = 0; k < n_ops; k++) {
            bool same = !strcmp(name, lb_op_name(program, &program->ops[ops[k]]));
            known |= same && k < i, count += same;
        }
        if (known) continue;
        names->used += (size_t)snprintf(names->text + names->used, names->room - names->used,
                                        count > 1 ? "%s%s x%u" : "%s%s", names->used ? ", " : "", name, count);
    }
}

static uint32_t part_of(const lb_step_pair *pair, int side, uint32_t op)
{
    return op == LB_NONE ? 0 : lb_program_view_part_of(&pair->sides[side], op);
}

/* Of several ranks the ops of one, that of `op`. */
static void list_ops(const lb_step_pair *pair, int side, const lb_matched_region_side *x, uint32_t op, char *text,
                     size_t room)
{
    name_list names = {text, 0, room};
    uint32_t first = 0, n = x->n_ops;
    *text = '\0';
    if (pair->ranks) { /* the parts' ops lie one after the other, unless a collective's group has another order */
        const uint32_t part = part_of(pair, side, op);
        while (first < x->n_ops && part_of(pair, side, x->ops[first]) != part) first++;
        for (n = 0; first + n < x->n_ops && part_of(pair, side, x->ops[first + n]) == part;) n++;
    }
    list_names(pair->sides[side].program, x->ops + first, n, &names);
}

uint32_t lb_explain_place_op(const lb_step_pair *scene, const lb_matched_region *region, int side)
{
    const lb_matched_region_side *x = &region->sides[side];
    const lb_program *program = scene->sides[side].program;
    if (x->op != LB_NONE || !x->n_leaves) return x->op;
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t k = 0; k < program->ops[i].results + program->ops[i].written; k++)
            if ((lb_op_outcome(program, &program->ops[i], k)) == x->leaves[0]) return i;
    return LB_NONE;
}

/* A's ops of the matched region; where it has none, the op whose result the other side changes. "" where it would be
 * too long. */
static const char *selector_of(lb_explain_report *report, const lb_program *program, const lb_matched_region *region,
                               uint32_t index)
{
    char text[2048];
    const lb_matched_region_side *side = &region->sides[0];
    size_t used =
        (size_t)snprintf(text, sizeof text, "step=%lld&rank=%d&index=", (long long)program->step, program->rank);
    for (uint32_t i = 0; i < side->n_ops && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", i ? "," : "", side->ops[i]);
    if (!side->n_ops) used += (size_t)snprintf(text + used, sizeof text - used, "%u", index);
    return used < sizeof text && (side->n_ops || index != LB_NONE) ? lb_explain_findings_keep(report, text) : "";
}

/* The ops of a matched region over several ranks, where they are the same rows of each rank's program:
 * "step=0&rank=0,1&index=7". "": they are not. */
static const char *selector_of_ranks(lb_explain_report *report, const lb_step_pair *pair,
                                     const lb_matched_region *region)
{
    char ranks[512] = "", ops[1024] = "", text[2048];
    const lb_matched_region_side *side = &region->sides[0];
    size_t used = 0;
    for (uint32_t part = 0; part < pair->sides[0].n_parts && used < sizeof ranks; part++) {
        char list[1024] = "";
        size_t n = 0;
        for (uint32_t i = 0; i < side->n_ops && n < sizeof list; i++)
            if (part_of(pair, 0, side->ops[i]) == part)
                n += (size_t)snprintf(list + n, sizeof list - n, "%s%u", n ? "," : "",
                                      side->ops[i] - pair->sides[0].parts[part].first_op);
        if (!n) continue;
        if (n >= sizeof list || (*ops && strcmp(ops, list))) return "";
        memcpy(ops, list, sizeof ops);
        used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d", used ? "," : "",
                                 pair->sides[0].parts[part].program->rank);
    }
    snprintf(text, sizeof text, "step=%lld&rank=%s&index=%s", (long long)pair->sides[0].program->step, ranks, ops);
    return *ops && used < sizeof ranks ? lb_explain_findings_keep(report, text) : "";
}

/* Rows of the recorded programs, and whose they are. */
static void name_rank(const lb_step_pair *pair, lb_explain_finding *row)
{
    uint32_t *rows[] = {&row->index, &row->other};
    for (int k = 2; k-- > 0;) {
        const lb_program_view_part *part = &pair->sides[k].parts[part_of(pair, k, *rows[k])];
        if (*rows[k] != LB_NONE) *rows[k] -= part->first_op, row->rank = part->program->rank;
    }
}

/* What all members of a collective were given is one finding, where it is the same on all of them. */
lb_code_line lb_explain_findings_keep_line(lb_explain_report *report, const lb_program *program, uint32_t op)
{
    lb_code_line line = lb_op_line(program, &program->ops[op]);
    if (!line.number) return line;
    line.file = lb_explain_findings_keep(report, line.file),
    line.function = lb_explain_findings_keep(report, line.function);
    line.text = lb_explain_findings_keep(report, line.text);
    return line;
}

static bool is_known(const lb_explain_report *report, const lb_explain_finding *row)
{
    for (uint32_t i = report->n_findings; i-- > 0 && report->findings[i].step == row->step;) {
        const lb_explain_finding *finding = &report->findings[i];
        if (finding->index == row->index && finding->other == row->other && finding->cause == row->cause &&
            !strcmp(finding->layer, row->layer) && !strcmp(finding->op, row->op) &&
            !strcmp(finding->other_op, row->other_op) && !strcmp(finding->schedule, row->schedule) &&
            !strcmp(finding->first, row->first))
            return true;
    }
    return false;
}

lb_status lb_explain_findings_add_place(lb_explain_session *session, const lb_step_pair *scene,
                                        const lb_matched_region *region, const lb_attribution_found *found, lb_err *err)
{
    const lb_program *p = scene->sides[0].program, *q = scene->sides[1].program;
    lb_explain_report *report = session->report;
    char ops[2][320];
    const uint32_t index = lb_explain_place_op(scene, region, 0), other = lb_explain_place_op(scene, region, 1),
                   at[] = {index, other};
    for (int k = 0; k < 2; k++) list_ops(scene, k, &region->sides[k], at[k], ops[k], sizeof ops[k]);
    if (region->parts && scene->rows)
        snprintf(ops[1], sizeof ops[1], "%s", other == LB_NONE ? "" : lb_op_name(q, &q->ops[other]));
    else if (region->parts)
        snprintf(ops[1], sizeof ops[1], "%s x%u", other == LB_NONE ? "calls" : lb_op_name(q, &q->ops[other]),
                 region->parts);
    const lb_op *op = index != LB_NONE ? &p->ops[index] : other != LB_NONE ? &q->ops[other] : NULL;
    lb_explain_finding row = {.step = p->step,
                              .rank = p->rank,
                              .index = index,
                              .other = other,
                              .cause = found->cause,
                              .proof = found->proof,
                              .reversed = found->reversed,
                              .matched = found->matched,
                              .elements = found->elements,
                              .tried = found->tried,
                              .excluded = found->excluded};
    if (session->turned) row.reversed = !row.reversed;
    row.local = found->local, row.total = found->total;
    if (scene->ranks) name_rank(scene, &row);
    const char *selector = session->turned ? "" /* they would be the second side's */
                           : scene->ranks  ? selector_of_ranks(report, scene, region)
                                           : selector_of(report, p, region, index);
    for (uint32_t i = 0; i < found->n_swaps && *selector; i++)
        row.swaps[row.n_swaps++] =
            (lb_swap){found->kinds[i], selector, lb_explain_findings_keep(report, found->arguments[i])};
    for (uint32_t i = 0; i < found->n_own && *selector; i++)
        row.own[row.n_own++] =
            (lb_swap){found->own[i].kind, selector, lb_explain_findings_keep(report, found->own_arguments[i])};
    row.phase = op ? (lb_phase)op->phase : LB_PHASE_OTHER;
    row.layer = lb_explain_findings_keep(report, index != LB_NONE ? lb_op_layer(p, op) : op ? lb_op_layer(q, op) : "");
    row.op = lb_explain_findings_keep(report, ops[0]), row.other_op = lb_explain_findings_keep(report, ops[1]);
    row.schedule = lb_explain_findings_keep(report, found->schedule),
    row.first = lb_explain_findings_keep(report, found->first);
    row.also = lb_explain_findings_keep(report, found->also), row.why = lb_explain_findings_keep(report, found->why);
    if (index != LB_NONE) row.lines[0] = lb_explain_findings_keep_line(report, p, index);
    if (other != LB_NONE) row.lines[1] = lb_explain_findings_keep_line(report, q, other);
    return scene->ranks && is_known(report, &row) ? LB_OK : lb_explain_findings_add(report, &row, err);
}

lb_status lb_explain_findings_add_rows(lb_explain_report *report, const lb_step_pair *scene, lb_err *err)
{
    const lb_batch_rows *rows = scene->rows;
    const size_t bytes = (size_t)rows->few * sizeof *rows->places;
    lb_explain_rows *grown = lb_array_grow(report->rows, report->n_rows, sizeof *grown);
    int64_t *few = malloc(bytes), *many = malloc(bytes);
    if (grown) report->rows = grown;
    if (!grown || !few || !many) {
        free(few), free(many);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %lld rows", (long long)rows->few);
    }
    for (int64_t i = 0; i < rows->few; i++) few[i] = i, many[i] = rows->places[i];
    report->rows[report->n_rows++] = (lb_explain_rows){.step = scene->sides[0].program->step,
                                                       .rank = scene->sides[0].program->rank,
                                                       .first = rows->turned ? rows->many : rows->few,
                                                       .second = rows->turned ? rows->few : rows->many,
                                                       .by = lb_explain_findings_keep(report, rows->by),
                                                       .of_first = rows->turned ? many : few,
                                                       .of_second = rows->turned ? few : many,
                                                       .n = (uint32_t)rows->few,
                                                       .over_others = scene->regions.over_others};
    return LB_OK;
}

lb_status lb_explain_findings_add_layers(lb_explain_report *report, uint32_t first, lb_err *err)
{
    const uint32_t begin = report->n_layers;
    lb_explain_layer *grown =
        lb_array_reserve(report->layers, report->n_layers, report->n_findings - first, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
    report->layers = grown;
    for (uint32_t i = first; i < report->n_findings; i++) {
        const lb_explain_finding *finding = &report->findings[i];
        uint32_t at = begin;
        while (at < report->n_layers &&
               (strcmp(report->layers[at].layer, finding->layer) || report->layers[at].phase != finding->phase))
            at++;
        lb_explain_layer *row = &report->layers[at];
        if (at == report->n_layers)
            *row = (lb_explain_layer){.step = finding->step,
                                      .rank = finding->rank,
                                      .phase = finding->phase,
                                      .layer = finding->layer,
                                      .local = NAN},
            report->n_layers++;
        row->own += finding->cause != LB_CAUSE_INPUT, row->inherited += finding->cause == LB_CAUSE_INPUT;
        if (finding->cause != LB_CAUSE_INPUT && !(row->local >= finding->local)) row->local = finding->local;
        row->total = finding->total;
    }
    return LB_OK;
}

bool lb_explain_place_wanted(const lb_step_pair *scene, const lb_matched_region *region)
{
    uint32_t op = lb_explain_place_op(scene, region, 0);
    return !scene->selected || (op != LB_NONE && scene->selected[op]);
}
