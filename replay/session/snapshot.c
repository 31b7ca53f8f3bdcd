/* Keeping wanted windows of a run: see snapshot.h. */
#include "session/snapshot.h"

#include "base/array.h"
#include <stdlib.h>

uint32_t lb_snapshots_want(lb_snapshots *s, const lb_program *program, uint32_t value, uint32_t before)
{
    if (value == LB_NONE) return LB_NONE;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->rows[i].program == program && s->rows[i].value == value && s->rows[i].before == before) return i;
    lb_snapshot *more = lb_array_grow(s->rows, s->n, sizeof *more);
    if (!more) {
        s->failed = true;
        return LB_NONE;
    }
    s->rows = more;
    s->rows[s->n] = (lb_snapshot){.program = program, .value = value, .before = before};
    return s->n++;
}

/* The window of the wanted value in the storage of which an op gave another one. */
static void take(lb_snapshots *s, lb_snapshot *row, const lb_tensor *given, int64_t offset)
{
    const lb_layout *wanted = &row->program->values[row->value].layout;
    const int64_t bits = (int64_t)lb_dtype_bits(given->dtype);
    const lb_tensor window = {(char *)given->data + (wanted->offset - offset) * bits / 8, given->dtype, *wanted};
    void *bytes = row->tensor.data && row->tensor.dtype == given->dtype
                      ? row->tensor.data
                      : malloc(lb_dtype_bytes(given->dtype, (size_t)lb_layout_numel(wanted)) + 1);
    if (bytes != row->tensor.data) free(row->tensor.data);
    row->tensor = (lb_tensor){bytes, given->dtype, lb_layout_contiguous(wanted->ndim, wanted->shape)};
    if (!bytes || lb_tensor_gather(&window, bytes, NULL) != LB_OK) s->failed = true;
}

static bool is_before(const lb_event *event, const lb_snapshot *row)
{
    const lb_program *p = row->program;
    if (event->rank != p->rank) return false;
    return event->step < p->step || (event->step == p->step && event->op < row->before);
}

void lb_snapshots_event(lb_snapshots *s, const lb_event *event)
{
    for (uint32_t r = 0; r < event->n_results; r++) {
        if (event->values[r] == LB_NONE || !event->computed[r].data) continue;
        const lb_value *given = &event->program->values[event->values[r]];
        for (uint32_t i = 0; i < s->n; i++) {
            const lb_value *wanted = &s->rows[i].program->values[s->rows[i].value];
            if (wanted->storage == given->storage && wanted->dtype == given->dtype && is_before(event, &s->rows[i]))
                take(s, &s->rows[i], &event->computed[r], given->layout.offset);
        }
    }
}

bool lb_snapshots_watch(void *snapshots, const lb_event *event)
{
    lb_snapshots_event(snapshots, event);
    return true;
}

const lb_tensor *lb_snapshots_of(const lb_snapshots *s, uint32_t row)
{
    return row != LB_NONE && s->rows[row].tensor.data ? &s->rows[row].tensor : NULL;
}

void lb_snapshots_clear(lb_snapshots *s)
{
    for (uint32_t i = 0; i < s->n; i++) free(s->rows[i].tensor.data), s->rows[i].tensor.data = NULL;
}

void lb_snapshots_release(lb_snapshots *s)
{
    lb_snapshots_clear(s);
    free(s->rows);
    *s = (lb_snapshots){0};
}
