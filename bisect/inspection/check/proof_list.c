/* A report as it grows: see proof_list.h. */
#include "check/proof_list.h"

#include "base/array.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

lb_check_finding *lb_proof_list_add(lb_check_report *report, lb_check_kind kind, const lb_program *program)
{
    lb_check_finding *grown = lb_array_grow(report->findings, report->n_findings, sizeof *grown);
    if (!grown) return NULL;
    report->findings = grown;
    lb_check_finding *finding = &report->findings[report->n_findings++];
    *finding = (lb_check_finding){.kind = kind,
                                  .step = program->step,
                                  .rank = program->rank,
                                  .phase = "",
                                  .index = LB_NONE,
                                  .factor = NAN,
                                  .effect = NAN};
    return finding;
}

void lb_proof_list_place(lb_check_finding *finding, const lb_program *program, uint32_t op, uint32_t forward,
                         const char *path)
{
    const lb_op *o = &program->ops[op];
    finding->phase = lb_phase_name((lb_phase)o->phase), finding->index = op;
    snprintf(finding->layer, sizeof finding->layer, "%s", lb_op_layer(program, o));
    snprintf(finding->op, sizeof finding->op, "%s", lb_op_name(program, o));
    const lb_code_line line = lb_op_line(program, o);
    finding->line = lb_code_line_copy(&line);
    if (forward != LB_NONE) {
        const lb_code_line other = lb_op_line(program, &program->ops[forward]);
        snprintf(finding->forward, sizeof finding->forward, "%s", lb_op_name(program, &program->ops[forward]));
        finding->of_forward = lb_code_line_copy(&other);
    }
    snprintf(finding->command, sizeof finding->command, "lastbit ls %s --step %lld --rank %d --ops", path,
             (long long)program->step, (int)program->rank);
}

bool lb_proof_list_prove(lb_check_report *report, const char *format, ...)
{
    char(*grown)[320] = lb_array_grow(report->proven, report->n_proven, sizeof *grown);
    va_list args;
    if (!grown) return false;
    report->proven = grown;
    va_start(args, format);
    vsnprintf(report->proven[report->n_proven++], sizeof *grown, format, args);
    va_end(args);
    return true;
}

/* What several parts or ranks cannot judge for one reason is said once. */
static bool leave(lb_check_report *report, const char *what, bool passed, const char *format, va_list args)
{
    lb_check_unjudged *grown = lb_array_grow(report->unjudged, report->n_unjudged, sizeof *grown);
    if (!grown) return false;
    report->unjudged = grown;
    lb_check_unjudged *unjudged = &report->unjudged[report->n_unjudged];
    bool said = false;
    unjudged->passed = passed;
    snprintf(unjudged->what, sizeof unjudged->what, "%s", what);
    vsnprintf(unjudged->why, sizeof unjudged->why, format, args);
    for (uint32_t i = 0; i < report->n_unjudged && !said; i++) {
        const lb_check_unjudged *x = &report->unjudged[i];
        said = x->passed == passed && !strcmp(x->what, unjudged->what) && !strcmp(x->why, unjudged->why);
    }
    report->n_unjudged += !said;
    return true;
}

bool lb_proof_list_leave(lb_check_report *report, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const bool said = leave(report, what, false, format, args);
    va_end(args);
    return said;
}

bool lb_proof_list_pass(lb_check_report *report, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const bool said = leave(report, what, true, format, args);
    va_end(args);
    return said;
}

bool lb_proof_list_has_left(const lb_check_report *report, const char *what)
{
    bool found = false;
    for (uint32_t i = 0; i < report->n_unjudged; i++) found |= strcmp(report->unjudged[i].what, what) == 0;
    return found;
}

uint32_t lb_proof_list_left(const lb_check_report *report)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < report->n_unjudged; i++) n += !report->unjudged[i].passed;
    return n;
}

static void release(lb_check_finding *finding)
{
    lb_code_line_release(&finding->line), lb_code_line_release(&finding->of_forward);
}

void lb_proof_list_cut(lb_check_report *report, uint32_t n)
{
    while (report->n_findings > n) release(&report->findings[--report->n_findings]);
}

/* Rows of one kind, behind those that there are. */
#define JOIN(rows, n)                                                                                                  \
    do {                                                                                                               \
        void *grown_ = lb_array_reserve(whole->rows, whole->n, part->n, sizeof *whole->rows);                          \
        if (!grown_) return false;                                                                                     \
        whole->rows = grown_;                                                                                          \
        if (part->n) memcpy(whole->rows + whole->n, part->rows, part->n * sizeof *whole->rows);                        \
        whole->n += part->n, part->n = 0;                                                                              \
    } while (0)

bool lb_proof_list_join(lb_check_report *whole, lb_check_report *part)
{
    bool room = true;
    JOIN(findings, n_findings);
    JOIN(proven, n_proven);
    JOIN(digits, n_digits);
    for (uint32_t i = 0; i < part->n_unjudged; i++) {
        const lb_check_unjudged *unjudged = &part->unjudged[i];
        room &= unjudged->passed ? lb_proof_list_pass(whole, unjudged->what, "%s", unjudged->why)
                                 : lb_proof_list_leave(whole, unjudged->what, "%s", unjudged->why);
    }
    whole->left |= part->left, whole->replays += part->replays;
    return room;
}

static int by_effect(const void *a, const void *b)
{
    const lb_check_finding *x = a, *y = b;
    const double left = isnan(x->effect) ? -1 : x->effect, right = isnan(y->effect) ? -1 : y->effect;
    return (left < right) - (left > right);
}

void lb_proof_list_sort(lb_check_report *report)
{
    if (report->n_findings) qsort(report->findings, report->n_findings, sizeof *report->findings, by_effect);
}

void lb_proof_list_release(lb_check_report *report)
{
    lb_proof_list_cut(report, 0);
    free(report->findings), free(report->proven), free(report->unjudged);
}
