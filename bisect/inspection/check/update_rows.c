/* What the window of steps says about updates: see update_log.h. */
#include "check/digit_list.h"
#include "check/proof_list.h"
#include "check/update_log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A group of an optimizer is found that lost more than that of its updates. A single tensor may: a norm's weights begin
 * at one and stay there in bf16 under any learning rate below 2e-3. */
static const double MOST = 0.9;
static const int64_t FEW = 64;

static double share_of(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : NAN;
}

static lb_check_digit *add_row(lb_check_report *report, const lb_program *program, const lb_update_row *added)
{
    lb_check_digit *row = lb_digit_list_add(report, LB_CHECK_DIGIT_UPDATES, program);
    if (!row) return NULL;
    if (added->step == program->step && added->op != LB_NONE) lb_digit_list_place(row, program, added->op);
    snprintf(row->layer, sizeof row->layer, "%s", added->name);
    row->step = added->step, row->dtype = added->dtype, row->numbers = added->updates;
    row->share = share_of(added->absorbed, added->updates),
    row->recent = share_of(added->last_absorbed, added->last_updates);
    int n = snprintf(row->message, sizeof row->message,
                     "%lld of %lld updates that were not zero left the %s number as it was", (long long)added->absorbed,
                     (long long)added->updates, lb_dtype_name(added->dtype));
    if (added->decays)
        snprintf(row->message + n, sizeof row->message - (size_t)n, ", of the weight decay alone %lld of %lld",
                 (long long)added->absorbed_decays, (long long)added->decays);
    if (row->share > 0)
        snprintf(row->cure, sizeof row->cure,
                 "a master of the parameter in f32, stochastic rounding, or a compensated sum");
    return row;
}

static void add_to(lb_update_row *sum, const lb_update_row *row)
{
    sum->updates += row->updates, sum->absorbed += row->absorbed;
    sum->last_updates += row->last_updates, sum->last_absorbed += row->last_absorbed;
    sum->decays += row->decays, sum->absorbed_decays += row->absorbed_decays;
    if (row->step >= sum->step) sum->step = row->step, sum->op = row->op;
}

static bool find_group(const lb_program *program, const char *path, const lb_update_row *sum, lb_check_report *report)
{
    const double share = share_of(sum->absorbed, sum->updates);
    if (!(share > MOST) || sum->updates < FEW || lb_dtype_precision(sum->dtype) >= lb_dtype_precision(LB_F32))
        return true;
    lb_check_finding *finding = lb_proof_list_add(report, LB_CHECK_ABSORBED, program);
    if (!finding) return false;
    if (sum->op != LB_NONE && sum->step == program->step) lb_proof_list_place(finding, program, sum->op, LB_NONE, path);
    finding->effect = share;
    snprintf(finding->message, sizeof finding->message,
             "%.1f %% of the updates of the %s parameters of %s (%lld of %lld) left them as they were: "
             "each is less than half a unit in the last place",
             100 * share, lb_dtype_name(sum->dtype), sum->name, (long long)sum->absorbed, (long long)sum->updates);
    return true;
}

/* One row for all tensors of a group that have one dtype. */
static bool tell_groups(const lb_update_window *window, const lb_program *program, const char *path,
                        lb_check_report *report)
{
    for (uint32_t i = 0; i < window->n; i++) {
        lb_update_row sum = {.dtype = window->rows[i].dtype, .op = LB_NONE};
        bool first = true;
        for (uint32_t k = 0; k < window->n; k++) {
            if (strcmp(window->rows[k].group, window->rows[i].group) != 0 || window->rows[k].dtype != sum.dtype)
                continue;
            first &= k >= i;
            add_to(&sum, &window->rows[k]);
        }
        if (!first || !sum.updates) continue;
        snprintf(sum.name, sizeof sum.name, "%s", window->rows[i].group);
        if (!add_row(report, program, &sum) || !find_group(program, path, &sum, report)) return false;
    }
    return true;
}

bool lb_update_window_tell(const lb_update_window *window, const lb_program *program, const char *path,
                           lb_check_report *report)
{
    if (!tell_groups(window, program, path, report)) return false;
    if (window->carried &&
        !lb_proof_list_prove(report,
                             "digits that updates lose in %u parameters by steps are kept beside them, "
                             "in a master or a compensated sum",
                             window->carried))
        return false;
    for (uint32_t i = 0; i < window->n; i++)
        if (window->rows[i].absorbed && !add_row(report, program, &window->rows[i])) return false;
    return true;
}
