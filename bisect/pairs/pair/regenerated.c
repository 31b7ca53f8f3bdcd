/* Regenerated values: see regenerated.h. */
#include "pair/regenerated.h"

#include "pair/side_replay.h"
#include "kernel/value_memory.h"

#include <stdlib.h>
#include <string.h>

lb_status lb_regenerated_init(const lb_program_view *side, lb_regenerated *regenerated, lb_err *err)
{
    const lb_program *program = side->program;
    *regenerated = (lb_regenerated){.side = side, .program = program};
    regenerated->bytes = calloc(program->n_values + 1, sizeof *regenerated->bytes);
    regenerated->wanted = calloc(program->n_values + 1, 1), regenerated->exact = calloc(program->n_values + 1, 1);
    if (regenerated->bytes && regenerated->wanted && regenerated->exact) return LB_OK;
    lb_regenerated_release(regenerated);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", program->n_values);
}

void lb_regenerated_release(lb_regenerated *regenerated)
{
    for (uint32_t v = 0; regenerated->bytes && v < regenerated->program->n_values; v++) free(regenerated->bytes[v]);
    free(regenerated->bytes), free(regenerated->wanted), free(regenerated->exact);
    memset(regenerated, 0, sizeof *regenerated);
}

/* The value that an op computed and `value` is a view of; itself when it was computed, LB_NONE when neither. */
static uint32_t base_of(const lb_program *program, uint32_t value)
{
    const lb_value *v = &program->values[value];
    uint32_t base = LB_NONE;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        for (uint32_t k = 0; k < op->results + op->written && !(op->flags & LB_OP_VIEW); k++) {
            uint32_t r = lb_op_outcome(program, op, k);
            if (r == value) return value;
            if (r == LB_NONE || program->values[r].storage != v->storage || program->values[r].version != v->version)
                continue;
            if (program->values[r].dtype == v->dtype && lb_layout_is_contiguous(&program->values[r].layout)) base = r;
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

void lb_regenerated_want(lb_regenerated *regenerated, uint32_t value)
{
    if (value == LB_NONE || has_bytes(regenerated->side, value)) return;
    uint32_t base = base_of(regenerated->program, value);
    if (base == LB_NONE || regenerated->wanted[base]) return;
    regenerated->wanted[base] = 1, regenerated->n_wanted++;
}

static bool note_event(void *context, const lb_event *event)
{
    lb_regenerated *regenerated = context;
    for (uint32_t i = 0; i < event->n_results; i++) {
        uint32_t v = lb_program_view_value_of(regenerated->side, event->program, event->values[i]);
        const lb_tensor *t = &event->computed[i];
        if (v == LB_NONE || !regenerated->wanted[v] || regenerated->bytes[v] || !t->data ||
            t->dtype != regenerated->program->values[v].dtype)
            continue;
        regenerated->bytes[v] = malloc(lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout)) + 1);
        if (!regenerated->bytes[v] || lb_tensor_gather(t, regenerated->bytes[v], NULL) != LB_OK) continue;
        regenerated->exact[v] = lb_memory_tensor_has_digest(t, regenerated->program->values[v].logical);
        regenerated->n_wanted--;
    }
    return regenerated->n_wanted > 0;
}

lb_status lb_regenerated_run(lb_regenerated *regenerated, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = regenerated, .op = note_event};
    return regenerated->n_wanted ? lb_side_replay(regenerated->side, plan, &observer, NULL, err) : LB_OK;
}

bool lb_regenerated_value(const lb_regenerated *regenerated, uint32_t value, lb_tensor *tensor, bool *exact)
{
    if (value == LB_NONE) return false;
    *exact = true;
    if (lb_program_view_value(regenerated->side, value, tensor, NULL) == LB_OK) return true;
    uint32_t base = regenerated->bytes[value] ? value : base_of(regenerated->program, value);
    if (base == LB_NONE || !regenerated->bytes[base]) return false;
    const lb_value *row = &regenerated->program->values[value];
    *exact = regenerated->exact[base];
    *tensor =
        (lb_tensor){regenerated->bytes[base], row->dtype, lb_layout_contiguous(row->layout.ndim, row->layout.shape)};
    if (base == value) return true;
    int64_t skipped = row->layout.offset - regenerated->program->values[base].layout.offset;
    tensor->layout = row->layout;
    tensor->data = (char *)tensor->data + skipped * (int64_t)(lb_dtype_bits(row->dtype) / 8);
    int64_t first, last, room = lb_layout_numel(&regenerated->program->values[base].layout);
    if (lb_layout_dense_range(&row->layout, &first, &last, NULL) != LB_OK) return false;
    first -= row->layout.offset, last -= row->layout.offset;
    return skipped + first >= 0 && skipped + last <= room;
}
