/* See capture_copy.h. */
#include "captures/capture_copy.h"

/* LB_ERR_NOT_CAPTURED: neither archive has them. */
static lb_status find_bytes(const lb_capture_copy *copy, const lb_program *program, uint32_t row, const void **bytes,
                            size_t *size, lb_err *err)
{
    const lb_value *value = &program->values[row];
    if (lb_capture_has_value(copy->from, program, row))
        return lb_capture_blob(copy->from, program->rank, value->blob, bytes, size, err);
    if (value->flags & LB_VALUE_KEPT && copy->elsewhere)
        return copy->elsewhere(copy->context, program, row, bytes, size, err);
    return LB_ERR_NOT_CAPTURED;
}

lb_status lb_capture_copy_values(lb_capture_copy *copy, const lb_program *program, lb_err *err)
{
    for (uint32_t row = 0; row < program->n_values; row++) {
        const lb_value *value = &program->values[row];
        const void *bytes;
        size_t size;
        lb_err why = LB_ERR_INIT;
        if (lb_digest_is_none(value->blob) || lb_writer_has_blob(copy->to, value->blob)) continue;
        if (copy->passes_over && lb_capture_has_value(copy->from, program, row) &&
            copy->passes_over(copy->context, value))
            continue;
        const lb_status status = find_bytes(copy, program, row, &bytes, &size, &why);
        if (status == LB_ERR_NOT_CAPTURED) { /* an empty value has none either */
            copy->missing += value->flags & LB_VALUE_KEPT && !lb_capture_has_value(copy->from, program, row);
            continue;
        }
        if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
        LB_TRY(lb_writer_blob(copy->to, value->blob, value->dtype, bytes, size, err));
        copy->blobs++;
        copy->bytes += size;
    }
    return LB_OK;
}
