/* Several ops of B that are parts of one op of A (lb_reassembly): their shadows are put together as they come, and
 * compared with A's when the last part has run. */
#include "shadow/shadow_run.h"

#include "kernel/complex_rows.h"
#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

/* One join, and how far it is. */
typedef struct joined {
    const lb_shadow_run *run;
    const lb_reassembly *join;
    const lb_kept_shadow *kept; /* of the whole */
    lb_shadow_assembly *so_far;
} joined;

static int dim_of(const joined *j, uint32_t outcome)
{
    const lb_shadow_run *s = j->run;
    return lb_reassembly_outcome_dim(&s->alignment->joins, j->join, s->other->program, s->side->program, outcome);
}

/* ---- parts that come in ---- */

static void open_assembly(const lb_kept_shadow *k, lb_shadow_assembly *y)
{
    y->numbers = calloc((size_t)lb_kept_shadow_total(k) + 1, sizeof *y->numbers);
    y->each = malloc(k->n_results + 1);
    y->broken |= !y->numbers || !y->each;
    if (y->each) memset(y->each, 1, k->n_results + 1);
}

void lb_shadow_assembly_release(lb_shadow_assembly *y)
{
    free(y->numbers), free(y->each);
    y->numbers = NULL, y->each = NULL, y->broken = true;
}

static bool place_part(const joined *j, uint32_t i, uint32_t place, const lb_layout *part, const double *x)
{
    const lb_shadow_run *s = j->run;
    const lb_program *pa = s->other->program;
    const lb_value *whole = &pa->values[lb_op_outcome(pa, &pa->ops[j->join->whole], i)];
    const lb_layout all = lb_complex_layout_parts(&whole->layout, whole->dtype);
    double *out = j->so_far->numbers + j->kept->starts[i];
    int dim;
    uint32_t n;
    lb_reassembly_piece *pieces = lb_reassembly_outcome_pieces(&s->alignment->joins, j->join, pa, s->side, i, &dim, &n);
    for (uint32_t k = 0; pieces && k < n; k++)
        if (pieces[k].part == place) lb_reassembly_place(&all, dim, &pieces[k], part, sizeof *x, x, out);
    free(pieces);
    return pieces;
}

/* A part of a grid: several may have the same, or terms of it, so that all are added up. */
static bool add_to_grid(const joined *j, uint32_t i, uint32_t place, const lb_layout *part, const double *x)
{
    const lb_shadow_run *s = j->run;
    const lb_program *pa = s->other->program;
    const lb_value *whole = &pa->values[lb_op_outcome(pa, &pa->ops[j->join->whole], i)];
    const lb_layout all = lb_complex_layout_parts(&whole->layout, whole->dtype);
    const int64_t n = lb_layout_numel(part), start = j->kept->starts[i];
    double *should = calloc((size_t)n + 1, sizeof *should), *out = j->so_far->numbers + start;
    int dim;
    uint32_t n_pieces;
    lb_reassembly_piece *pieces =
        lb_reassembly_outcome_pieces(&s->alignment->joins, j->join, pa, s->side, i, &dim, &n_pieces);
    const bool done = should && pieces;
    if (done) lb_reassembly_cut(&all, dim, pieces, n_pieces, place, part, sizeof *x, j->kept->numbers + start, should);
    if (done) j->so_far->each[i] &= lb_shadow_numbers_agree(should, x, n, j->kept->noise[i]);
    for (uint32_t p = 0; done && p < n_pieces; p++)
        for (int64_t e = 0; pieces[p].part == place && e < pieces[p].size; e++)
            out[pieces[p].to + e] += x[pieces[p].from + e];
    free(should), free(pieces);
    return done;
}

/* Result `i` of part `place`. Parts of the whole's own shape may be the same in all, or add up to it: both are
 * noted. */
static void add_part(const joined *j, const lb_event *event, uint32_t i, uint32_t place)
{
    lb_shadow_assembly *y = j->so_far;
    const lb_tensor *shadow = &event->shadow[i];
    const int64_t n = shadow->data ? lb_layout_numel(&shadow->layout) : -1, start = j->kept->starts[i];
    const int dim = n < 0 ? LB_REASSEMBLY_NONE : dim_of(j, i);
    double *x = dim == LB_REASSEMBLY_NONE ? NULL : lb_shadow_numbers_copy(shadow);
    y->broken |= !x;
    if (!x) return;
    if (dim == LB_REASSEMBLY_GRID) {
        y->broken |= !add_to_grid(j, i, place, &shadow->layout, x);
    } else if (dim >= 0) {
        y->broken |= !place_part(j, i, place, &shadow->layout, x);
    } else {
        y->each[i] &= lb_shadow_numbers_agree(j->kept->numbers + start, x, n, j->kept->noise[i]);
        for (int64_t e = 0; e < n; e++) y->numbers[start + e] += x[e];
    }
    free(x);
}

/* ---- the whole ---- */

