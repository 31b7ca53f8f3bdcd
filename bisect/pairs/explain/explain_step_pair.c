/* One step of both sides: see explain_session.h. */
#include "explain/explain_session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void lb_step_pair_close(lb_step_pair *s)
{
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; s->paths[k] && i < s->sides[k].program->n_scopes; i++) free(s->paths[k][i]);
        free(s->paths[k]);
        if (s->bytes[k].program) lb_regenerated_release(&s->bytes[k]);
    }
    lb_matched_regions_release(&s->regions);
    lb_assemblies_release(&s->assemblies);
    lb_alignment_release(&s->alignment);
    free(s->selected), free(s->row_numbers);
    for (int k = 0; k < 2; k++) free(s->held[k]), free(s->other_function[k]);
    for (int k = 0; k < 2; k++)
        lb_collective_matches_release(&s->collective_matches[k]), lb_program_view_release(&s->sides[k]);
}

static lb_status find_paths(lb_step_pair *s, const lb_layer_names_map *const *rules, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = s->sides[k].program;
        s->paths[k] = calloc(p->n_scopes + 1, sizeof *s->paths[k]);
        for (uint32_t i = 0; s->paths[k] && i < p->n_scopes; i++) {
            s->paths[k][i] = lb_layer_names_map_apply(rules[k], lb_program_text(p, p->scopes[i].path));
            if (!s->paths[k][i]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
        }
        if (!s->paths[k]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
    }
    return lb_layer_names_meet(s->paths[0], s->sides[0].program->n_scopes, s->paths[1], s->sides[1].program->n_scopes,
                               err);
}

static void want_value(void *context, uint32_t value)
{
    lb_regenerated_want(context, value);
}

/* Everything an op reads and gives; what was kept costs nothing. A replay ends with the last op that is wanted. */
static lb_status gather_bytes(lb_step_pair *s, lb_err *err)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = s->sides[k].program;
        LB_TRY(lb_regenerated_init(&s->sides[k], &s->bytes[k], err));
        const uint32_t n = s->fraction ? p->n_ops / s->fraction : p->n_ops;
        for (uint32_t i = 0; i < n; i++) {
            const lb_op *op = &p->ops[i];
            if (!lb_op_computes(p, op)) continue;
            lb_op_each_input(p, op, want_value, &s->bytes[k]);
            for (uint32_t r = 0; r < op->results; r++) lb_regenerated_want(&s->bytes[k], lb_op_results(p, op)[r]);
            for (uint32_t r = 0; r < op->written; r++) lb_regenerated_want(&s->bytes[k], lb_op_written(p, op)[r]);
        }
        LB_TRY(lb_regenerated_run(&s->bytes[k], err));
    }
    return LB_OK;
}

/* Selectors ask for ranks and rows of the recorded programs. */
static lb_status select_ops(const lb_explain_session *session, lb_step_pair *s, lb_err *err)
{
    const lb_program_view *side = &s->sides[0];
    if (!session->selector) return LB_OK;
    s->selected = calloc(side->program->n_ops + 1, 1);
    if (!s->selected) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t k = 0; k < side->n_parts; k++)
        LB_TRY(lb_selector_mark(session->selector, side->parts[k].program, NULL, NULL,
                                s->selected + side->parts[k].first_op, 1, NULL, err));
    return LB_OK;
}

static lb_status open_sides(const lb_explain_session *session, const lb_program_pair *m, lb_step_pair *s, lb_err *err)
{
    lb_capture *captures[] = {session->a, session->b ? session->b : session->a};
    for (int k = 0; k < 2; k++) {
        const int from = session->turned ? !k : k;
        LB_TRY(lb_program_view_init(captures[from], m->programs[from], m->n[from], &s->sides[k], err));
    }
    return LB_OK;
}

lb_status lb_step_pair_align(const lb_explain_session *session, const lb_program_pair *m, lb_step_pair *s, lb_err *err)
{
    s->rows = session->rows.places ? &session->rows : NULL;
    const lb_layer_names_map *rules[] = {session->turned ? NULL : session->rules,
                                         session->turned ? session->rules : NULL};
    LB_TRY(open_sides(session, m, s, err));
    LB_TRY(lb_alignment_make(&s->sides[0], &s->sides[1], rules[0], rules[1], s->rows, &s->alignment, err));
    return find_paths(s, rules, err);
}

/* ---- ranks ---- */

static uint32_t moved(uint32_t row, uint32_t first)
{
    return row == LB_NONE ? LB_NONE : row + first;
}

/* One rank's alignment becomes that of its part. Layers that one side calls more often are that rank's own business. */
static void place_alignment(const lb_alignment *of, const lb_program_view_part *a, const lb_program_view_part *b,
                            lb_alignment *to)
{
    for (uint32_t i = 0; i < a->program->n_ops; i++) {
        const uint32_t row = a->first_op + i;
        to->b_of_a[row] = moved(of->b_of_a[i], b->first_op);
        to->source_b_of_a[row] = moved(of->source_b_of_a[i], b->first_op);
        to->irregular[row] = of->irregular[i];
        to->join_of_a[row] = LB_NONE;
    }
    for (uint32_t i = 0; i < b->program->n_ops; i++) {
        const uint32_t row = b->first_op + i;
        to->a_of_b[row] = moved(of->a_of_b[i], a->first_op);
        to->join_of_b[row] = to->place_of_b[row] = LB_NONE;
    }
}

