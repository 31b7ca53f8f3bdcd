/* Budgets: see explain_session.h. What collectives made is found last, of all ranks together, so that budgets wait
 * until then. */
#include "explain/explain_session.h"

#include "base/array.h"
#include <math.h>
#include <stdlib.h>

lb_status lb_explain_note_step_end(lb_explain_session *session, const lb_step_pair *s, lb_err *err)
{
    bool found;
    if (!session->options->budget || !session->b || session->turned || s->sides[1].n_parts > 1) return LB_OK;
    lb_gap_step_end *grown = lb_array_grow(session->endings, session->n_endings, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    session->endings = grown;
    lb_gap_step_end *end = &grown[session->n_endings];
    const lb_status status = lb_gap_step_end_open(&s->source, end, &found, err);
    if (status == LB_OK && found) {
        end->layer = lb_explain_findings_keep(session->report, end->layer);
        session->n_endings++;
    } else
        lb_gap_step_end_release(end);
    return status;
}

/* The report's own texts; what nothing was seen of is let go. */
static void take_budget(lb_explain_report *r, lb_explain_budget *b)
{
    if (isnan(b->gap)) {
        lb_gap_attribution_release(b);
        return;
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        char *layer = (char *)b->rows[i].layer;
        b->rows[i].layer = lb_explain_findings_keep(r, layer);
        free(layer);
    }
    char *left = (char *)b->left;
    b->left = lb_explain_findings_keep(r, left);
    free(left);
    r->budgets[r->n_budgets++] = *b;
}

static lb_status add_budgets(lb_explain_session *session, lb_gap_step_end *endings, uint32_t n_endings, lb_err *err)
{
    lb_explain_report *r = session->report;
    bool made = false;
    lb_explain_finding *findings = malloc((r->n_findings + 1) * sizeof *findings);
    lb_explain_budget *budgets = calloc(n_endings + 1, sizeof *budgets),
                      *grown = lb_array_reserve(r->budgets, r->n_budgets, n_endings, sizeof *grown);
    if (grown) r->budgets = grown;
    lb_status status =
        findings && budgets && grown ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the budget");
    uint32_t n = 0;
    for (uint32_t i = 0; status == LB_OK && i < r->n_findings; i++)
        if (r->findings[i].step == endings[0].step) findings[n++] = r->findings[i];
    if (status == LB_OK)
        status = lb_gap_attribution_make(&(lb_gap_question){.a = session->a,
                                                            .endings = endings,
                                                            .n_endings = n_endings,
                                                            .findings = findings,
                                                            .n_findings = n,
                                                            .memory_bytes = session->options->memory_bytes,
                                                            .progress = session->options->progress},
                                         budgets, &made, err);
    for (uint32_t e = 0; status == LB_OK && made && e < n_endings; e++) take_budget(r, &budgets[e]);
    free(findings), free(budgets);
    return status;
}

static int by_step(const void *x, const void *y)
{
    const lb_gap_step_end *a = x, *b = y;
    return a->step != b->step ? (a->step < b->step ? -1 : 1) : a->rank < b->rank ? -1 : a->rank > b->rank;
}

lb_status lb_explain_budgets(lb_explain_session *session, lb_err *err)
{
    if (session->n_endings) qsort(session->endings, session->n_endings, sizeof *session->endings, by_step);
    for (uint32_t first = 0, end = 0; first < session->n_endings; first = end) {
        while (end < session->n_endings && session->endings[end].step == session->endings[first].step) end++;
        LB_TRY(add_budgets(session, session->endings + first, end - first, err));
    }
    return LB_OK;
}
