/* Other contents for sources: see substitute.h. */
#include "machine/substitute.h"

#include "machine/rebase.h"
#include "program/source_twin.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool lb_substitute_parse(const char *text, lb_choice *choice)
{
    char *end;
    choice->contents = !strcmp(text, "own")      ? LB_CONTENTS_OWN
                       : !strcmp(text, "finite") ? LB_CONTENTS_FINITE
                                                 : LB_CONTENTS_RECORDED;
    if (choice->contents) return true;
    if (strncmp(text, "step:", 5)) return false;
    choice->contents = LB_CONTENTS_STEP;
    choice->contents_step = strtoll(text + 5, &end, 10);
    return end != text + 5 && !*end;
}

static lb_status of_step(lb_machine *machine, uint32_t value, int64_t step)
{
    const lb_program *program = machine->prepared->recorded, *other = NULL;
    const lb_recording *recording = &machine->run->recording;
    lb_tensor tensor;
    if (!recording->program || recording->program(recording->context, machine->rank, step, &other, NULL) != LB_OK)
        return lb_fail(machine->err, LB_ERR_UNSUPPORTED, "step %" PRId64 " of rank %d was not recorded", step,
                       (int)machine->rank);
    const uint32_t source = lb_source_twin(program, value, other);
    if (source == LB_NONE)
        return lb_fail(machine->err, LB_ERR_UNSUPPORTED,
                       "step %" PRId64 " has no source of the same name, dtype and shape", step);
    LB_TRY(recording->value(recording->context, other, lb_op_results(other, &other->ops[source])[0], &tensor,
                            machine->err));
    return lb_rebase_put(machine, value, &tensor);
}

static lb_status finite_only(lb_machine *machine, uint32_t value, bool *done)
{
    lb_tensor recorded;
    if (!lb_rebase_recorded(machine, value, &recorded) || !lb_dtype_is_float(recorded.dtype) ||
        lb_dtype_bits(recorded.dtype) < 8)
        return LB_OK;
    size_t count = (size_t)lb_layout_numel(&recorded.layout), size = lb_dtype_bits(recorded.dtype) / 8;
    char *bytes = malloc(count * size + 1);
    if (!bytes) return lb_fail(machine->err, LB_ERR_NOMEM, "out of memory for a source of %zu elements", count);
    lb_status status = lb_tensor_gather(&recorded, bytes, machine->err);
    for (size_t i = 0; i < count && status == LB_OK; i++)
        if (!isfinite(lb_to_f64(recorded.dtype, bytes + i * size))) memset(bytes + i * size, 0, size);
    lb_tensor contents = {bytes, recorded.dtype, lb_layout_contiguous(recorded.layout.ndim, recorded.layout.shape)};
    if (status == LB_OK) status = lb_rebase_put(machine, value, &contents);
    *done = status == LB_OK;
    free(bytes);
    return status;
}

lb_status lb_substitute_source(lb_machine *machine, uint32_t value, const lb_choice *choice, bool *done)
{
    const lb_value *row = &machine->prepared->program->values[value];
    *done = false;
    switch ((lb_machine_contents)choice->contents) {
    case LB_CONTENTS_RECORDED: return LB_OK;
    case LB_CONTENTS_OWN:
        *done = machine->run->plan->mode != LB_REPLAY_ISOLATED &&
                lb_memory_storage_holds(lb_storage_of(machine, value), row);
        return LB_OK;
    case LB_CONTENTS_FINITE: return finite_only(machine, value, done);
    case LB_CONTENTS_STEP: LB_TRY(of_step(machine, value, choice->contents_step)); *done = true;
    }
    return LB_OK;
}
