/* Keeping wanted windows of a run: see snapshot.h. */
#include "session/snapshot.h"

#include "base/array.h"
#include <stdlib.h>

uint32_t lb_snapshots_want(lb_snapshots *snapshots, const lb_program *program, uint32_t value, uint32_t before)
{
    if (value == LB_NONE) return LB_NONE;
    for (uint32_t i = 0; i < snapshots->n; i++)
        if (snapshots->rows[i].program == program && snapshots->rows[i].value == value &&
            snapshots->rows[i].before == before)
            return i;
    lb_snapshot *more = lb_array_grow(snapshots->rows, snapshots->n, sizeof *more);
    if (!more) {
        snapshots->failed = true;
        return LB_NONE;
    }
    snapshots->rows = more;
    snapshots->rows[snapshots->n] = (lb_snapshot){.program = program, .value = value, .before = before};
    return snapshots->n++;
}

/* The window of the wanted value in the storage of which an op gave another one. */
static void take(lb_snapshots *snapshots, lb_snapshot *row, const lb_tensor *given, int64_t offset)
{
    const lb_layout *wanted = &row->program->values[row->value].layout;
    const int64_t bits = (int64_t)lb_dtype_bits(given->dtype);
    const lb_tensor window = {(char *)given->data + (wanted->offset - offset) * bits / 8, given->dtype, *wanted};
    void *bytes = row->tensor.data && row->tensor.dtype == given->dtype
                      ? row->tensor.data
                      : malloc(lb_dtype_bytes(given->dtype, (size_t)lb_layout_numel(wanted)) + 1);
    if (bytes != row->tensor.data) free(row->tensor.data);
    row->tensor = (lb_tensor){bytes, given->dtype, lb_layout_contiguous(wanted->ndim, wanted->shape)};
    if (!bytes || lb_tensor_gather(&window, bytes, NULL) != LB_OK) snapshots->failed = true;
}

static bool is_before(const lb_event *event, const lb_snapshot *row)
{
    const lb_program *program = row->program;
    if (event->rank != program->rank) return false;
    return event->step < program->step || (event->step == program->step && event->op < row->before);
}

void lb_snapshots_event(lb_snapshots *snapshots, const lb_event *event)
{
    for (uint32_t r = 0; r < event->n_results; r++) {
        if (event->values[r] == LB_NONE || !event->computed[r].data) continue;
        const lb_value *given = &event->program->values[event->values[r]];
        for (uint32_t i = 0; i < snapshots->n; i++) {
            const lb_value *wanted = &snapshots->rows[i].program->values[snapshots->rows[i].value];
            if (wanted->storage == given->storage && wanted->dtype == given->dtype &&
                is_before(event, &snapshots->rows[i]))
                take(snapshots, &snapshots->rows[i], &event->computed[r], given->layout.offset);
        }
    }
}

bool lb_snapshots_watch(void *snapshots, const lb_event *event)
{
    lb_snapshots_event(snapshots, event);
    return true;
}

const lb_tensor *lb_snapshots_of(const lb_snapshots *snapshots, uint32_t row)
{
    return row != LB_NONE && snapshots->rows[row].tensor.data ? &snapshots->rows[row].tensor : NULL;
}

void lb_snapshots_clear(lb_snapshots *snapshots)
{
    for (uint32_t i = 0; i < snapshots->n; i++)
        free(snapshots->rows[i].tensor.data), snapshots->rows[i].tensor.data = NULL;
}

void lb_snapshots_release(lb_snapshots *snapshots)
{
    lb_snapshots_clear(snapshots);
    free(snapshots->rows);
    *snapshots = (lb_snapshots){0};
}
