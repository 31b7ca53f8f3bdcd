/* Programs written by hand, and a recording that is an array of bytes per value: what tests of the machine replay. */
#ifndef LB_TESTS_HAND_PROGRAM_H
#define LB_TESTS_HAND_PROGRAM_H

#include <lastbit/program.h>
#include <stdlib.h>
#include <string.h>

enum { HAND_VALUES = 64, HAND_BYTES = 256 };

typedef struct hand {
    lb_program *program;
    bool kept[HAND_VALUES];
    _Alignas(16) char bytes[HAND_VALUES][HAND_BYTES];
} hand;

static inline uint32_t hand_value(hand *hand, int64_t storage, uint32_t version, lb_dtype dtype, int64_t offset,
                                  int64_t n)
{
    lb_value value = {.storage = storage, .version = version, .dtype = dtype, .name = LB_NONE, .statistics = LB_NONE};
    value.layout = lb_layout_contiguous(1, &n);
    value.layout.offset = offset;
    return lb_program_add_value(hand->program, &value);
}

/* What the recording says a value is: f32 numbers, converted to its dtype; `keep` false leaves the digest only. */
static inline void hand_record(hand *hand, uint32_t value, const float *numbers, bool keep)
{
    lb_value *row = &hand->program->values[value];
    int64_t n = lb_layout_numel(&row->layout);
    lb_store_f32(row->dtype, hand->bytes[value], numbers, (size_t)n, NULL);
    lb_tensor tensor = {hand->bytes[value], row->dtype, row->layout};
    row->logical = lb_digest_tensor(&tensor);
    hand->kept[value] = keep;
    if (keep) row->flags |= LB_VALUE_KEPT;
}

static inline lb_arg hand_arg(uint32_t value)
{
    return (lb_arg){.tag = LB_ARG_VALUE, .u.value = value};
}
static inline lb_arg hand_int(int64_t i)
{
    return (lb_arg){.tag = LB_ARG_INT, .u.i = i};
}

typedef struct hand_values {
    const uint32_t *list;
    uint32_t n;
} hand_values;

static inline uint32_t hand_op(hand *hand, const char *name, uint32_t flags, const lb_arg *args, uint32_t n_args,
                               hand_values results, hand_values written)
{
    lb_op op = {.name = lb_program_string(hand->program, name),
                .flags = flags,
                .args = n_args,
                .results = results.n,
                .written = written.n,
                .node_name = LB_NONE,
                .node = -1};
    op.first_arg = n_args ? lb_program_add_args(hand->program, args, n_args) : 0;
    op.first_result = results.n ? lb_program_add_refs(hand->program, results.list, results.n) : 0;
    op.first_written = written.n ? lb_program_add_refs(hand->program, written.list, written.n) : 0;
    return lb_program_add_op(hand->program, &op);
}

static inline uint32_t hand_source(hand *hand, uint32_t value, lb_source_kind kind)
{
    hand->program->values[value].source = (uint8_t)kind;
    hand->program->values[value].flags |= LB_VALUE_SOURCE;
    return hand_op(hand, "lb::source", 0, NULL, 0, (hand_values){&value, 1}, (hand_values){0});
}

static inline lb_status hand_recorded(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor,
                                      lb_err *err)
{
    hand *hand = context;
    if (program != hand->program || !hand->kept[value]) return lb_fail(err, LB_ERR_NOT_CAPTURED, "not kept");
    *tensor = (lb_tensor){hand->bytes[value], program->values[value].dtype, program->values[value].layout};
    return LB_OK;
}

#endif
