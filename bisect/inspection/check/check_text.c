/* A report for a person. */
#include "check/digit_list.h"
#include "check/proof_list.h"

#include <lastbit/text_stream.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void print_line(FILE *out, const char *what, const lb_code_line *line)
{
    char text[400];
    lb_code_line_text(line, text, sizeof text);
    if (*text) fprintf(out, "    %s  %s\n", what, text);
}

static void print_finding(FILE *out, const lb_check_finding *finding)
{
    fprintf(out, "%s: %s\n", lb_check_kind_name(finding->kind), finding->message);
    fprintf(out, "    at        step %lld, %s, %s, op %u %s%s%s\n", (long long)finding->step, finding->phase,
            *finding->layer ? finding->layer : "(outside)", finding->index, finding->op,
            *finding->forward ? ", backward of " : "", finding->forward);
    print_line(out, "code    ", &finding->line);
    if (finding->of_forward.number && finding->of_forward.number != finding->line.number)
        print_line(out, "forward ", &finding->of_forward);
    fprintf(out, "    see       %s\n", finding->command);
}

char *lb_check_text(const lb_check_report *report)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    fprintf(out, "verdict: %s\n", lb_check_verdict_name(report->verdict));
    for (uint32_t i = 0; i < report->n_findings; i++) print_finding(out, &report->findings[i]);
    for (uint32_t i = 0; i < report->n_proven; i++) fprintf(out, "proven: %s\n", report->proven[i]);
    lb_digit_list_print(report, out);
    for (uint32_t i = 0; i < report->n_unjudged; i++)
        fprintf(out, "not judged: %s: %s\n", report->unjudged[i].what, report->unjudged[i].why);
    fprintf(out, "%u replay%s\n", report->replays, report->replays == 1 ? "" : "s");
    const bool failed = ferror(out) != 0;
    if (fclose(out) == 0 && !failed) return text;
    free(text);
    return NULL;
}
