/* How far runs of A are apart: see noise.h. */
#include "shadow/noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct other_run {
    const lb_program_view *a;
    lb_program_view b;
    const lb_program *pa, *pb;
    lb_noise *noise;
} other_run;

static void measure_value(const other_run *r, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    lb_difference d;
    if (va == LB_NONE || vb == LB_NONE || lb_digest_is_none(r->pa->values[va].logical)) return;
    if (lb_digest_equal(r->pa->values[va].logical, r->pb->values[vb].logical)) return;
    if (lb_program_view_value(r->a, va, &a, NULL) != LB_OK || lb_program_view_value(&r->b, vb, &b, NULL) != LB_OK)
        return;
    if (lb_compare_numbers(&a, &b, &d, NULL) != LB_OK) return;
    r->noise->max_abs[va] = fmax(r->noise->max_abs[va], d.nonfinite ? INFINITY : d.max_abs);
    r->noise->rel_l2[va] = fmax(r->noise->rel_l2[va], d.nonfinite ? INFINITY : d.rel_l2);
}

static void measure_op(const other_run *r, const lb_op *a, const lb_op *b)
{
    for (uint32_t i = 0; i < a->results && a->results == b->results; i++)
        measure_value(r, lb_op_results(r->pa, a)[i], lb_op_results(r->pb, b)[i]);
    for (uint32_t i = 0; i < a->written && a->written == b->written; i++)
        measure_value(r, lb_op_written(r->pa, a)[i], lb_op_written(r->pb, b)[i]);
}

static lb_status measure_run(const other_run *r, lb_err *err)
{
    lb_alignment alignment;
    LB_TRY(lb_alignment_make(r->a, &r->b, NULL, NULL, NULL, &alignment, err));
    for (uint32_t i = 0; i < r->pa->n_ops; i++) {
        uint32_t j = alignment.b_of_a[i] != LB_NONE ? alignment.b_of_a[i] : alignment.source_b_of_a[i];
        if (j != LB_NONE) measure_op(r, &r->pa->ops[i], &r->pb->ops[j]);
    }
    lb_alignment_release(&alignment);
    r->noise->runs++;
    return LB_OK;
}

/* The programs of a run that are those of `first`, as a side; `*found` false: it lacks some. */
static lb_status take_run(lb_capture *run, const lb_program_view *first, lb_program_view *side, bool *found,
                          lb_err *err)
{
    const lb_program **programs = malloc(first->n_parts * sizeof *programs);
    if (!programs) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *found = true;
    for (uint32_t p = 0; p < first->n_parts && *found; p++) {
        const lb_program *part = first->parts[p].program;
        *found = lb_capture_program(run, part->rank, part->step, &programs[p], NULL) == LB_OK;
    }
    const lb_status status = *found ? lb_program_view_init(run, programs, first->n_parts, side, err) : LB_OK;
    free(programs);
    return status;
}

lb_status lb_noise_measure(const lb_program_view *a, lb_capture *const *runs, uint32_t n_runs, lb_noise *noise,
                           lb_err *err)
{
    const lb_program *pa = a->program;
    memset(noise, 0, sizeof *noise);
    noise->max_abs = calloc(pa->n_values + 1, sizeof *noise->max_abs);
    noise->rel_l2 = calloc(pa->n_values + 1, sizeof *noise->rel_l2);
    lb_status status = noise->max_abs && noise->rel_l2 ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n_runs && status == LB_OK; i++) {
        other_run r = {.a = a, .pa = pa, .noise = noise};
        bool found = false;
        status = take_run(runs[i], a, &r.b, &found, err);
        r.pb = r.b.program;
        if (status == LB_OK && found) status = measure_run(&r, err);
        if (found) lb_program_view_release(&r.b);
    }
    if (status != LB_OK) lb_noise_release(noise);
    return status;
}

void lb_noise_release(lb_noise *noise)
{
    free(noise->max_abs), free(noise->rel_l2);
    memset(noise, 0, sizeof *noise);
}

bool lb_noise_covers(const lb_noise *noise, const uint32_t *values, uint32_t n, const lb_difference *d)
{
    double max_abs = 0, rel_l2 = 0;
    for (uint32_t i = 0; i < n && noise->runs; i++) {
        if (values[i] == LB_NONE) return false;
        max_abs = fmax(max_abs, noise->max_abs[values[i]]), rel_l2 = fmax(rel_l2, noise->rel_l2[values[i]]);
    }
    if (max_abs == 0) return false;
    bool finite = d->nonfinite == 0 || max_abs == INFINITY;
    return finite && d->max_abs <= 2 * max_abs && d->rel_l2 <= 2 * rel_l2;
}
