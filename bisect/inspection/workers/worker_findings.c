/* The list of findings: see worker_findings.h. */
#include "workers/worker_findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

lb_status lb_worker_findings_add(lb_worker_findings *f, const lb_ranks_finding *x, char *message, lb_err *err)
{
    for (uint32_t i = 0; message && i < f->n; i++) {
        lb_ranks_finding *y = &f->list[i];
        if (y->kind != x->kind || y->note != x->note || y->n_ranks != x->n_ranks || !same_text(y->tensor, x->tensor) ||
            (x->n_ranks && memcmp(y->ranks, x->ranks, x->n_ranks * sizeof *x->ranks)))
            continue;
        y->steps++;
        free(message);
        return LB_OK;
    }
    lb_ranks_finding *grown = message ? realloc(f->list, (f->n + 1) * sizeof *grown) : NULL;
    if (!grown) {
        free(message);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    }
    f->list = grown;
    lb_ranks_finding *y = &grown[f->n++];
    *y = *x;
    y->message = message, y->steps = 1;
    if (x->kind != LB_RANKS_RESULT) y->from = y->to = y->bit = -1, y->element = -1;
    y->tensor = x->tensor ? strdup(x->tensor) : NULL;
    y->ranks = malloc((x->n_ranks + 1) * sizeof *y->ranks);
    if (!y->ranks || (x->tensor && !y->tensor)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    if (x->n_ranks) memcpy(y->ranks, x->ranks, x->n_ranks * sizeof *y->ranks);
    return LB_OK;
}

void lb_worker_findings_release(lb_worker_findings *f)
{
    for (uint32_t i = 0; i < f->n; i++) free(f->list[i].ranks), free(f->list[i].tensor), free(f->list[i].message);
    free(f->list);
    *f = (lb_worker_findings){0};
}

const char *lb_worker_rank_words(const int32_t *ranks, uint32_t n, char text[96])
{
    int at = snprintf(text, 96, "rank%s ", n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && at < 80; i++)
        at += snprintf(text + at, 96 - (size_t)at, "%s%d", i ? "," : "", ranks[i]);
    if (at >= 80) snprintf(text, 96, "%u ranks", n);
    return text;
}
