/* What follows from a choice made differently: see flip_reach.h. */
#include "shadow/flip_reach.h"

#include "shadow/cross_feed.h"
#include "shadow/shadow_numbers.h"
#include "program/slice.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK_AHEAD = 64, MOST_ROOTS = 64 };

static uint32_t *none_list(uint32_t n)
{
    uint32_t *list = malloc((n + (size_t)1) * sizeof *list);
    if (list) memset(list, 0xFF, (n + (size_t)1) * sizeof *list);
    return list;
}

static void turn_round(const uint32_t *b_of_a, uint32_t n_a, uint32_t *a_of_b)
{
    for (uint32_t i = 0; i < n_a; i++)
        if (b_of_a[i] != LB_NONE) a_of_b[b_of_a[i]] = i;
}

static lb_status make_room(lb_flip_reach *reach, lb_err *err)
{
    const uint32_t na = reach->a->program->n_ops, nb = reach->b->program->n_ops;
    LB_TRY(lb_slice_flow_new(reach->a->program, &reach->flows[0], err));
    LB_TRY(lb_slice_flow_new(reach->b->program, &reach->flows[1], err));
    reach->which = calloc(nb + (size_t)1, sizeof *reach->which);
    reach->asked = calloc(nb + (size_t)1, 1), reach->met = calloc(nb + (size_t)1, 1);
    reach->met_of[0] = none_list(na), reach->met_of[1] = none_list(nb);
    reach->reshaped_of_b = none_list(nb), reach->source_of_b = none_list(nb);
    if (!reach->which || !reach->asked || !reach->met || !reach->met_of[0] || !reach->met_of[1] ||
        !reach->reshaped_of_b || !reach->source_of_b)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", nb);
    turn_round(reach->alignment->reshaped_b_of_a, na, reach->reshaped_of_b);
    turn_round(reach->alignment->source_b_of_a, na, reach->source_of_b);
    return LB_OK;
}

lb_status lb_flip_reach_open(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             const uint8_t *wanted, lb_flip_reach *reach, lb_err *err)
{
    *reach = (lb_flip_reach){.a = a, .b = b, .alignment = alignment, .wanted = wanted};
    LB_TRY(lb_flips_find(a, b, alignment, &reach->flips, err));
    return reach->flips.n ? make_room(reach, err) : LB_OK;
}

void lb_flip_reach_close(lb_flip_reach *reach)
{
    lb_flips_release(&reach->flips);
    for (int side = 0; side < 2; side++) lb_slice_flow_free(reach->flows[side]), free(reach->met_of[side]);
    free(reach->which), free(reach->asked), free(reach->met), free(reach->reshaped_of_b), free(reach->source_of_b);
    *reach = (lb_flip_reach){0};
}

/* ---- which choices ---- */

static uint64_t flips_of(const lb_flips *flips, uint32_t op)
{
    uint64_t which = 0;
    for (uint32_t i = 0; i < flips->n; i++)
        if (flips->list[i].op == op) which |= lb_flips_bit(i);
    return which;
}

/* Ops that have no event (views) hand on what they read. */
uint64_t lb_flip_reach_of(lb_flip_reach *reach, uint32_t op)
{
    if (!reach->flips.n) return 0;
    if (reach->asked[op]) return reach->which[op];
    uint64_t which = flips_of(&reach->flips, op);
    for (uint32_t k = reach->flows[1]->first_def[op]; k < reach->flows[1]->first_def[op + 1]; k++)
        if (reach->flows[1]->defs[k] < op) which |= lb_flip_reach_of(reach, reach->flows[1]->defs[k]);
    reach->asked[op] = 1;
    return reach->which[op] = which;
}

void lb_flip_reach_end(lb_flip_reach *reach, uint32_t op)
{
    if (reach->flips.n) reach->asked[op] = 1, reach->which[op] = flips_of(&reach->flips, op);
}

/* ---- what has met ---- */

void lb_flip_reach_meet(lb_flip_reach *reach, uint32_t a, uint32_t b, lb_met how)
{
    if (!reach->flips.n) return;
    /* Of a choice itself both shadows hold A's, and what it indexes is what was recorded. */
    reach->met[b] = (uint8_t)(flips_of(&reach->flips, b) ? LB_MET_BUT_ROWS : how);
    reach->met_of[0][a] = b, reach->met_of[1][b] = a;
}

uint32_t lb_flip_reach_reshaped(const lb_flip_reach *reach, uint32_t b)
{
    return reach->flips.n ? reach->reshaped_of_b[b] : LB_NONE;
}