static bool agrees(const joined *j, uint32_t i, double noise)
{
    const int64_t start = j->kept->starts[i];
    return lb_shadow_numbers_agree(j->kept->numbers + start, j->so_far->numbers + start, j->kept->elements[i], noise);
}

static void divide(const joined *j, uint32_t i)
{
    double *numbers = j->so_far->numbers + j->kept->starts[i];
    for (int64_t e = 0; e < j->kept->elements[i]; e++) numbers[e] /= j->join->parts;
}

/* Parts of the whole's own shape: the same in all, their sum, or their mean; which one is not known, and if it is none
 * of them nothing is. */
static lb_agreement judge_same(const joined *j, uint32_t i, bool *terms)
{
    const double noise = j->kept->noise[i] * j->join->parts;
    if (j->so_far->each[i]) return LB_SHADOW_AGREES;
    *terms = true;
    if (agrees(j, i, noise)) return LB_SHADOW_AGREES;
    divide(j, i);
    return agrees(j, i, noise) ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
}

/* Parts put together. In backward those of a batch that ranks share out may be that many times as large: each takes the
 * mean of its own losses, and their gradients are averaged later. */
static lb_agreement judge_pieces(const joined *j, uint32_t i)
{
    const lb_shadow_run *s = j->run;
    bool agree = agrees(j, i, j->kept->noise[i]);
    if (!agree && s->other->program->ops[j->join->whole].phase == LB_PHASE_BACKWARD &&
        lb_program_views_are_uneven(s->side, s->other)) {
        divide(j, i);
        agree = agrees(j, i, j->kept->noise[i]);
    }
    return agree ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
}

/* Each part is the whole's, or terms of a sum over the ranks that have the same elements; gradients may be as many
 * times as large as there are parts of a batch. */
static lb_agreement judge_grid(const joined *j, uint32_t i, bool *terms)
{
    const lb_shadow_run *s = j->run;
    const lb_program *pa = s->other->program, *pb = s->side->program;
    const uint32_t first = s->alignment->joins.part_ops[j->join->first], parts = j->join->parts;
    const lb_layout *whole = &pa->values[lb_op_outcome(pa, &pa->ops[j->join->whole], i)].layout,
                    *part = &pb->values[lb_op_outcome(pb, &pb->ops[first], i)].layout;
    const uint32_t replicas = lb_reassembly_replicas(whole, part, parts), batch = parts / replicas;
    const int64_t n = j->kept->elements[i], start = j->kept->starts[i];
    const bool backward = pa->ops[j->join->whole].phase == LB_PHASE_BACKWARD;
    const double scales[] = {1, 1.0 / replicas, 1.0 / batch, 1.0 / parts};
    double *sum = malloc((size_t)n * sizeof *sum + 1);
    lb_agreement found = j->so_far->each[i] ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
    for (int c = 0; sum && c < (backward ? 4 : 2) && found != LB_SHADOW_AGREES; c++) {
        for (int64_t e = 0; e < n; e++) sum[e] = j->so_far->numbers[start + e] * scales[c];
        if (lb_shadow_numbers_agree(j->kept->numbers + start, sum, n, j->kept->noise[i] * replicas))
            found = LB_SHADOW_AGREES;
    }
    free(sum);
    *terms |= !j->so_far->each[i] && replicas > 1;
    return found;
}

static lb_agreement judge_join(const joined *j, bool *terms)
{
    lb_agreement agreement = LB_SHADOW_UNKNOWN;
    for (uint32_t i = 0; i < j->kept->n_results; i++) {
        if (j->kept->elements[i] < 0) continue;
        const int dim = dim_of(j, i);
        lb_agreement one = LB_SHADOW_UNKNOWN;
        if (dim == LB_REASSEMBLY_SAME) one = judge_same(j, i, terms);
        if (dim == LB_REASSEMBLY_GRID)
            one = judge_grid(j, i, terms);
        else if (dim >= 0)
            one = judge_pieces(j, i);
        if (one != LB_SHADOW_AGREES) return one;
        agreement = one;
    }
    return agreement;
}

void lb_shadow_run_join(lb_shadow_run *run, uint32_t row, uint32_t op, const lb_event *event)
{
    const uint32_t number = run->alignment->join_of_b[op], place = run->alignment->place_of_b[op];
    lb_kept_shadow *k = &run->kept[row];
    lb_shadow_assembly *y = &run->assemblies[number];
    const joined j = {run, &run->alignment->joins.list[number], k, y};
    if (!k->numbers || y->broken) return;
    if (!y->numbers) open_assembly(k, y);
    y->broken |= k->n_results != event->n_results;
    for (uint32_t i = 0; i < k->n_results && !y->broken; i++)
        if (k->elements[i] >= 0) add_part(&j, event, i, place);
    if (++y->seen < j.join->parts && !y->broken) return;
    bool terms = false;
    if (!y->broken) run->out->rows[row].agreement = judge_join(&j, &terms);
    run->out->rows[row].terms = terms && run->out->rows[row].agreement == LB_SHADOW_AGREES;
    lb_shadow_assembly_release(y);
    lb_kept_shadow_release(k, &run->room);
}
