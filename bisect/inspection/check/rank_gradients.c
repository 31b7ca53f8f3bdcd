/* Gradients over ranks that hold copies of one model, or parts of it: their programs run together, a copy is moved
 * alike on all of them and a part on its own, and the mean of their losses changes by the mean of the copies' gradients
 * and by the parts'. What the optimizer reads of a copy is then compared with that mean, parameter by parameter. */
#include "check/check_step.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double LEAST = 1e-4; /* see check_step.c */

/* ---- whether they are copies ---- */

/* Does the rank hold a part of a larger parameter? */
static bool is_part(const lb_program *p, uint32_t value)
{
    uint32_t n;
    const lb_shard *shard = lb_program_shards_of(p, value, &n);
    if (!shard) return false;
    const lb_layout whole = lb_shard_whole(p, shard), part = lb_shard_part(p, shard);
    return n > 1 || lb_layout_numel(&part) < lb_layout_numel(&whole);
}

/* Why the ranks are not judged together; NULL: they are. */
static const char *are_no_copies(const lb_check_step *steps, uint32_t n)
{
    const lb_check_step *first = &steps[0];
    for (uint32_t k = 0; k < n; k++) {
        const lb_check_step *c = &steps[k];
        const char *why = lb_check_step_lacks(c);
        if (why) return why;
        if (c->trained.unseen) return "the step was not seen to begin with all parameters";
        if (c->trained.n != first->trained.n || c->run.n_roots != first->run.n_roots)
            return "its ranks do not train the same parameters";
        for (uint32_t i = 0; i < c->trained.n; i++) {
            const lb_value *a = &first->run.program->values[first->trained.rows[i].source],
                           *b = &c->run.program->values[c->trained.rows[i].source];
            if (strcmp(first->trained.rows[i].name, c->trained.rows[i].name) != 0)
                return "its ranks do not train the same parameters";
            if (is_part(c->run.program, c->trained.rows[i].source)) continue;
            if (!lb_digest_equal(a->logical, b->logical) || lb_digest_is_none(a->logical))
                return "its ranks hold parts of parameters that are not known as such, or begin with other numbers";
        }
    }
    return NULL;
}

/* ---- what optimizers read ---- */

/* The mean over ranks of what backward gave for a site, along a direction; NaN. */
static double mean_dot(const lb_check_step *steps, uint32_t n, uint32_t site, uint32_t seed)
{
    double sum = 0;
    for (uint32_t k = 0; k < n; k++)
        sum += steps[k].run.sites[site].measured ? steps[k].run.sites[site].dots[seed] / n : NAN;
    return sum;
}

/* What rank k read, divided by its own gradient, where that is one number; NaN. */
static double own_ratio(const lb_check_step *steps, uint32_t k, uint32_t site)
{
    const lb_moved_site *s = &steps[k].run.sites[site];
    const double a = s->read_dots[0] / s->dots[0], b = s->read_dots[1] / s->dots[1];
    return fabs(a - b) <= LEAST * fabs(a) ? a : NAN;
}

/* What rank k read, divided by the mean, where that is one number along two directions; NaN. */
static double read_ratio(const lb_check_step *steps, uint32_t n, uint32_t k, uint32_t site)
{
    const lb_moved_site *s = &steps[k].run.sites[site];
    if (s->part) return own_ratio(steps, k, site);
    const double a = s->read_dots[0] / mean_dot(steps, n, site, 0), b = s->read_dots[1] / mean_dot(steps, n, site, 1);
    return s->read != LB_NONE && fabs(a - b) <= LEAST * fabs(a) ? a : NAN;
}

/* Copies of one parameter are to read the same, whatever it is. */
static bool read_the_same(const lb_check_step *steps, uint32_t n, uint32_t site)
{
    if (steps[0].run.sites[site].part) return true;
    for (uint32_t k = 1; k < n; k++)
        for (uint32_t seed = 0; seed < 2; seed++) {
            const double a = steps[0].run.sites[site].read_dots[seed], b = steps[k].run.sites[site].read_dots[seed];
            if (!(fabs(a - b) <= LEAST * fmax(fabs(a), fabs(b)))) return false;
        }
    return true;
}

