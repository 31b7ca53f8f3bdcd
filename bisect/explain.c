/* Explain: see lastbit/explain.h. Per step and rank: align, find the places that differ, ask each for its cause. */
#include "budget.h"
#include "routing_diff.h"

#include "ops.h"
#include "selector.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *lb_cause_name(lb_cause cause)
{
    static const char *const names[] = {
#define LB_CAUSE_TEXT(name, text) text,
        LB_CAUSES(LB_CAUSE_TEXT)
#undef LB_CAUSE_TEXT
    };
    return names[cause];
}

const char *lb_proof_name(lb_proof proof)
{
    static const char *const names[] = {"none", "bits", "bound", "exact"};
    return names[proof];
}

/* ---- the report ---- */

typedef struct texts {
    char **list;
    uint32_t n, room;
} texts;

static const char *keep(lb_explain_report *r, const char *text)
{
    texts *t = r->store;
    if (!*text) return "";
    for (uint32_t i = t->n; i-- > 0 && i + 64 > t->n;)
        if (!strcmp(t->list[i], text)) return t->list[i];
    if (t->n == t->room) {
        uint32_t room = t->room ? 2 * t->room : 64;
        char **grown = realloc(t->list, room * sizeof *grown);
        if (!grown) return "";
        t->list = grown, t->room = room;
    }
    char *copy = strdup(text);
    if (copy) t->list[t->n++] = copy;
    return copy ? copy : "";
}

static void add_missing(lb_explain_report *r, const char *text)
{
    for (uint32_t i = 0; i < r->n_missing; i++)
        if (!strcmp(r->missing[i], text)) return;
    char **grown = realloc(r->missing, (r->n_missing + 1) * sizeof *grown);
    if (grown) r->missing = grown, r->missing[r->n_missing++] = (char *)keep(r, text);
}

static lb_status add_finding(lb_explain_report *r, const lb_explain_finding *row, lb_err *err)
{
    if ((r->n_findings & (r->n_findings - 1)) == 0) {
        size_t room = r->n_findings ? 2 * (size_t)r->n_findings : 1;
        lb_explain_finding *grown = realloc(r->findings, room * sizeof *grown);
        if (!grown) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for findings");
        r->findings = grown;
    }
    r->findings[r->n_findings++] = *row;
    return LB_OK;
}

void lb_explain_report_free(lb_explain_report *r)
{
    if (!r) return;
    texts *t = r->store;
    for (uint32_t i = 0; t && i < t->n; i++) free(t->list[i]);
    if (t) free(t->list);
    for (uint32_t i = 0; i < r->n_budgets; i++) free(r->budgets[i].rows);
    free(t), free(r->findings), free(r->missing), free(r->layers), free(r->budgets);
    free(r);
}

static lb_explain_report *new_report(void)
{
    lb_explain_report *r = calloc(1, sizeof *r);
    if (r) r->store = calloc(1, sizeof(texts));
    if (r && r->store) return r;
    free(r);
    return NULL;
}

/* ---- one step ---- */

typedef struct session {
    lb_capture *a, *b; /* b NULL: A's own replay */
    const lb_explain_options *options;
    const lb_map_rules *rules;
    lb_selector *selector;
    lb_explain_report *report;
    lb_cause_memory memory;
    bool turned; /* the first side calls its layers more often: it is looked at as the second */
    uint64_t shared;
} session;

/* A step of both sides, all that is read from it. */
typedef struct scene {
    lb_side sides[2];
    lb_alignment alignment;
    lb_witness bytes[2];
    char **paths[2];
    uint8_t *selected; /* per op of A; NULL: all */
    lb_stretches stretches;
    lb_assemblies assemblies;
    lb_stretch_source source;
} scene;

static void release_scene(scene *s)
{
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; s->paths[k] && i < s->sides[k].program->n_scopes; i++) free(s->paths[k][i]);
        free(s->paths[k]);
        if (s->bytes[k].program) lb_witness_release(&s->bytes[k]);
    }
    lb_stretches_release(&s->stretches);
    lb_assemblies_release(&s->assemblies);
    lb_alignment_release(&s->alignment);
    free(s->selected);
    for (int k = 0; k < 2; k++) lb_side_release(&s->sides[k]);
}

