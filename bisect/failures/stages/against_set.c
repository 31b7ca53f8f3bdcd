/* The culprits of a difference as a set: see against_set.h. */
#include "stages/against_set.h"

#include <lastbit/text_stream.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Is it proven that the differences that are not spared are the set? */
static bool is_proven(const lb_diff_report *report)
{
    return report->set.asked && report->set.whole && report->set.each;
}

static bool is_same_place(const lb_diff_row *x, const lb_diff_row *y)
{
    return x->step == y->step && x->rank == y->rank && x->index == y->index && x->other == y->other;
}

/* Is one module, or the parameter of one, the other, or in it? */
static bool is_around(const char *x, const char *y)
{
    const size_t n = strlen(x);
    return !strncmp(x, y, n) && (!y[n] || y[n] == '.');
}

static bool is_near(const lb_diff_row *x, const lb_diff_row *y)
{
    if (x->step != y->step || (x->phase != y->phase && !x->value && !y->value)) return false;
    return !strcmp(x->layer, y->layer) || (*x->layer && is_around(x->layer, y->layer)) ||
           (*y->layer && is_around(y->layer, x->layer));
}

/* Of a set that is proven the place that stands nearest: what the walk names is one of them, or follows from one. */
static const lb_diff_difference *nearest(const lb_diff_report *report, const lb_diff_row *row)
{
    const lb_diff_difference *found = NULL;
    uint32_t least = 0;
    for (uint32_t i = 0; is_proven(report) && i < report->n_differences; i++) {
        const lb_diff_difference *d = &report->differences[i];
        if (d->spared || d->row.step != row->step || d->row.phase != row->phase) continue;
        const uint32_t away = d->row.order > row->order ? d->row.order - row->order : row->order - d->row.order;
        if (!found || away < least) found = d, least = away;
    }
    return found;
}

const lb_diff_difference *lb_against_set_place(const lb_diff_report *report, const lb_diff_row *row)
{
    for (uint32_t i = 0; i < report->n_differences; i++)
        if (!report->differences[i].spared && is_same_place(&report->differences[i].row, row))
            return &report->differences[i];
    for (uint32_t i = 0; i < report->n_differences; i++)
        if (!report->differences[i].spared && is_near(&report->differences[i].row, row)) return &report->differences[i];
    return nearest(report, row);
}

/* Is it a place of an earlier step, whose op stands beside another one in this step? */
static bool is_repeated(const lb_diff_report *report, const lb_diff_difference *difference)
{
    for (uint32_t i = 0; i < report->n_differences; i++) {
        lb_diff_row before = report->differences[i].row;
        if (before.step >= difference->row.step || report->differences[i].spared) continue;
        before.step = difference->row.step;
        if (is_near(&before, &difference->row)) return true;
    }
    return false;
}

const lb_diff_row *lb_against_set_first(const lb_diff_report *report, const lb_diff_row *row)
{
    const lb_diff_row *kept = NULL;
    bool takes_back = false;
    for (uint32_t i = 0; i < report->n_differences; i++) {
        const lb_diff_difference *d = &report->differences[i];
        const bool here = is_same_place(&d->row, row) || is_near(&d->row, row);
        if (here && !d->spared) return row;
        takes_back |= here && d->spared;
        if (!kept && !d->spared) kept = &d->row;
    }
    return takes_back && kept ? kept : row;
}

bool lb_against_set_has(const lb_diff_report *report, const lb_diff_difference *difference, const lb_diff_row *first)
{
    if (difference->spared || difference->effect == 0 || difference == lb_against_set_place(report, first))
        return false;
    if (is_repeated(report, difference)) return false;
    return is_proven(report) || difference->row.step == first->step;
}

/* "model.layers.1.self_attn aten::mul.Tensor, …" */
static lb_status list_cancelling(lb_bisect_session *session, const lb_diff_report *report, lb_err *err)
{
    char *text = NULL;
    size_t size = 0;
    uint32_t n = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    for (uint32_t i = 0; out && i < report->n_differences; i++)
        if (report->differences[i].cancels)
            fprintf(out, "%s%s %s", n++ ? ", " : "", report->differences[i].row.layer, report->differences[i].row.op);
    if (!out || fclose(out) != 0) {
        free(text);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    if (!n) free(text), text = NULL;
    session->out->set.cancels = text;
    return LB_OK;
}

lb_status lb_against_set_read(lb_bisect_session *session, const lb_diff_report *report, lb_err *err)
{
    lb_bisect_set *set = &session->out->set;
    const lb_diff_set *from = &report->set;
    if (report->verdict != LB_VERDICT_DIVERGED) return LB_OK;
    const bool proven = is_proven(report);
    set->outcome = proven && from->smallest ? LB_BISECT_SET_SMALLEST
                   : proven                 ? LB_BISECT_SET_NEEDED
                                            : LB_BISECT_SET_UNDECIDED;
    set->runs = from->runs;
    set->replays = report->recorded_ops ? (double)from->ops / (double)report->recorded_ops : 0;
    const char *why =
        from->asked ? from->why : "the two sides could not be run in each other's place in exact arithmetic";
    if (set->outcome != LB_BISECT_SET_SMALLEST && why && *why && !(set->why = strdup(why)))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    return list_cancelling(session, report, err);
}
