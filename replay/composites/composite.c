/* Finding composites: see lastbit/composite.h. The recognisers are in composite_KIND.c. */
#include "composites/recogniser.h"

#include <stdlib.h>

static int by_last_op(const void *a, const void *b)
{
    const lb_composite *x = a, *y = b;
    const uint32_t p = x->ops[x->n_ops - 1], q = y->ops[y->n_ops - 1];
    return p != q ? (p < q ? -1 : 1) : (int)x->kind - (int)y->kind;
}

lb_status lb_composites_find(const lb_program *program, lb_composites *composites, lb_err *err)
{
    *composites = (lb_composites){0};
    lb_recogniser trace = {.program = program, .found = composites, .err = err};
    LB_TRY(lb_slice_flow_new(program, &trace.flow, err));
    static lb_status (*const recognisers[])(lb_recogniser *) = {
        lb_recogniser_norms,        lb_recogniser_allreduce_norms, lb_recogniser_attention,   lb_recogniser_finalise,
        lb_recogniser_layer_norms,  lb_recogniser_gates,           lb_recogniser_ropes,       lb_recogniser_routers,
        lb_recogniser_losses,       lb_recogniser_scans,           lb_recogniser_recurrences, lb_recogniser_dispatches,
        lb_recogniser_newton_schulz};
    lb_status status = LB_OK;
    for (size_t i = 0; status == LB_OK && i < sizeof recognisers / sizeof *recognisers; i++)
        status = recognisers[i](&trace);
    lb_slice_flow_free(trace.flow);
    if (status != LB_OK)
        lb_composites_release(composites);
    else if (composites->n)
        qsort(composites->rows, composites->n, sizeof *composites->rows, by_last_op);
    return status;
}

void lb_composites_release(lb_composites *composites)
{
    for (uint32_t i = 0; i < composites->n; i++) free(composites->rows[i].ops), free(composites->rows[i].list);
    free(composites->rows);
    *composites = (lb_composites){0};
}