/* What an op of that side has met: the other side's op; LB_NONE where it is not known to be the same. */
static uint32_t partner_of(const lb_flip_reach *reach, int side, uint32_t op)
{
    const lb_alignment *al = reach->alignment;
    if (reach->met_of[side][op] != LB_NONE) return reach->met_of[side][op];
    const uint32_t source = side ? reach->source_of_b[op] : al->source_b_of_a[op];
    if (source != LB_NONE) return source;
    const uint32_t other = side ? al->a_of_b[op] : al->b_of_a[op];
    if (other == LB_NONE) return LB_NONE;
    return reach->wanted[side ? other : op] ? LB_NONE : other;
}

/* The ops that one reads from, casts of one side alone not counted. */
typedef struct roots {
    uint32_t ops[MOST_ROOTS], n;
    bool lost; /* some have met nothing, or there are too many */
} roots;

static bool has_root(const roots *list, uint32_t op)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->ops[i] == op) return true;
    return false;
}

static void list_roots(const lb_flip_reach *reach, int side, uint32_t op, roots *out)
{
    const lb_slice_flow *flow = reach->flows[side];
    const lb_program *p = flow->program;
    for (uint32_t k = flow->first_def[op]; k < flow->first_def[op + 1] && !out->lost; k++) {
        const uint32_t def = flow->defs[k];
        if (has_root(out, def)) continue;
        if (partner_of(reach, side, def) != LB_NONE) {
            if (out->n < MOST_ROOTS) out->ops[out->n] = def;
            out->lost |= out->n++ >= MOST_ROOTS;
        } else if (lb_cross_feed_op_hands_on(p, &p->ops[def]) && def < op) {
            list_roots(reach, side, def, out);
        } else {
            out->lost = true;
        }
    }
}

static bool all_among(const lb_flip_reach *reach, int side, const roots *mine, const roots *theirs)
{
    for (uint32_t i = 0; i < mine->n; i++)
        if (!has_root(theirs, partner_of(reach, side, mine->ops[i]))) return false;
    return true;
}

bool lb_flip_reach_explains(lb_flip_reach *reach, uint32_t a, uint32_t b)
{
    const lb_program *pa = reach->a->program, *pb = reach->b->program;
    roots read[2] = {{.n = 0}, {.n = 0}};
    bool moved = false;
    if (strcmp(lb_op_name(pa, &pa->ops[a]), lb_op_name(pb, &pb->ops[b])) ||
        !lb_op_same_args(pa, &pa->ops[a], pb, &pb->ops[b], 0))
        return false;
    list_roots(reach, 0, a, &read[0]), list_roots(reach, 1, b, &read[1]);
    if (read[0].lost || read[1].lost) return false;
    if (!all_among(reach, 0, &read[0], &read[1]) || !all_among(reach, 1, &read[1], &read[0])) return false;
    for (uint32_t i = 0; i < read[1].n; i++) moved |= reach->met[read[1].ops[i]] == LB_MET_BUT_ROWS;
    return moved;
}

/* ---- rows ---- */

/* Rows on both sides, walked in order. */
typedef struct row_walk {
    const lb_shadow_rows *a, *b;
    int64_t i, j;
    int64_t left_a, left_b; /* rows that may still be passed over */
    double noise;
} row_walk;

static bool is_same_row(const row_walk *w, int64_t i, int64_t j)
{
    const int64_t width = w->a->width;
    return lb_shadow_numbers_agree(w->a->numbers + i * width, w->b->numbers + j * width, width, w->noise);
}

/* Passes over the fewest rows behind which one is the same again. */
static bool pass_over(row_walk *w)
{
    for (int64_t total = 1; total <= LOOK_AHEAD; total++)
        for (int64_t x = 0; x <= total; x++) {
            const int64_t y = total - x;
            if (x > w->left_a || y > w->left_b || w->i + x >= w->a->n || w->j + y >= w->b->n) continue;
            if (!is_same_row(w, w->i + x, w->j + y)) continue;
            w->i += x, w->j += y, w->left_a -= x, w->left_b -= y;
            return true;
        }
    return false;
}

bool lb_flip_reach_same_rows(const lb_flip_reach *reach, uint64_t which, const lb_shadow_rows *a,
                             const lb_shadow_rows *b, double noise)
{
    int64_t moved = 0, same = 0;
    for (uint32_t k = 0; k < reach->flips.n; k++)
        if (which & lb_flips_bit(k)) moved += lb_flips_count(&reach->flips.list[k]);
    row_walk w = {.a = a, .b = b, .left_a = moved, .left_b = moved, .noise = noise};
    while (w.i < a->n && w.j < b->n) {
        if (!is_same_row(&w, w.i, w.j) && !pass_over(&w)) break;
        w.i++, w.j++, same++;
    }
    return same > 0 && a->n - w.i <= w.left_a && b->n - w.j <= w.left_b;
}
