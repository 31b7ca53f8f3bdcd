/* What the optimizers of several ranks read, parameter by parameter, beside what backward gave: the mean over copies of
 * it, or a rank's own where it is the only one. */
#include "check/rank_gradients.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The mean over its copies of what backward gave, along a direction; NaN. */
static double given(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint32_t seed)
{
    double sum = 0;
    for (uint32_t k = 0; k < copies->ranks; k++) {
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
        if (site) sum += site->measured ? site->dots[seed] * site->share : NAN;
    }
    return sum;
}

/* a / b where that is one number along both directions; NaN. */
static double one_ratio(const double a[2], const double b[2])
{
    const double first = a[0] / b[0], second = a[1] / b[1];
    return fabs(first - second) <= LB_RANK_LEAST * fabs(first) ? first : NAN;
}

/* What rank k read, divided by its own gradient. */
static double own_ratio(const lb_moved_site *site)
{
    return site->measured ? one_ratio(site->read_dots, site->dots) : NAN;
}

/* The same by the mean over all copies. */
static double read_ratio(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint32_t k)
{
    const lb_moved_site *site = copies->doubtful[group] ? NULL : lb_rank_copies_site(copies, steps, group, k);
    const double whole[2] = {given(copies, steps, group, 0), given(copies, steps, group, 1)};
    return site && site->read != LB_NONE ? one_ratio(site->read_dots, whole) : NAN;
}

/* Copies of one parameter are to read the same, whatever it is. */
static bool read_the_same(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group)
{
    const lb_moved_site *first = lb_rank_copies_site(copies, steps, group, lb_rank_copies_first(copies, group));
    for (uint32_t k = 0; k < copies->ranks; k++) {
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
        for (uint32_t seed = 0; site && seed < 2; seed++) {
            const double a = first->read_dots[seed], b = site->read_dots[seed];
            if (!(fabs(a - b) <= LB_RANK_LEAST * fmax(fabs(a), fabs(b)))) return false;
        }
    }
    return true;
}

/* The middle one of the ratios of a rank's parameters; of all ranks for LB_NONE. */
static double middle_ratio(const lb_rank_copies *copies, lb_check_step *steps, uint32_t rank)
{
    double *ratios = malloc(((size_t)copies->n * copies->ranks + 1) * sizeof *ratios);
    uint32_t counted = 0;
    for (uint32_t g = 0; ratios && g < copies->n; g++)
        for (uint32_t k = 0; k < copies->ranks; k++) {
            const double ratio = rank == LB_NONE || rank == k ? read_ratio(copies, steps, g, k) : NAN;
            if (!isnan(ratio)) ratios[counted++] = ratio;
        }
    if (counted) qsort(ratios, counted, sizeof *ratios, lb_by_f64);
    const double middle = counted ? ratios[counted / 2] : NAN;
    free(ratios);
    return middle;
}

static bool add_read(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint32_t k, double times)
{
    lb_check_step *step = &steps[k];
    const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_READ, step->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, step->run.program, step->run.graph.giver[site->read], LB_NONE, step->path);
    finding->factor = times, finding->effect = isnan(times) ? 1 : fabs(times - 1);
    char what[120] = "something else than the mean over the ranks of the gradient";
    const double own = own_ratio(site);
    if (!isnan(own)) snprintf(what, sizeof what, "%.6g times its own gradient, without the other ranks',", own);
    if (!isnan(times))
        snprintf(what, sizeof what, "%.6g times the %sgradient", times,
                 lb_rank_copies_count(copies, group) > 1 ? "mean over the ranks of the " : "");
    snprintf(finding->message, sizeof finding->message,
             "the optimizer of rank %d read %s of %s, beside what it read of the others", (int)step->run.program->rank,
             what, step->trained.rows[site->row].name);
    return true;
}

/* Ranks that multiply all of their gradients by numbers of their own: each clips by the norm of its own parts. */
static bool judge_ranks(const lb_rank_copies *copies, lb_check_step *steps, bool *found)
{
    const double first = middle_ratio(copies, steps, 0);
    *found = false;
    for (uint32_t k = 1; k < copies->ranks; k++) {
        const double other = middle_ratio(copies, steps, k);
        bool all = !isnan(other) && fabs(other - first) > LB_RANK_LEAST * fabs(first);
        uint32_t last = LB_NONE, n = 0;
        for (uint32_t g = 0; g < copies->n && all; g++) {
            if (copies->doubtful[g] || !lb_rank_copies_site(copies, steps, g, k)) continue;
            all = fabs(read_ratio(copies, steps, g, k) - other) <= LB_RANK_LEAST * fabs(other), last = g, n++;
        }
        if (!all || n < 2) continue;
        lb_check_step *step = &steps[k];
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, last, k);
        lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_READ, step->run.program);
        if (!finding) return false;
        lb_proof_list_place(finding, step->run.program, step->run.graph.giver[site->read], LB_NONE, step->path);
        finding->factor = other / first, finding->effect = fabs(other / first - 1), *found = true;
        snprintf(finding->message, sizeof finding->message,
                 "the optimizer of rank %d read %.6g times each of its %u gradients, that of rank %d %.6g times: "
                 "the ranks hold parts of one model, and each was clipped or scaled by a norm of its own",
                 (int)step->run.program->rank, other, n, (int)steps[0].run.program->rank, first);
        return true;
    }
    return true;
}

