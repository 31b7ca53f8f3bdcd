/* The report on workers for a person: see lastbit/ranks.h. */
#include "compare/number_word.h"

#include <lastbit/ranks.h>
#include <lastbit/text_stream.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *number(double x, char text[16])
{
    return lb_number_word(x, 5, text);
}

static void print_findings(FILE *out, const lb_ranks_report *report)
{
    for (uint32_t i = 0; i < report->n_findings; i++) {
        const lb_ranks_finding *finding = &report->findings[i];
        fprintf(out, "%-11s %s", finding->note ? "note" : lb_ranks_finding_name(finding->kind), finding->message);
        if (finding->steps > 1 && finding->step != INT64_MIN)
            fprintf(out, " (in %u steps, first in %" PRId64 ")", finding->steps, finding->step);
        else if (finding->kind == LB_RANKS_TOKENS || finding->kind == LB_RANKS_SEED || finding->kind == LB_RANKS_OPTION)
            fprintf(out, " (in step %" PRId64 ")", finding->step);
        fputc('\n', out);
    }
    if (report->n_findings) fputc('\n', out);
}

static void print_steps(FILE *out, const lb_ranks_report *report)
{
    fprintf(out, "%8s %12s %12s %12s %12s %12s %12s %12s\n", "step", "loss mean", "loss std", "loss range", "norm mean",
            "norm std", "cosine mean", "cosine min");
    for (uint32_t i = 0; i < report->n_steps; i++) {
        const lb_ranks_step *step = &report->steps[i];
        char t[7][16];
        fprintf(out, "%8" PRId64 " %12s %12s %12s %12s %12s %12s %12s\n", step->step, number(step->loss_mean, t[0]),
                number(step->loss_std, t[1]), number(step->loss_range, t[2]), number(step->all.grad_norm_mean, t[3]),
                number(step->all.grad_norm_std, t[4]), number(step->all.grad_cosine_mean, t[5]),
                number(step->all.grad_cosine_min, t[6]));
    }
}

static void print_rows(FILE *out, const char *title, const lb_ranks_row *rows, uint32_t n)
{
    if (!n) return;
    fprintf(out, "\n%-40s %12s %12s %12s %12s\n", title, "norm mean", "norm std", "cosine mean", "cosine min");
    for (uint32_t i = 0; i < n; i++) {
        char t[4][16];
        fprintf(out, "%-40s %12s %12s %12s %12s\n", *rows[i].layer ? rows[i].layer : "(outside)",
                number(rows[i].grad_norm_mean, t[0]), number(rows[i].grad_norm_std, t[1]),
                number(rows[i].grad_cosine_mean, t[2]), number(rows[i].grad_cosine_min, t[3]));
    }
}

static void print_workers(FILE *out, const lb_ranks_step *step)
{
    fprintf(out, "\n%-40s %12s %12s %12s\n", "worker", "loss", "norm", "cosine");
    for (uint32_t i = 0; i < step->n_workers; i++) {
        char t[3][16], name[24];
        snprintf(name, sizeof name, "rank %d", step->workers[i].rank);
        fprintf(out, "%-40s %12s %12s %12s\n", name, number(step->workers[i].loss, t[0]),
                number(step->workers[i].grad_norm, t[1]), number(step->workers[i].cosine, t[2]));
    }
}

char *lb_ranks_text(const lb_ranks_report *report, bool layers)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    uint32_t lacking = 0, approximate = 0;
    for (uint32_t i = 0; i < report->n_steps; i++)
        lacking += report->steps[i].lacking, approximate += report->steps[i].approximate;
    fprintf(out, "verdict: %s\n", lb_ranks_verdict_name(report->verdict));
    fprintf(out, "compared: %u collectives, the results of %u, %u tensors that replicas hold in common\n\n",
            report->collectives, report->results, report->replicas);
    print_findings(out, report);
    print_steps(out, report);
    if (layers && report->n_steps) {
        const lb_ranks_step *last = &report->steps[report->n_steps - 1];
        fprintf(out, "\nstep %" PRId64 "\n", last->step);
        print_workers(out, last);
        print_rows(out, "layer", last->layers, last->n_layers);
        print_rows(out, "block", last->blocks, last->n_blocks);
    }
    if (report->verdict == LB_RANKS_CLEAN && report->n_steps && !isnan(report->steps[0].all.grad_cosine_mean))
        fputs("\n"
              "clean: what must be equal on all workers is. "
              "That they pull apart under a smooth mean loss (silent inconsistency)\n"
              "shows in the spread above, beside another setting of seeds or data: lastbit ranks ONE.lb OTHER.lb\n",
              out);
    if (approximate)
        fprintf(out, "\ngradients of %u steps were computed again, and are not the recorded bits\n", approximate);
    if (lacking)
        fprintf(out, "\n%u gradients of single workers have neither bytes nor what they could be computed from\n",
                lacking);
    if (report->again) fprintf(out, "  to record them: %s\n", report->again);
    fclose(out);
    return text;
}