static bool open_alignment(uint32_t a, uint32_t b, lb_alignment *to)
{
    uint32_t **of_a[] = {&to->b_of_a, &to->source_b_of_a, &to->join_of_a},
             **of_b[] = {&to->a_of_b, &to->join_of_b, &to->place_of_b};
    bool room = true;
    for (int i = 0; i < 3; i++) {
        *of_a[i] = malloc((a + 1) * sizeof **of_a[i]), *of_b[i] = malloc((b + 1) * sizeof **of_b[i]);
        room &= *of_a[i] && *of_b[i];
    }
    to->irregular = calloc(a + 1, 1);
    return room && to->irregular;
}

lb_status lb_step_pair_open(const lb_explain_session *session, const lb_program_pair *m, lb_step_pair *s, lb_err *err)
{
    const lb_layer_names_map *rules[] = {session->rules, NULL};
    LB_TRY(open_sides(session, m, s, err));
    const uint32_t n[] = {s->sides[0].program->n_ops, s->sides[1].program->n_ops};
    lb_alignment *al = &s->alignment;
    if (!open_alignment(n[0], n[1], al)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n[0]);
    for (uint32_t i = 0; i < n[0]; i++) al->b_of_a[i] = al->source_b_of_a[i] = al->join_of_a[i] = LB_NONE;
    for (uint32_t i = 0; i < n[1]; i++) al->a_of_b[i] = al->join_of_b[i] = al->place_of_b[i] = LB_NONE;
    return find_paths(s, rules, err);
}

/* A collective corresponds when all its members' ops are members of one collective there; else none of them has a
 * partner. */
static void unpair_meetings(lb_step_pair *s, int side)
{
    uint32_t *mine = side ? s->alignment.a_of_b : s->alignment.b_of_a,
             *theirs = side ? s->alignment.b_of_a : s->alignment.a_of_b;
    const lb_collective_matches *m = &s->collective_matches[side], *other = &s->collective_matches[!side];
    for (uint32_t i = 0; i < m->n; i++) {
        const uint32_t *ops = m->ops + m->list[i].first, n = m->list[i].n;
        const uint32_t met = mine[ops[0]] == LB_NONE ? LB_NONE : other->of_op[mine[ops[0]]];
        bool all = met != LB_NONE && other->list[met].n == n;
        for (uint32_t k = 0; k < n && all; k++) all = mine[ops[k]] == other->ops[other->list[met].first + k];
        for (uint32_t k = 0; k < n && !all; k++) {
            if (mine[ops[k]] != LB_NONE) theirs[mine[ops[k]]] = LB_NONE;
            mine[ops[k]] = LB_NONE;
        }
    }
}

lb_status lb_step_pair_align_ranks(const lb_explain_session *session, const lb_program_pair *m, lb_step_pair *s,
                                   lb_err *err)
{
    const lb_layer_names_map *rules[] = {session->turned ? NULL : session->rules,
                                         session->turned ? session->rules : NULL};
    LB_TRY(open_sides(session, m, s, err));
    s->ranks = true;
    if (!open_alignment(s->sides[0].program->n_ops, s->sides[1].program->n_ops, &s->alignment))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", s->sides[0].n_parts);
    for (uint32_t r = 0; r < s->sides[0].n_parts; r++) {
        const lb_program_pair one = {{&m->programs[0][r], &m->programs[1][r]}, {1, 1}};
        lb_step_pair rank = {0};
        lb_status status = open_sides(session, &one, &rank, err);
        if (status == LB_OK)
            status = lb_alignment_make(&rank.sides[0], &rank.sides[1], rules[0], rules[1], NULL, &rank.alignment, err);
        if (status == LB_OK)
            place_alignment(&rank.alignment, &s->sides[0].parts[r], &s->sides[1].parts[r], &s->alignment);
        lb_step_pair_close(&rank);
        LB_TRY(status);
    }
    for (int k = 0; k < 2; k++) LB_TRY(lb_collective_matches_find(&s->sides[k], &s->collective_matches[k], err));
    for (int k = 0; k < 2; k++) unpair_meetings(s, k);
    return find_paths(s, rules, err);
}

/* ---- all that is read ---- */

