/* Matching by projections: see exact_match.h. */
#include "shadow/exact_match.h"
#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMPARISONS = 1 << 24 };

/* ---- what may meet ---- */

/* Pairs of a regular group are partners by all that is known; only what stands beside them may be matched otherwise. */
static bool may_match(const lb_exact_match *match, int side, uint32_t op)
{
    const lb_alignment *al = match->alignment;
    const uint32_t partner = side ? al->a_of_b[op] : al->b_of_a[op];
    if (!lb_op_computes(match->program[side], &match->program[side]->ops[op])) return false;
    if ((side ? al->join_of_b[op] : al->join_of_a[op]) != LB_NONE) return false;
    return partner == LB_NONE || al->irregular[side ? partner : op];
}

/* Result i of an op, as far as what meets it has to be like it: of several results only the same op gives what the
 * other gives, one by one. */
static uint64_t form_of(const lb_program *program, const lb_op *op, uint32_t i)
{
    const uint32_t v = lb_op_outcome(program, op, i);
    struct {
        uint64_t name, elements;
        uint32_t phase, result;
    } form = {0};
    const char *name = lb_op_name(program, op);
    const bool alone = op->results <= 1;
    form.name = alone ? 0 : lb_digest_bytes(name, strlen(name)).lo;
    form.elements = v == LB_NONE ? 0 : (uint64_t)lb_layout_numel(&program->values[v].layout);
    form.phase = (uint32_t)op->phase, form.result = alone ? 0 : i;
    return lb_digest_bytes(&form, sizeof form).lo;
}

static bool list_forms(lb_exact_match *match, int side)
{
    const lb_program *program = match->program[side];
    size_t room = 1;
    for (uint32_t i = 0; i < program->n_ops; i++) room += lb_op_outcomes(&program->ops[i]);
    uint64_t *forms = malloc(room * sizeof *forms);
    match->forms[side] = forms;
    for (uint32_t i = 0; forms && i < program->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]) && may_match(match, side, i); k++)
            forms[match->n_forms[side]++] = form_of(program, &program->ops[i], k);
    if (forms) qsort(forms, match->n_forms[side], sizeof *forms, lb_by_u64);
    return forms != NULL;
}

static bool has_form_of(const lb_exact_match *match, int side, uint32_t op, uint32_t i)
{
    const uint64_t form = form_of(match->program[!side], &match->program[!side]->ops[op], i);
    return bsearch(&form, match->forms[side], match->n_forms[side], sizeof form, lb_by_u64) != NULL;
}

lb_status lb_exact_match_init(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                              lb_exact_match *match, lb_err *err)
{
    *match = (lb_exact_match){.program = {a->program, b->program}, .alignment = alignment};
    for (int i = 0; i < 2; i++) match->results[i] = calloc(match->program[i]->n_ops + 1, sizeof *match->results[i]);
    if (match->results[0] && match->results[1] && list_forms(match, 0) && list_forms(match, 1)) return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", a->program->n_ops + b->program->n_ops);
}

void lb_exact_match_release(lb_exact_match *match)
{
    free(match->results[0]), free(match->results[1]);
    free(match->forms[0]), free(match->forms[1]);
    *match = (lb_exact_match){0};
}

/* Result i as reals, where it is none that is listed before: an op in place lists what it writes twice. */
static const lb_tensor *result_of(const lb_event *event, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (event->values[k] == event->values[i]) return NULL;
    const lb_tensor *t = &event->shadow[i];
    return event->values[i] != LB_NONE && t->data && t->dtype == LB_F64 ? t : NULL;
}

void lb_exact_match_note(lb_exact_match *match, int side, bool disturbed, uint32_t op, const lb_event *event)
{
    if (event->n_results > 2 * LB_MATCH_RESULTS || !may_match(match, side, op)) return;
    for (uint32_t i = 0; i < event->n_results && i < LB_MATCH_RESULTS; i++) {
        const lb_tensor *result = result_of(event, i);
        lb_shadow_projection *p = &match->results[side][op][i];
        if (!result) continue;
        if (!has_form_of(match, !side, op, i)) {
            p->elements = lb_layout_numel(&result->layout); /* nothing has as many that may meet it */
            continue;
        }
        const lb_shadow_projection now = lb_shadow_projection_of(result);
        if (!disturbed) *p = now;
        for (int k = 0; k < 4 && disturbed; k++) p->noise = fmax(p->noise, fabs(p->sums[k] - now.sums[k]));
    }
}

