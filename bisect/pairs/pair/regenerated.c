/* Regenerated values: see regenerated.h. */
#include "pair/regenerated.h"

#include "pair/side_replay.h"
#include "kernel/value_memory.h"

#include <stdlib.h>
#include <string.h>

lb_status lb_regenerated_init(const lb_program_view *side, lb_regenerated *w, lb_err *err)
{
    const lb_program *program = side->program;
    *w = (lb_regenerated){.side = side, .program = program};
    w->bytes = calloc(program->n_values + 1, sizeof *w->bytes);
    w->wanted = calloc(program->n_values + 1, 1), w->exact = calloc(program->n_values + 1, 1);
    if (w->bytes && w->wanted && w->exact) return LB_OK;
    lb_regenerated_release(w);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", program->n_values);
}

void lb_regenerated_release(lb_regenerated *w)
{
    for (uint32_t v = 0; w->bytes && v < w->program->n_values; v++) free(w->bytes[v]);
    free(w->bytes), free(w->wanted), free(w->exact);
    memset(w, 0, sizeof *w);
}

/* The value that an op computed and `value` is a view of; itself when it was computed, LB_NONE when neither. */
static uint32_t base_of(const lb_program *p, uint32_t value)
{
    const lb_value *v = &p->values[value];
    uint32_t base = LB_NONE;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->results + op->written && !(op->flags & LB_OP_VIEW); k++) {
            uint32_t r = lb_op_outcome(p, op, k);
            if (r == value) return value;
            if (r == LB_NONE || p->values[r].storage != v->storage || p->values[r].version != v->version) continue;
            if (p->values[r].dtype == v->dtype && lb_layout_is_contiguous(&p->values[r].layout)) base = r;
        }
    }
    return base;
}

static bool has_bytes(const lb_program_view *side, uint32_t value)
{
    uint32_t row;
    const lb_program *recorded = lb_program_view_recorded(side, value, &row);
    return lb_capture_has_value(side->capture, recorded, row);
}

void lb_regenerated_want(lb_regenerated *w, uint32_t value)
{
    if (value == LB_NONE || has_bytes(w->side, value)) return;
    uint32_t base = base_of(w->program, value);
    if (base == LB_NONE || w->wanted[base]) return;
    w->wanted[base] = 1, w->n_wanted++;
}

static bool note_event(void *context, const lb_event *event)
{
    lb_regenerated *w = context;
    for (uint32_t i = 0; i < event->n_results; i++) {
        uint32_t v = lb_program_view_value_of(w->side, event->program, event->values[i]);
        const lb_tensor *t = &event->computed[i];
        if (v == LB_NONE || !w->wanted[v] || w->bytes[v] || !t->data || t->dtype != w->program->values[v].dtype)
            continue;
        w->bytes[v] = malloc(lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout)) + 1);
        if (!w->bytes[v] || lb_tensor_gather(t, w->bytes[v], NULL) != LB_OK) continue;
        w->exact[v] = lb_memory_tensor_has_digest(t, w->program->values[v].logical);
        w->n_wanted--;
    }
    return w->n_wanted > 0;
}

lb_status lb_regenerated_run(lb_regenerated *w, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = w, .op = note_event};
    return w->n_wanted ? lb_side_replay(w->side, plan, &observer, NULL, err) : LB_OK;
}

bool lb_regenerated_value(const lb_regenerated *w, uint32_t value, lb_tensor *t, bool *exact)
{
    if (value == LB_NONE) return false;
    *exact = true;
    if (lb_program_view_value(w->side, value, t, NULL) == LB_OK) return true;
    uint32_t base = w->bytes[value] ? value : base_of(w->program, value);
    if (base == LB_NONE || !w->bytes[base]) return false;
    const lb_value *row = &w->program->values[value];
    *exact = w->exact[base];
    *t = (lb_tensor){w->bytes[base], row->dtype, lb_layout_contiguous(row->layout.ndim, row->layout.shape)};
    if (base == value) return true;
    int64_t skipped = row->layout.offset - w->program->values[base].layout.offset;
    t->layout = row->layout;
    t->data = (char *)t->data + skipped * (int64_t)(lb_dtype_bits(row->dtype) / 8);
    int64_t first, last, room = lb_layout_numel(&w->program->values[base].layout);
    if (lb_layout_dense_range(&row->layout, &first, &last, NULL) != LB_OK) return false;
    first -= row->layout.offset, last -= row->layout.offset;
    return skipped + first >= 0 && skipped + last <= room;
}