lb_status lb_step_pair_read(const lb_explain_session *session, lb_step_pair *s, lb_err *err)
{
    LB_TRY(gather_bytes(s, err));
    LB_TRY(select_ops(session, s, err));
    s->source = (lb_matched_region_source){.a = &s->sides[0],
                                           .b = &s->sides[1],
                                           .alignment = &s->alignment,
                                           .bytes = {&s->bytes[0], &s->bytes[1]},
                                           .paths = {s->paths[0], s->paths[1]},
                                           .assemblies = &s->assemblies,
                                           .all = !session->b};
    for (int k = 0; k < 2; k++) s->source.held[k] = s->held[k];
    for (int k = 0; k < 2; k++) s->source.collective_matches[k] = s->ranks ? &s->collective_matches[k] : NULL;
    s->assemblies.how = (lb_reassembling){.b = &s->sides[1], .rows = s->rows, .bytes = &s->bytes[1]};
    if (s->rows) {
        s->row_numbers = lb_row_numbers_find(&s->alignment, &s->bytes[0], &s->bytes[1]);
        if (!s->row_numbers) return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
        s->assemblies.wholes = &s->bytes[0], s->assemblies.numbers = s->row_numbers;
    }
    return lb_matched_regions_find(&s->source, &s->regions, err);
}

/* ---- forward passes that one side alone runs, or that both run in another order ----
 *
 * They meet by the data that they are given (bisect/pairs/pair/forwards.h), and what is different about them is said
 * in the words of `diff`. A pass of one side alone is no part of an order or a kernel that could be tried: where
 * something that both sides have follows from it, the pass is the finding, and nothing that reaches into it is asked
 * for a cause. */

static const lb_forwards *passes_of(const lb_step_pair *s)
{
    return &s->alignment.forwards;
}

/* Which of the two sides the user named first. */
static int first_named(const lb_explain_session *session)
{
    return session->turned ? 1 : 0;
}

void lb_explain_note_passes(lb_explain_session *session, const lb_step_pair *s)
{
    char sentences[LB_FORWARDS_SENTENCES][300];
    const uint32_t n =
        lb_forwards_tell(passes_of(s), s->sides[0].program, s->sides[1].program, first_named(session), sentences);
    for (uint32_t i = 0; i < n; i++) lb_explain_findings_add_note(session->report, sentences[i]);
}

lb_status lb_step_pair_mark_passes(lb_step_pair *s, lb_err *err)
{
    if (!passes_of(s)->used) return LB_OK;
    for (int k = 0; k < 2; k++) {
        const uint32_t n = s->sides[k].program->n_ops;
        if (!s->other_function[k]) s->other_function[k] = calloc((size_t)n + 1, 1);
        if (!s->other_function[k]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
        for (uint32_t i = 0; i < n; i++) s->other_function[k][i] |= lb_forwards_has_no_like(passes_of(s), k, i);
    }
    return LB_OK;
}

/* The pass without a like that some op of the matched region is in; LB_NONE. */
static uint32_t reached_pass(const lb_step_pair *s, const lb_matched_region *region, int side)
{
    const lb_matched_region_side *x = &region->sides[side];
    for (uint32_t i = 0; i < x->n_ops; i++)
        if (lb_forwards_has_no_like(passes_of(s), side, x->ops[i])) return passes_of(s)->sides[side].of_op[x->ops[i]];
    return LB_NONE;
}

static lb_status add_pass(lb_explain_session *session, const lb_step_pair *s, int side, uint32_t pass,
                          const lb_matched_region *region, lb_err *err)
{
    char why[300];
    const lb_program *programs[] = {s->sides[0].program, s->sides[1].program}, *p = programs[side];
    const uint32_t op = passes_of(s)->sides[side].list[pass].first, value = region->sides[side].outputs[0];
    const char *name = lb_explain_findings_keep(session->report, lb_op_name(p, &p->ops[op]));
    lb_forwards_tell_pass(passes_of(s), programs[0], programs[1], first_named(session), side, pass, why);
    const char *what = strstr(why, ": ");
    lb_explain_finding row = {.step = p->step,
                              .rank = p->rank,
                              .phase = LB_PHASE_FORWARD,
                              .layer = lb_explain_findings_keep(session->report, lb_op_layer(p, &p->ops[op])),
                              .op = side ? "" : name,
                              .other_op = side ? name : "",
                              .index = side ? LB_NONE : op,
                              .other = side ? op : LB_NONE,
                              .cause = LB_CAUSE_UNEXPLAINED,
                              .elements = lb_layout_numel(&lb_matched_region_value(&s->source, side, value)->layout),
                              .local = NAN,
                              .total = NAN,
                              .schedule = "",
                              .first = "",
                              .also = "",
                              .why = lb_explain_findings_keep(session->report, what ? what + 2 : why)};
    row.lines[side] = lb_explain_findings_keep_line(session->report, p, op);
    return lb_explain_findings_add(session->report, &row, err);
}

lb_status lb_explain_passes(lb_explain_session *session, const lb_step_pair *s, lb_err *err)
{
    for (int side = 0; side < 2 && passes_of(s)->used; side++)
        for (uint32_t pass = 0; pass < passes_of(s)->sides[side].n; pass++)
            for (uint32_t i = 0; i < s->regions.n; i++) {
                const lb_matched_region *region = &s->regions.list[i];
                if (!lb_explain_place_wanted(s, region) || reached_pass(s, region, side) != pass) continue;
                LB_TRY(add_pass(session, s, side, pass, region, err));
                break;
            }
    return LB_OK;
}