static bool has_numbers(const lb_shadow_projection *list)
{
    for (int i = 0; i < LB_MATCH_RESULTS; i++)
        if (list[i].elements && list[i].norm > 0) return true;
    return false;
}

/* Everything that both give agrees, and it is something: a backward op may leave out what is not asked for. */
static bool agree(const lb_shadow_projection *a, const lb_shadow_projection *b)
{
    bool any = false;
    for (int i = 0; i < LB_MATCH_RESULTS; i++) {
        if (!a[i].elements || !b[i].elements) continue;
        if (!lb_shadow_projections_agree(&a[i], &b[i])) return false;
        any |= a[i].norm > 0;
    }
    return any;
}

static bool tell(const lb_shadow_projection *a, const lb_shadow_projection *b)
{
    for (int i = 0; i < LB_MATCH_RESULTS; i++)
        if (a[i].elements && b[i].elements && !lb_shadow_projections_tell(&a[i], &b[i])) return false;
    return true;
}

/* Of several results only the same op gives what the other gives. */
static bool may_meet(const lb_exact_match *match, uint32_t a, uint32_t b)
{
    const lb_op *x = &match->program[0]->ops[a], *y = &match->program[1]->ops[b];
    if (x->phase != y->phase) return false;
    if (x->results <= 1 && y->results <= 1) return true;
    return !strcmp(lb_op_name(match->program[0], x), lb_op_name(match->program[1], y));
}

static bool is_free(const lb_exact_match *match, const lb_shadow_pair *out, int side, uint32_t op)
{
    const lb_alignment *al = match->alignment;
    uint32_t row = side ? al->a_of_b[op] : op;
    if (!has_numbers(match->results[side][op]) || out->meets[side][op] != LB_NONE) return false;
    if ((side ? al->a_of_b[op] : al->b_of_a[op]) == LB_NONE) return true;
    return out->rows[row].agreement == LB_SHADOW_DISAGREES;
}

static uint32_t *list_free(const lb_exact_match *match, const lb_shadow_pair *out, int side, uint32_t *n)
{
    uint32_t *list = malloc((match->program[side]->n_ops + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < match->program[side]->n_ops; i++)
        if (is_free(match, out, side, i)) list[(*n)++] = i;
    return list;
}

/* First come, first served, in order of execution: of equal quantities (a value and its copy) the earlier meets the
 * earlier. */
static void match_lists(const lb_exact_match *match, const uint32_t *a, uint32_t na, const uint32_t *b, uint32_t nb,
                        lb_shadow_pair *out)
{
    uint64_t comparisons = 0;
    for (uint32_t i = 0; i < na && comparisons < MOST_COMPARISONS; i++)
        for (uint32_t j = 0; j < nb; j++) {
            if (out->meets[1][b[j]] != LB_NONE) continue;
            if (!may_meet(match, a[i], b[j])) continue;
            comparisons++;
            if (!agree(match->results[0][a[i]], match->results[1][b[j]])) continue;
            out->meets[0][a[i]] = b[j], out->meets[1][b[j]] = a[i];
            out->rows[a[i]].told = tell(match->results[0][a[i]], match->results[1][b[j]]);
            break;
        }
}

lb_status lb_exact_match_find(const lb_exact_match *match, lb_shadow_pair *out, lb_err *err)
{
    uint32_t n[2] = {0, 0}, *lists[2] = {NULL, NULL};
    bool room = true;
    for (int i = 0; i < 2; i++) {
        const size_t bytes = (match->program[i]->n_ops + 1) * sizeof(uint32_t);
        out->meets[i] = malloc(bytes);
        if (out->meets[i]) memset(out->meets[i], 0xFF, bytes);
        room = room && out->meets[i];
    }
    for (int i = 0; i < 2 && room; i++) room = (lists[i] = list_free(match, out, i, &n[i])) != NULL;
    if (room) match_lists(match, lists[0], n[0], lists[1], n[1], out);
    free(lists[0]), free(lists[1]);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", match->program[0]->n_ops);
}
