/* What the optimizer read beside what backward left: clipping and unscaling multiply all gradients by one number, so
 * that a gradient that was multiplied by twice, or half, what the others were was added or divided once too often. */
#include "check/fault_place.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Read / given where that is one number along both directions; NaN. */
static double ratio_of(const lb_moved_site *site)
{
    const double a = site->read_dots[0] / site->dots[0], b = site->read_dots[1] / site->dots[1];
    return site->dots[0] != 0 && site->dots[1] != 0 && fabs(a - b) <= 1e-6 * fabs(a) ? a : NAN;
}

/* Backward gave it where the optimizer reads it: what a program copied or added up in between is not compared. */
static bool is_compared(const lb_check_step *step, const lb_moved_site *site)
{
    if (site->row == LB_NONE || !site->measured || site->read == LB_NONE || site->start != LB_NONE) return false;
    const uint32_t giver = step->run.graph.giver[site->gradient];
    return giver != LB_NONE && step->run.program->ops[giver].phase == LB_PHASE_BACKWARD;
}

static bool add_finding(lb_check_step *step, const lb_moved_site *site, double times)
{
    const lb_program *program = step->run.program;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_READ, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, step->run.graph.giver[site->read], LB_NONE, step->path);
    finding->factor = times, finding->effect = fabs(times - 1);
    snprintf(finding->message, sizeof finding->message,
             "the optimizer read %.6g times the gradient that backward gave for %s, "
             "beside what all others were multiplied by",
             times, step->trained.rows[site->row].name);
    return true;
}

bool lb_check_step_read(lb_check_step *step)
{
    double *ratios = malloc(((size_t)step->run.n_sites + 1) * sizeof *ratios);
    uint32_t n = 0, odd = 0, alike = 0;
    if (!ratios) return false;
    for (uint32_t i = 0; i < step->run.n_sites; i++) {
        const double ratio = is_compared(step, &step->run.sites[i]) ? ratio_of(&step->run.sites[i]) : NAN;
        if (!isnan(ratio)) ratios[n++] = ratio;
    }
    if (n) qsort(ratios, n, sizeof *ratios, lb_by_f64);
    const double middle = n ? ratios[n / 2] : NAN;
    free(ratios);
    for (uint32_t i = 0; i < step->run.n_sites && n >= 3; i++) {
        const double times = is_compared(step, &step->run.sites[i]) ? ratio_of(&step->run.sites[i]) / middle : NAN;
        alike += fabs(times - 1) <= 1e-6;
        if (!(times > 0) || !lb_fault_place_is_count(times)) continue;
        odd++;
        if (!add_finding(step, &step->run.sites[i], times)) return false;
    }
    if (!odd && alike == n && n)
        return lb_proof_list_prove(step->report,
                                   "step %lld: the optimizer read all %u gradients as backward gave them%s",
                                   (long long)step->run.program->step, n,
                                   fabs(middle - 1) > 1e-6 ? ", times one number (clipping or unscaling)" : "");
    return true;
}