static double middle_ratio(const lb_check_step *steps, uint32_t n)
{
    const uint32_t sites = steps[0].run.n_sites;
    double *ratios = malloc(((size_t)sites + 1) * sizeof *ratios);
    uint32_t counted = 0;
    for (uint32_t i = 0; ratios && i < sites; i++) {
        const double ratio = read_ratio(steps, n, 0, i);
        if (!isnan(ratio)) ratios[counted++] = ratio;
    }
    if (counted) qsort(ratios, counted, sizeof *ratios, lb_by_f64);
    const double middle = counted ? ratios[counted / 2] : NAN;
    free(ratios);
    return middle;
}

static bool add_read(lb_check_step *steps, uint32_t k, uint32_t site, double times)
{
    lb_check_step *c = &steps[k];
    const lb_moved_site *s = &c->run.sites[site];
    lb_check_finding *f = lb_proof_list_add(c->report, LB_CHECK_READ, c->run.program);
    if (!f) return false;
    lb_proof_list_place(f, c->run.program, c->run.graph.giver[s->read], LB_NONE, c->path);
    f->factor = times, f->effect = isnan(times) ? 1 : fabs(times - 1);
    char what[120] = "something else than the mean over the ranks of the gradient";
    const double own = own_ratio(steps, k, site);
    if (!isnan(own)) snprintf(what, sizeof what, "%.6g times its own gradient, without the other ranks',", own);
    if (!isnan(times)) snprintf(what, sizeof what, "%.6g times the mean over the ranks of the gradient", times);
    snprintf(f->message, sizeof f->message, "the optimizer of rank %d read %s of %s, beside what it read of the others",
             (int)c->run.program->rank, what, c->trained.rows[s->row].name);
    return true;
}

static bool say_reads(const lb_check_step *steps, uint32_t n, double middle)
{
    const lb_check_step *c = &steps[0];
    uint32_t copies = 0;
    for (uint32_t i = 0; i < c->run.n_sites; i++) copies += !c->run.sites[i].part;
    if (!copies) return true; /* a rank reads the gradients of its own parts */
    const bool sum = fabs(middle / n - 1) <= LEAST, mean = fabs(middle - 1) <= LEAST;
    return lb_proof_list_prove(c->report, "step %lld: the optimizers of %u ranks read the %s of their gradients%s",
                               (long long)c->run.program->step, n, sum ? "sum" : "mean",
                               sum || mean ? "" : ", times one number (clipping or unscaling)");
}

/* One parameter: `*odd` where it was found to be, `*unclear` where all ranks read one thing that no number explains. */
static bool judge_read(lb_check_step *steps, uint32_t n, uint32_t site, double middle, bool *odd, bool *unclear)
{
    *odd = *unclear = false;
    for (uint32_t k = 0; k < n; k++) {
        const lb_moved_site *s = &steps[k].run.sites[site];
        if (s->read == LB_NONE || s->start != LB_NONE || !s->measured) return true;
    }
    for (uint32_t k = 0; k < n && !*odd; k++) {
        const double times = read_ratio(steps, n, k, site) / middle;
        if (fabs(times - 1) <= LEAST) continue;
        *unclear = isnan(times) && read_the_same(steps, n, site);
        if (*unclear) return true;
        *odd = true;
        if (!add_read(steps, k, site, times)) return false;
    }
    return true;
}

static bool judge_reads(lb_check_step *steps, uint32_t n)
{
    const double middle = middle_ratio(steps, n);
    uint32_t found = 0, left = 0;
    for (uint32_t i = 0; i < steps[0].run.n_sites && !isnan(middle); i++) {
        bool odd, unclear;
        if (!judge_read(steps, n, i, middle, &odd, &unclear)) return false;
        found += odd, left += unclear;
        if (found == 3) return true; /* enough to see what they have in common */
    }
    if (left || isnan(middle))
        return lb_proof_list_leave(steps[0].report, "what the optimizers read",
                                   "of %u parameters all ranks read one thing that is no multiple of the mean of their "
                                   "gradients",
                                   isnan(middle) ? steps[0].run.n_sites : left);
    return found || say_reads(steps, n, middle);
}