static lb_status find_paths(scene *s, const lb_map_rules *const *rules, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = s->sides[k].program;
        s->paths[k] = calloc(p->n_scopes + 1, sizeof *s->paths[k]);
        for (uint32_t i = 0; s->paths[k] && i < p->n_scopes; i++) {
            s->paths[k][i] = lb_map_rules_apply(rules[k], lb_program_text(p, p->scopes[i].path));
            if (!s->paths[k][i]) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for layers");
        }
        if (!s->paths[k]) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for layers");
    }
    return lb_names_meet(s->paths[0], s->sides[0].program->n_scopes, s->paths[1], s->sides[1].program->n_scopes,
                         err);
}

static void want_value(void *context, uint32_t value)
{
    lb_witness_want(context, value);
}

/* Everything an op reads and gives; what was kept costs nothing. */
static lb_status gather_bytes(scene *s, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = s->sides[k].program;
        LB_TRY(lb_witness_init(&s->sides[k], &s->bytes[k], err));
        for (uint32_t i = 0; i < p->n_ops; i++) {
            const lb_op *op = &p->ops[i];
            if (!lb_op_computes(p, op)) continue;
            lb_op_each_input(p, op, want_value, &s->bytes[k]);
            for (uint32_t r = 0; r < op->results; r++) lb_witness_want(&s->bytes[k], lb_op_results(p, op)[r]);
            for (uint32_t r = 0; r < op->written; r++) lb_witness_want(&s->bytes[k], lb_op_written(p, op)[r]);
        }
        LB_TRY(lb_witness_run(&s->bytes[k], err));
    }
    return LB_OK;
}

static lb_status select_ops(const session *session, scene *s, lb_err *err)
{
    const lb_program *p = s->sides[0].program;
    if (!session->selector) return LB_OK;
    s->selected = calloc(p->n_ops + 1, 1);
    if (!s->selected || lb_selector_mark(session->selector, p, NULL, NULL, s->selected, 1) < 0)
        return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory");
    return LB_OK;
}

/* Ops that round: in a list of many, masks and copies are in the way. */
static bool is_telling(const lb_program *p, uint32_t row)
{
    lb_op_form form;
    const lb_op *op = &p->ops[row];
    const lb_op_row *known = lb_op_find(lb_op_name(p, op), &form);
    if (known && known->flags & (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)) return false;
    uint32_t v = op->results ? lb_op_results(p, op)[0] : op->written ? lb_op_written(p, op)[0] : LB_NONE;
    return v != LB_NONE && lb_dtype_is_float(p->values[v].dtype);
}

static void list_ops(const lb_program *p, const lb_stretch_side *side, char *text, size_t room)
{
    size_t used = 0;
    bool any = false;
    *text = '\0';
    for (uint32_t i = 0; i < side->n_ops; i++) any |= is_telling(p, side->ops[i]);
    for (uint32_t i = 0; i < side->n_ops && used < room - 1; i++) {
        const char *name = lb_op_name(p, &p->ops[side->ops[i]]);
        uint32_t count = 0;
        bool known = any && !is_telling(p, side->ops[i]);
        for (uint32_t k = 0; k < side->n_ops; k++) {
            bool same = !strcmp(name, lb_op_name(p, &p->ops[side->ops[k]]));
            known |= same && k < i, count += same;
        }
        if (known) continue;
        used += (size_t)snprintf(text + used, room - used, count > 1 ? "%s%s x%u" : "%s%s", used ? ", " : "",
                                 name, count);
    }
}

