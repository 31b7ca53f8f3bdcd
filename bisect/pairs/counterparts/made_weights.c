/* Weights that one side holds and the other makes: see made_weights.h. */
#include "counterparts/made_weights.h"

#include "counterparts/weight_tensors.h"

/* Scales of scales, a zero point, a cast: each may have rounded. */
static const double ROUNDINGS = 4;

static bool put(const lb_weight_tensors *a, const lb_weight_tensors *b, const lb_contents *found, lb_counterparts *out)
{
    bool room = true;
    for (uint32_t i = 0; i < found->n && room; i++) {
        const lb_content *c = &found->list[i];
        const uint32_t first = out->n_pieces;
        if (c->relation == LB_CONTENT_NONE || c->found < c->all) continue;
        for (uint32_t k = 0; k < c->n && room; k++) {
            lb_content_run run = found->runs[c->first + k];
            run.tensor = a->values[run.tensor];
            room = lb_counterparts_add_piece(out, run);
        }
        lb_counterpart *weight = room ? lb_counterparts_close(out, LB_COUNTERPART_TABLE, b->values[i], first) : NULL;
        room = weight != NULL;
        if (weight) weight->state = LB_COUNTERPART_SAME;
    }
    return room;
}

static lb_status match(const lb_weight_tensors *a, const lb_weight_tensors *b, lb_counterparts *out, lb_err *err)
{
    lb_contents found;
    if (!a->n || !b->n) return LB_OK;
    LB_TRY(lb_contents_match_roundings(a->list, a->n, b->list, b->n, ROUNDINGS, &found, err));
    const bool room = put(a, b, &found, out);
    lb_contents_release(&found);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for weights that a step makes");
}

lb_status lb_made_weights_find(const lb_table_question *q, lb_counterparts *out, lb_err *err)
{
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++) { /* B makes them, then A */
        lb_weight_tensors of[2] = {{0}, {0}};
        const bool room = lb_weight_tensors_held(q, k, &of[k]) && lb_weight_tensors_made(q, !k, &of[!k]);
        status = room ? match(&of[0], &of[1], out, err)
                      : lb_fail(err, LB_ERR_NOMEM, "out of memory for weights that a step makes");
        lb_weight_tensors_release(&of[0]), lb_weight_tensors_release(&of[1]);
    }
    return status;
}