/* ---- all of it ---- */

static void activate(lb_check_step *steps, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < steps[k].run.n_sites; i++) {
            bool all = true; /* a parameter is moved on all ranks or on none */
            for (uint32_t r = 0; r < n; r++)
                all &= steps[r].run.sites[i].moved && steps[r].run.sites[i].measured &&
                       steps[r].run.sites[i].gradient != LB_NONE;
            steps[k].run.active[i] = all;
        }
}

/* A mean, or a sum: which of the two ranks train on is the program's own business. */
static bool prove(lb_check_step *c, uint32_t n, const lb_quotient *q, double times)
{
    return lb_proof_list_prove(
        c->report,
        "step %lld: the gradients of %u ranks are the derivative of the %s of their losses: %.10g "
        "along a random direction, a difference quotient gives %.10g +- %.1g",
        (long long)c->run.program->step, n, times > 1 ? "sum" : "mean", q->said, q->derivative * times,
        q->error * times);
}

static lb_status judge_gradients(lb_check_step *steps, uint32_t n, lb_err *err)
{
    lb_check_step *c = &steps[0];
    const uint64_t roots = ((uint64_t)1 << c->run.n_roots) - 1;
    lb_quotient q;
    lb_check_answer answer;
    bool said = true;
    activate(steps, n);
    LB_TRY(lb_check_step_ask(c, 0, roots, LEAST, &q, &answer, err));
    const bool sums = answer == LB_ANSWER_DIFFERS && fabs(q.said / q.derivative / n - 1) <= LEAST;
    if (answer == LB_ANSWER_AGREES || sums) {
        said = prove(c, n, &q, sums ? n : 1);
    } else if (answer == LB_ANSWER_DIFFERS) {
        for (uint32_t k = 1; k < n; k++) memset(steps[k].run.active, 0, steps[k].run.n_sites);
        return lb_check_step_locate(c, roots, &q, err);
    } else {
        said = lb_proof_list_leave(c->report, "the gradients of all ranks",
                                   "the difference quotient does not settle (%.6g +- %.2g, backward says %.6g)",
                                   q.derivative, q.error, q.said);
    }
    return said ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

static bool add_parameters(lb_check_step *c)
{
    if (!lb_check_step_add_parameters(c)) return false;
    for (uint32_t i = 0; i < c->run.n_sites; i++) c->run.sites[i].part = is_part(c->run.program, c->run.sites[i].value);
    return true;
}

lb_status lb_check_step_of_ranks(lb_check_step *steps, uint32_t n, uint32_t parts, lb_err *err)
{
    lb_check_step *c = &steps[0];
    lb_moved_run **runs = malloc(((size_t)n + 1) * sizeof *runs);
    char what[80];
    snprintf(what, sizeof what, "step %lld of %u ranks", (long long)c->run.program->step, n);
    const char *why = are_no_copies(steps, n);
    bool fine = runs && (!why || lb_proof_list_leave(c->report, what, "%s", why));
    for (uint32_t k = 0; k < n && fine && !why; k++) runs[k] = &steps[k].run, fine = add_parameters(&steps[k]);
    lb_status status = fine ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    c->run.together = runs, c->run.n_together = n;
    if (fine && !why) status = lb_moved_run_measure(&c->run, err);
    for (uint32_t k = 0; k < n && status == LB_OK && !why; k++)
        for (uint32_t i = 0; i < steps[k].run.n_roots && !why; i++)
            if (!steps[k].run.roots[i].seen || !isfinite(steps[k].run.roots[i].loss))
                why = "a loss has no exact number", lb_proof_list_leave(c->report, what, "%s", why);
    if (status == LB_OK && !why && parts & LB_CHECK_PART_STEP && !judge_reads(steps, n))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    if (status == LB_OK && !why && parts & LB_CHECK_PART_GRADIENT) status = judge_gradients(steps, n, err);
    c->run.together = NULL, c->run.n_together = 0;
    free(runs);
    return status;
}
