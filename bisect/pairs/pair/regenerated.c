/* Regenerated values: see regenerated.h. */
#include "pair/regenerated.h"

#include "pair/side_replay.h"
#include "kernel/value_memory.h"

#include "base/array.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Values that hold a whole storage at a version, by that place: of each place the one that was computed last. */
typedef struct whole_values {
    const lb_program *program;
    uint32_t *list, n;
    lb_hash by_place;
} whole_values;

static uint64_t place_hash(const lb_value *value)
{
    const uint64_t place[] = {(uint64_t)value->storage, (uint64_t)value->version, (uint64_t)value->dtype};
    return lb_digest_bytes(place, sizeof place).lo;
}

/* The row of the value that holds the place of this one, LB_NONE where none does. */
static uint32_t find_whole(const whole_values *whole, const lb_value *value)
{
    LB_HASH_EACH(row, &whole->by_place, place_hash(value))
    {
        const lb_value *other = &whole->program->values[whole->list[row]];
        if (other->storage == value->storage && other->version == value->version && other->dtype == value->dtype)
            return row;
    }
    return LB_NONE;
}

/* False: out of memory. */
static bool note_computed(whole_values *whole, uint32_t value)
{
    const lb_value *row = &whole->program->values[value];
    if (!lb_layout_is_contiguous(&row->layout)) return true;
    const uint32_t known = find_whole(whole, row);
    if (known != LB_NONE) {
        whole->list[known] = value;
        return true;
    }
    uint32_t *grown = lb_array_grow(whole->list, whole->n, sizeof *grown);
    if (!grown) return false;
    whole->list = grown;
    if (!lb_hash_add(&whole->by_place, place_hash(row), whole->n)) return false;
    grown[whole->n++] = value;
    return true;
}

/* Of each value the one that an op computed and it is a view of, itself when it was computed: all in one walk. */
static bool find_bases(const lb_program *program, uint32_t *base)
{
    whole_values whole = {.program = program};
    bool room = true;
    for (uint32_t v = 0; v < program->n_values; v++) base[v] = LB_NONE;
    for (uint32_t i = 0; i < program->n_ops && room; i++) {
        const lb_op *op = &program->ops[i];
        for (uint32_t k = 0; k < lb_op_outcomes(op) && !(op->flags & LB_OP_VIEW) && room; k++) {
            const uint32_t r = lb_op_outcome(program, op, k);
            if (r == LB_NONE) continue;
            base[r] = r;
            room = note_computed(&whole, r);
        }
    }
    for (uint32_t v = 0; v < program->n_values && room; v++) {
        const uint32_t row = base[v] == LB_NONE ? find_whole(&whole, &program->values[v]) : LB_NONE;
        if (row != LB_NONE) base[v] = whole.list[row];
    }
    lb_hash_release(&whole.by_place);
    free(whole.list);
    return room;
}

lb_status lb_regenerated_init(const lb_program_view *side, lb_regenerated *regenerated, lb_err *err)
{
    const lb_program *program = side->program;
    *regenerated = (lb_regenerated){.side = side, .program = program};
    regenerated->bytes = calloc(program->n_values + 1, sizeof *regenerated->bytes);
    regenerated->base = malloc((program->n_values + 1) * sizeof *regenerated->base);
    regenerated->wanted = calloc(program->n_values + 1, 1), regenerated->exact = calloc(program->n_values + 1, 1);
    if (regenerated->bytes && regenerated->base && regenerated->wanted && regenerated->exact &&
        find_bases(program, regenerated->base))
        return LB_OK;
    lb_regenerated_release(regenerated);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", program->n_values);
}

void lb_regenerated_release(lb_regenerated *regenerated)
{
    for (uint32_t v = 0; regenerated->bytes && v < regenerated->program->n_values; v++) free(regenerated->bytes[v]);
    free(regenerated->bytes), free(regenerated->base), free(regenerated->wanted), free(regenerated->exact);
    memset(regenerated, 0, sizeof *regenerated);
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
    const uint32_t base = regenerated->base[value];
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
    uint32_t base = regenerated->bytes[value] ? value : regenerated->base[value];
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