static uint32_t place_op(const scene *s, const lb_stretch *stretch, int side)
{
    const lb_stretch_side *x = &stretch->sides[side];
    const lb_program *p = s->sides[side].program;
    if (x->op != LB_NONE || !x->n_leaves) return x->op;
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t k = 0; k < p->ops[i].results + p->ops[i].written; k++)
            if ((k < p->ops[i].results ? lb_op_results(p, &p->ops[i])[k]
                                       : lb_op_written(p, &p->ops[i])[k - p->ops[i].results]) == x->leaves[0])
                return i;
    return LB_NONE;
}

/* A's ops of the stretch; where it has none, the op whose result the other side changes. "" where it would be too long. */
static const char *selector_of(lb_explain_report *r, const lb_program *p, const lb_stretch *stretch,
                               uint32_t index)
{
    char text[2048];
    const lb_stretch_side *side = &stretch->sides[0];
    size_t used = (size_t)snprintf(text, sizeof text, "step=%lld&rank=%d&index=", (long long)p->step, p->rank);
    for (uint32_t i = 0; i < side->n_ops && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", i ? "," : "", side->ops[i]);
    if (!side->n_ops) used += (size_t)snprintf(text + used, sizeof text - used, "%u", index);
    return used < sizeof text && (side->n_ops || index != LB_NONE) ? keep(r, text) : "";
}

static lb_status report_place(session *session, const scene *s, const lb_stretch *stretch,
                              const lb_cause_found *found, lb_err *err)
{
    const lb_program *p = s->sides[0].program, *q = s->sides[1].program;
    lb_explain_report *r = session->report;
    char ops[2][320];
    list_ops(p, &stretch->sides[0], ops[0], sizeof ops[0]),
        list_ops(q, &stretch->sides[1], ops[1], sizeof ops[1]);
    const uint32_t index = place_op(s, stretch, 0), other = place_op(s, stretch, 1);
    if (stretch->parts)
        snprintf(ops[1], sizeof ops[1], "%s x%u", other == LB_NONE ? "calls" : lb_op_name(q, &q->ops[other]),
                 stretch->parts);
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
    for (uint32_t i = 0; i < found->n_swaps; i++) {
        row.swaps[i] =
            (lb_swap){found->kinds[i], selector_of(r, p, stretch, index), keep(r, found->arguments[i])};
        row.n_swaps += *row.swaps[i].selector != 0;
    }
    row.phase = op ? (lb_phase)op->phase : LB_PHASE_OTHER;
    row.layer = keep(r, index != LB_NONE ? lb_op_layer(p, op) : op ? lb_op_layer(q, op) : "");
    row.op = keep(r, ops[0]), row.other_op = keep(r, ops[1]);
    row.schedule = keep(r, found->schedule), row.first = keep(r, found->first);
    row.also = keep(r, found->also), row.why = keep(r, found->why);
    return add_finding(r, &row, err);
}

static bool wanted(const scene *s, const lb_stretch *stretch)
{
    uint32_t op = place_op(s, stretch, 0);
    return !s->selected || (op != LB_NONE && s->selected[op]);
}

/* It may have an explanation that the bytes of one side, which were not kept, would show. */
static bool lacks_bytes(const lb_place *place, const lb_cause_found *found)
{
    return found->cause == LB_CAUSE_UNEXPLAINED && !strncmp(place->why, "bytes", 5) &&
           (place->rehearsals[0] || place->rehearsals[1]) &&
           (!place->targets[0] || !place->targets[1] ||
            (!lb_place_can(place, 0, 1) && !lb_place_can(place, 1, 0)));
}

/* `first`: the first of `n` places that could not be tried. */
static void tell_lacking(session *session, const scene *s, const lb_stretch *first, uint32_t n)
{
    const lb_program *p = s->sides[0].program;
    char text[400];
    if (!n) return;
    const uint32_t op = place_op(s, first, 0);
    snprintf(text, sizeof text,
             "step %lld, rank %d: %u places that differ, the first in %.120s, could not be tried: bytes were "
             "not kept on one "
             "side. Record both sides again with --level ops --steps %lld, and --layers if that is too much",
             (long long)p->step, p->rank, n, op == LB_NONE ? "(outside)" : lb_op_layer(p, &p->ops[op]),
             (long long)p->step);
    add_missing(session->report, text);
}

static lb_status explain_places(session *session, scene *s, lb_err *err)
{
    lb_status status = LB_OK;
    const lb_stretch *lacking = NULL;
    uint32_t n_lacking = 0;
    for (uint32_t i = 0; i < s->stretches.n && status == LB_OK; i++) {
        const lb_stretch *stretch = &s->stretches.list[i];
        lb_cause_found found = {0};
        lb_place place;
        bool own = false;
        if (session->options->progress) session->options->progress("explaining", i, s->stretches.n);
        if (!wanted(s, stretch)) continue;
        LB_TRY(lb_place_open(stretch, &s->source, &place, err));
        status = session->b ? lb_cause_find(&place, &session->memory, &found, err)
                            : lb_cause_identify(&place, &session->memory, &own, &found, err);
        if (status == LB_OK && session->b && lacks_bytes(&place, &found)) {
            if (!n_lacking++) lacking = stretch;
            own = true;
        }
        lb_place_release(&place);
        /* A value that one side alone copies or widens is where it was. */
        own |= found.cause == LB_CAUSE_INPUT && !stretch->sides[0].n_ops;
        if (status == LB_OK && !own) status = report_place(session, s, stretch, &found, err);
    }
    tell_lacking(session, s, lacking, n_lacking);
    return status;
}

static void count_ops(session *session, const scene *s)
{
    const lb_program *p = s->sides[0].program;
    for (uint32_t i = 0; i < p->n_ops; i++)
        session->report->ops += s->alignment.b_of_a[i] != LB_NONE ||
                                (s->alignment.join_of_a[i] != LB_NONE && lb_op_computes(p, &p->ops[i]));
    for (uint32_t i = 0; i < s->stretches.n; i++) session->report->differing += s->stretches.list[i].pair;
}

/* Experts that other tokens chose: is it what upstream moved the router's logits by, or the router itself? */
static lb_status add_routing(session *session, const scene *s, lb_err *err)
{
    lb_explain_report *r = session->report;
    lb_diff_report *report = calloc(1, sizeof *report);
    if (!report) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for routing");
    const bool whole = s->sides[0].n_parts == 1 && s->sides[1].n_parts == 1;
    lb_status status =
        whole ? lb_routing_diff_add(&s->sides[0], &s->sides[1], session->rules, report, err) : LB_OK;
    for (uint32_t i = 0; status == LB_OK && i < report->n_routings; i++) {
        const lb_diff_routing *x = &report->routings[i];
        const char *kind =
            x->explained == x->flips ? x->near_ties == x->flips ? "near ties" : "upstream" : "another router";
        char why[320];
        if (!x->flips) continue;
        snprintf(why, sizeof why,
                 "%lld of %lld choices fall on other experts; the largest margin is %.3g; %lld are near ties, "
                 "and of %lld the "
                 "router's logits moved by more than the margin, upstream",
                 (long long)x->flips, (long long)x->choices, x->largest_margin, (long long)x->near_ties,
                 (long long)x->explained);
        const lb_explain_finding row = {.step = x->step,
                                        .rank = x->rank,
                                        .phase = LB_PHASE_FORWARD,
                                        .layer = keep(r, x->layer),
                                        .op = "experts chosen",
                                        .other_op = "experts chosen",
                                        .index = LB_NONE,
                                        .other = LB_NONE,
                                        .cause = LB_CAUSE_ROUTING,
                                        .proof = LB_PROOF_BITS,
                                        .schedule = kind,
                                        .first = "",
                                        .also = "",
                                        .why = keep(r, why),
                                        .matched = x->choices - x->flips,
                                        .elements = x->choices,
                                        .local = NAN,
                                        .total = NAN};
        status = add_finding(r, &row, err);
    }
    lb_diff_report_free(report);
    return status;
}

static lb_status add_layers(lb_explain_report *r, uint32_t first, lb_err *err)
{
    const uint32_t begin = r->n_layers;
    lb_explain_layer *grown = realloc(r->layers, (r->n_layers + r->n_findings - first + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for layers");
    r->layers = grown;
    for (uint32_t i = first; i < r->n_findings; i++) {
        const lb_explain_finding *f = &r->findings[i];
        uint32_t at = begin;
        while (at < r->n_layers && (strcmp(r->layers[at].layer, f->layer) || r->layers[at].phase != f->phase))
            at++;
        lb_explain_layer *row = &r->layers[at];
        if (at == r->n_layers)
            *row =
                (lb_explain_layer){
                    .step = f->step, .rank = f->rank, .phase = f->phase, .layer = f->layer, .local = NAN},
            r->n_layers++;
        row->own += f->cause != LB_CAUSE_INPUT, row->inherited += f->cause == LB_CAUSE_INPUT;
        if (f->cause != LB_CAUSE_INPUT && !(row->local >= f->local)) row->local = f->local;
        row->total = f->total;
    }
    return LB_OK;
}

static lb_status add_budget(session *session, const scene *s, uint32_t first, lb_err *err)
{
    lb_explain_report *r = session->report;
    lb_explain_budget *grown = realloc(r->budgets, (r->n_budgets + 1) * sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "explain: out of memory for the budget");
    r->budgets = grown;
    bool made = false;
    LB_TRY(lb_budget_make(&s->source, r->findings + first, r->n_findings - first, session->options->progress,
                          &r->budgets[r->n_budgets], &made, err));
    r->n_budgets += made;
    for (uint32_t i = 0; made && i < r->budgets[r->n_budgets - 1].n_rows; i++) {
        lb_explain_share *row = &r->budgets[r->n_budgets - 1].rows[i];
        char *layer = (char *)row->layer;
        row->layer = keep(r, layer);
        free(layer);
    }
    return LB_OK;
}

static lb_status explain_scene(session *session, scene *s, lb_err *err)
{
    const lb_map_rules *rules[] = {session->turned ? NULL : session->rules,
                                   session->turned ? session->rules : NULL};
    LB_TRY(lb_alignment_make(&s->sides[0], &s->sides[1], rules[0], rules[1], &s->alignment, err));
    LB_TRY(find_paths(s, rules, err));
    LB_TRY(gather_bytes(s, err));
    LB_TRY(select_ops(session, s, err));
    s->source = (lb_stretch_source){.a = &s->sides[0],
                                    .b = &s->sides[1],
                                    .alignment = &s->alignment,
                                    .bytes = {&s->bytes[0], &s->bytes[1]},
                                    .paths = {s->paths[0], s->paths[1]},
                                    .assemblies = &s->assemblies,
                                    .all = !session->b};
    s->assemblies.b = &s->sides[1];
    LB_TRY(lb_stretches_find(&s->source, &s->stretches, err));
    count_ops(session, s);
    const uint32_t first = session->report->n_findings;
    LB_TRY(explain_places(session, s, err));
    LB_TRY(add_layers(session->report, first, err));
    if (session->b && !session->turned && !session->selector) LB_TRY(add_routing(session, s, err));
    if (!session->options->budget || !session->b || session->turned || s->sides[1].n_parts > 1) return LB_OK;
    return add_budget(session, s, first, err);
}

/* The programs of both sides for one comparison; of several steps taken as one, all of them. */
typedef struct matter {
    const lb_program **programs[2];
    uint32_t n[2];
} matter;

static lb_status explain_programs(session *session, const matter *m, lb_err *err)
{
    lb_capture *captures[] = {session->a, session->b ? session->b : session->a};
    scene s = {0};
    session->shared++;
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++) {
        const int from = session->turned ? !k : k;
        status = lb_side_init(captures[from], m->programs[from], m->n[from], &s.sides[k], err);
    }
    if (status == LB_OK) status = explain_scene(session, &s, err);
    release_scene(&s);
    return status;
}

static lb_status explain_step(session *session, int32_t rank, int64_t step, lb_err *err)
{
    const lb_program *programs[2];
    lb_capture *captures[] = {session->a, session->b ? session->b : session->a};
    for (int k = 0; k < 2; k++)
        if (lb_capture_program(captures[k], rank, step, &programs[k], NULL) != LB_OK) {
            char text[160];
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the %s side only",
                     (long long)step, rank, k ? "first" : "second");
            add_missing(session->report, text);
            return LB_OK;
        }
    session->turned = session->b && lb_alignment_finer(programs[0], programs[1]);
    const matter m = {{&programs[0], &programs[1]}, {1, 1}};
    return explain_programs(session, &m, err);
}

/* ---- a prefill and decode steps against one forward pass ---- */

/* All steps of a rank if they are forward passes alone; malloc'ed, NULL when they are not. */
static const lb_program **forward_passes(lb_capture *capture, int32_t rank, uint32_t *n)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(capture, &steps);
    const lb_program **list = malloc((n_steps + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < n_steps; i++) {
        if (lb_capture_program(capture, rank, steps[i], &list[*n], NULL) != LB_OK) continue;
        bool forward = list[*n]->n_groups == 0;
        for (uint32_t k = 0; forward && k < list[*n]->n_ops; k++) {
            const uint8_t phase = list[*n]->ops[k].phase;
            forward = phase != LB_PHASE_BACKWARD && phase != LB_PHASE_OPTIMIZER;
        }
        if (!forward) {
            free(list);
            return NULL;
        }
        ++*n;
    }
    return list;
}

/* `*done`: one side is one forward pass and the other several, which were taken together. */
static lb_status explain_decoding(session *session, int32_t rank, bool *done, lb_err *err)
{
    matter m = {{NULL, NULL}, {0, 0}};
    lb_status status = LB_OK;
    *done = false;
    if (session->b && session->options->first_step == INT64_MIN) {
        m.programs[0] = forward_passes(session->a, rank, &m.n[0]);
        m.programs[1] = forward_passes(session->b, rank, &m.n[1]);
        *done = m.programs[0] && m.programs[1] && m.n[0] && m.n[1] && (m.n[0] == 1) != (m.n[1] == 1);
    }
    session->turned = *done && m.n[0] > 1;
    if (*done) status = explain_programs(session, &m, err);
    free(m.programs[0]), free(m.programs[1]);
    return status;
}

static lb_status explain_all(session *session, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    uint32_t n_ranks = lb_capture_ranks(session->a, &ranks), n_steps = lb_capture_steps(session->a, &steps);
    for (uint32_t i = 0; i < n_ranks; i++) {
        bool done;
        LB_TRY(explain_decoding(session, ranks[i], &done, err));
        for (uint32_t k = 0; k < n_steps && !done; k++)
            if (steps[k] >= session->options->first_step && steps[k] <= session->options->last_step)
                LB_TRY(explain_step(session, ranks[i], steps[k], err));
    }
    if (!session->shared)
        return lb_fail(err, LB_ERR_NOT_FOUND,
                       "explain: the captures share no step of one rank; see `lastbit ls` for what each holds");
    return LB_OK;
}

lb_status lb_explain_run(lb_capture *a, lb_capture *b, const lb_explain_options *options,
                         lb_explain_report **out, lb_err *err)
{
    lb_map_rules *rules = NULL;
    session s = {
        .a = a, .b = b, .options = options, .memory = {.seconds = options->seconds > 0 ? options->seconds : 2}};
    LB_TRY(lb_map_rules_new(options->maps, options->n_maps, &rules, err));
    s.rules = rules, s.report = new_report();
    lb_status status = s.report ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "explain: out of memory");
    if (status == LB_OK && options->select) status = lb_selector_new(options->select, &s.selector, err);
    if (status == LB_OK) status = explain_all(&s, err);
    lb_selector_free(s.selector);
    lb_map_rules_free(rules);
    if (status == LB_OK)
        *out = s.report;
    else
        lb_explain_report_free(s.report);
    return status;
}