static bool say_reads(const lb_rank_copies *held, const lb_check_step *step, double middle)
{
    uint32_t copies = 0;
    for (uint32_t g = 0; g < held->n; g++) copies += lb_rank_copies_count(held, g) > 1;
    const bool sum = fabs(middle / held->ranks - 1) <= LB_RANK_LEAST, mean = fabs(middle - 1) <= LB_RANK_LEAST;
    if (!held->alike)
        return lb_proof_list_prove(
            step->report, "step %lld: the optimizers of %u ranks read their gradients as backward gave them%s",
            (long long)step->run.program->step, held->ranks, mean ? "" : ", times one number (clipping or unscaling)");
    if (!copies) return true; /* a rank reads the gradients of its own parts */
    return lb_proof_list_prove(step->report, "step %lld: the optimizers of %u ranks read the %s of their gradients%s",
                               (long long)step->run.program->step, held->ranks, sum ? "sum" : "mean",
                               sum || mean ? "" : ", times one number (clipping or unscaling)");
}

/* One parameter: `*odd` where it was found to be, `*unclear` where all ranks read one thing that no number explains. */
static bool judge_read(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, double middle, bool *odd,
                       bool *unclear)
{
    *odd = *unclear = false;
    if (copies->doubtful[group]) return true;
    for (uint32_t k = 0; k < copies->ranks; k++) {
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
        if (site && (site->read == LB_NONE || site->start != LB_NONE || !site->measured)) return true;
    }
    for (uint32_t k = 0; k < copies->ranks && !*odd; k++) {
        if (!lb_rank_copies_site(copies, steps, group, k)) continue;
        const double times = read_ratio(copies, steps, group, k) / middle;
        if (fabs(times - 1) <= LB_RANK_LEAST) continue;
        *unclear = isnan(times) && read_the_same(copies, steps, group);
        if (*unclear) return true;
        *odd = true;
        if (!add_read(copies, steps, group, k, times)) return false;
    }
    return true;
}

/* ---- where no number explains what most of them read ---- */

static bool reads_its_own(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group)
{
    bool own = true;
    for (uint32_t k = 0; k < copies->ranks; k++) {
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
        own &= !site || !isnan(own_ratio(site));
    }
    return own;
}

/* Copies that read different things, none of which is a multiple of the rank's own gradient. */
static bool add_apart(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group)
{
    lb_check_step *step = &steps[lb_rank_copies_first(copies, group)];
    const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, lb_rank_copies_first(copies, group));
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_READ, step->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, step->run.program, step->run.graph.giver[site->read], LB_NONE, step->path);
    finding->effect = 1;
    snprintf(finding->message, sizeof finding->message,
             "%u ranks hold copies of %s, and their optimizers read different gradients of it, "
             "neither the mean over those ranks nor each its own: "
             "gradients were added up over other ranks than those that hold copies",
             lb_rank_copies_count(copies, group), step->trained.rows[site->row].name);
    return true;
}

static bool judge_apart(const lb_rank_copies *c, lb_check_step *steps)
{
    uint32_t own = 0, copies = 0;
    for (uint32_t g = 0; g < c->n; g++) {
        if (c->doubtful[g] || lb_rank_copies_count(c, g) < 2) continue;
        copies++, own += reads_its_own(c, steps, g);
        if (!reads_its_own(c, steps, g) && !read_the_same(c, steps, g)) return add_apart(c, steps, g);
    }
    return lb_proof_list_leave(steps[0].report, "what the optimizers read",
                               copies && own == copies
                                   ? "each rank reads its own gradients, so that copies train apart"
                                   : "it is not a multiple of the mean over the ranks of their gradients");
}

bool lb_rank_reads_judge(const lb_rank_copies *copies, lb_check_step *steps)
{
    const double middle = middle_ratio(copies, steps, LB_NONE);
    uint32_t found = 0, left = 0;
    bool apart = false;
    if (!copies->alike && !judge_ranks(copies, steps, &apart)) return false;
    if (isnan(middle) && !apart) return judge_apart(copies, steps);
    for (uint32_t g = 0; g < copies->n && !apart; g++) {
        bool odd, unclear;
        if (!judge_read(copies, steps, g, middle, &odd, &unclear)) return false;
        found += odd, left += unclear;
        if (found == 3) return true; /* enough to see what they have in common */
    }
    if (apart) return true;
    if (left)
        return lb_proof_list_leave(
            steps[0].report, "what the optimizers read",
            "of %u parameters all ranks read one thing that is not a multiple of the mean of their gradients", left);
    return found || say_reads(copies, &steps[0], middle);
}
