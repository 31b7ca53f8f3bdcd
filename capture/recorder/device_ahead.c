/* What an op is about to read of a device, measured together.
 *
 * The sources of a step, and what an optimizer's op reads, must be known before the op runs: the host waits for them.
 * An optimizer that updates its parameters in one call reads hundreds: they are measured in one go, and the host waits
 * once. Code that needs one takes it here by what it is; what was not taken goes when the op has begun. */
#include "recorder/recorder.h"
#include "recorder/value_intake.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

struct lb_ahead {
    lb_device_work work;
    lb_device *device;
    void *stream;
    bool taken;
};

/* ---- what will be read ------------------------------------------------------------------------------------------- */

static void add(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen, unsigned how)
{
    lb_tracked *storage;
    unsigned what = 0;
    if (seen->device == 0 || lb_value_intake_storage(recorder, seen, &storage, NULL) != LB_OK) return;
    if (!storage->device || !storage->device->ops->asynchronous ||
        !lb_value_intake_measures(recorder, at, storage, seen, how, &what))
        return;
    int64_t first, last;
    const int64_t width = (int64_t)lb_dtype_bits(seen->dtype) / 8;
    if (lb_layout_dense_range(&seen->layout, &first, &last, NULL) != LB_OK) return;
    lb_ahead_list *ahead = &recorder->ahead;
    lb_ahead *list = lb_array_fit(ahead->list, &ahead->cap, ahead->n + 1, sizeof *list);
    if (!list) return; /* measured when it is needed */
    ahead->list = list;
    list[ahead->n++] =
        (lb_ahead){.work = {.item = lb_value_bytes_measuring(storage, seen, first * width, last * width, what),
                            .measured = true,
                            .awaited = true,
                            .storage = storage->key,
                            .first = (uint64_t)(first * width)},
                   .device = storage->device,
                   .stream = storage->stream};
}

static void add_all(lb_recorder *recorder, const lb_op_site *at, bool view, const lb_recorded_operand *operand,
                    unsigned flags)
{
    flags |= operand->flags;
    if (operand->tag == LB_ARG_VALUE)
        add(recorder, at, operand->u.tensor,
            (flags & LB_OPERAND_OVERWRITTEN ? LB_READ_OVERWRITTEN : 0) | (view ? LB_READ_LAYOUT : 0));
    for (uint32_t i = 0; operand->tag == LB_ARG_LIST && i < operand->count; i++)
        add_all(recorder, at, view, &operand->u.items[i], flags);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Those of one device and stream that follow each other. */
static uint32_t submit_run(lb_ahead_list *ahead, lb_device_work **works, uint32_t from)
{
    const lb_ahead *first = &ahead->list[from];
    uint32_t n = 0;
    while (from + n < ahead->n && ahead->list[from + n].device == first->device &&
           ahead->list[from + n].stream == first->stream) {
        works[n] = &ahead->list[from + n].work;
        n++;
    }
    first->device->ops->submit(first->device, works, n, first->stream, true);
    return n;
}

void lb_ahead_measure(lb_recorder *recorder, const lb_op_site *at, const lb_recorded_call *call)
{
    if (!recorder->devices.n && !recorder->cuda.bytes) return;
    for (uint32_t a = 0; a < call->n_args; a++) add_all(recorder, at, call->flags & LB_OP_VIEW, &call->args[a], 0);
    lb_ahead_list *ahead = &recorder->ahead;
    lb_device_work **works = ahead->n > 1 ? malloc(ahead->n * sizeof *works) : NULL;
    if (!works) {
        ahead->n = 0;
        return;
    }
    for (uint32_t from = 0; from < ahead->n;) from += submit_run(ahead, works, from);
    free(works);
    for (uint32_t i = 0; i < ahead->n; i++) {
        lb_ahead *a = &ahead->list[i];
        if (a->work.state == LB_WORK_UNDER_WAY) a->device->ops->collect(a->device, &a->work, true);
    }
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

static bool lies_same(const lb_layout *a, const lb_layout *b)
{
    return lb_layout_same_shape(a, b) && a->offset == b->offset &&
           memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof a->stride[0]) == 0;
}

static bool is_same(const lb_measuring *a, const lb_measuring *b)
{
    return a->tensor.data == b->tensor.data && a->tensor.dtype == b->tensor.dtype && a->dense == b->dense &&
           a->dense_bytes == b->dense_bytes && (a->what & b->what) == b->what &&
           lies_same(&a->tensor.layout, &b->tensor.layout);
}

bool lb_ahead_take(lb_ahead_list *ahead, lb_measuring *item)
{
    for (uint32_t i = 0; i < ahead->n; i++) {
        lb_ahead *a = &ahead->list[i];
        if (a->taken || a->work.state != LB_WORK_DONE || !is_same(&a->work.item, item)) continue;
        item->out = a->work.item.out;
        a->taken = true;
        return true;
    }
    return false;
}

void lb_ahead_end(lb_ahead_list *ahead)
{
    for (uint32_t i = 0; i < ahead->n; i++) {
        const lb_ahead *a = &ahead->list[i];
        if (!a->taken && a->work.state == LB_WORK_DONE) free(a->work.item.out.leaves);
    }
    ahead->n = 0;
}
