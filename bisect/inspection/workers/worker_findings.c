/* The list of findings: see worker_findings.h. */
#include "workers/worker_findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

lb_status lb_worker_findings_add(lb_worker_findings *findings, const lb_ranks_finding *finding, char *message,
                                 lb_err *err)
{
    for (uint32_t i = 0; message && i < findings->n; i++) {
        lb_ranks_finding *y = &findings->list[i];
        if (y->kind != finding->kind || y->note != finding->note || y->n_ranks != finding->n_ranks ||
            !same_text(y->tensor, finding->tensor) ||
            (finding->n_ranks && memcmp(y->ranks, finding->ranks, finding->n_ranks * sizeof *finding->ranks)))
            continue;
        y->steps++;
        free(message);
        return LB_OK;
    }
    lb_ranks_finding *grown = message ? realloc(findings->list, (findings->n + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(message);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    }
    findings->list = grown;
    lb_ranks_finding *y = &grown[findings->n++];
    *y = *finding;
    y->message = message, y->steps = 1;
    if (finding->kind != LB_RANKS_RESULT) y->from = y->to = y->bit = -1, y->element = -1;
    y->tensor = finding->tensor ? strdup(finding->tensor) : NULL;
    y->ranks = malloc((finding->n_ranks + 1) * sizeof *y->ranks);
    y->hops = finding->n_hops ? malloc(finding->n_hops * sizeof *y->hops) : NULL;
    if (y->hops)
        memcpy(y->hops, finding->hops, finding->n_hops * sizeof *y->hops);
    else
        y->n_hops = 0;
    if (!y->ranks || (finding->tensor && !y->tensor) || (finding->n_hops && !y->hops))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    if (finding->n_ranks) memcpy(y->ranks, finding->ranks, finding->n_ranks * sizeof *y->ranks);
    return LB_OK;
}

void lb_worker_findings_release(lb_worker_findings *findings)
{
    for (uint32_t i = 0; i < findings->n; i++)
        free(findings->list[i].ranks), free(findings->list[i].tensor), free(findings->list[i].message),
            free(findings->list[i].hops);
    free(findings->list);
    *findings = (lb_worker_findings){0};
}

const char *lb_worker_rank_words(const int32_t *ranks, uint32_t n, char text[96])
{
    int at = snprintf(text, 96, "rank%s ", n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && at < 80; i++)
        at += snprintf(text + at, 96 - (size_t)at, "%s%d", i ? "," : "", ranks[i]);
    if (at >= 80) snprintf(text, 96, "%u ranks", n);
    return text;
}
