/* A small valid program with every table filled, for the tests of program, codec and archive. */
#ifndef LB_TESTS_PROGRAM_SAMPLE_H
#define LB_TESTS_PROGRAM_SAMPLE_H
#include <lastbit/program.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* LB_OK is expected; `err` is there for the expression to fill. */
#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        lb_err err = LB_ERR_INIT;                                                                                      \
        (void)err;                                                                                                     \
        lb_status status_ = (expression);                                                                              \
        if (status_ != LB_OK) fail_msg("%s: %s: %s", #expression, lb_status_name(status_), err.message);               \
    } while (0)

static inline uint32_t sample_value(lb_program *p, lb_dtype dtype, const char *name, const float *data, int64_t rows,
                                    int64_t columns)
{
    lb_value v;
    memset(&v, 0, sizeof v);
    static int64_t storage;
    v.storage = ++storage;
    v.layout = lb_layout_contiguous(2, (int64_t[]){rows, columns});
    v.dtype = dtype;
    v.name = lb_program_string(p, name);
    lb_tensor t = {(void *)(uintptr_t)data, dtype, v.layout};
    lb_statistics s = lb_statistics_of(&t);
    v.statistics = lb_program_add_statistics(p, &s);
    v.logical = lb_digest_tensor(&t);
    v.blob = lb_digest_bytes(data, (size_t)(rows * columns) * 4);
    v.flags = LB_VALUE_KEPT;
    return lb_program_add_value(p, &v);
}

/* The op that brings a value in. */
static inline void sample_source_op(lb_program *p, uint32_t value)
{
    lb_op op = {.name = lb_program_string(p, "lb::source"), .node_name = LB_NONE, .node = -1, .results = 1};
    op.first_result = lb_program_add_refs(p, &value, 1);
    lb_program_add_op(p, &op);
}

/* An op of one result in that layer. */
static inline void sample_layer_op(lb_program *p, const char *name, const char *layer, const lb_arg *args, uint32_t n,
                                   uint32_t result)
{
    lb_op op = {.name = lb_program_string(p, name),
                .scope = lb_program_scope(p, layer, NULL, 0),
                .first_arg = lb_program_add_args(p, args, n),
                .args = n,
                .first_result = lb_program_add_refs(p, &result, 1),
                .results = 1,
                .node_name = LB_NONE,
                .node = -1};
    lb_program_add_op(p, &op);
}

/* y = mm(x, w) in "model.layers.0", a list arg, a collective, a routing, a scalar, a group and a notice. `data` has 6
 * floats. */
static inline lb_program *sample_program(int64_t step, int32_t rank, const float *data)
{
    lb_program *p = lb_program_new();
    p->step = step;
    p->rank = rank;
    p->world = 4;
    p->level = 3;
    p->complete = 1;
    p->shard = lb_program_string(p, "shard-7");
    uint32_t model = lb_program_scope(p, "model", "Model", 0);
    uint32_t layer = lb_program_scope(p, "model.layers.0", "Block", model);
    uint32_t w = sample_value(p, LB_F32, "w", data, 3, 2), x = sample_value(p, LB_F32, NULL, data, 2, 3);
    uint32_t y = sample_value(p, LB_F32, NULL, data + 1, 2, 2);
    p->values[w].flags |= LB_VALUE_SOURCE | LB_VALUE_PARAMETER;
    p->values[w].source = LB_SOURCE_PARAMETER;
    p->values[x].flags |= LB_VALUE_SOURCE;
    p->values[x].source = LB_SOURCE_BATCH;
    sample_source_op(p, w);
    sample_source_op(p, x);
    lb_arg floats[] = {{.tag = LB_ARG_FLOAT, .u.f = 0.1}, {.tag = LB_ARG_FLOAT, .u.f = NAN}};
    uint32_t children = lb_program_add_args(p, floats, 2);
    lb_arg ints[] = {{.tag = LB_ARG_INT, .u.i = INT64_MIN}, {.tag = LB_ARG_VALUE, .u.value = w}};
    uint32_t list = lb_program_add_args(p, ints, 2);
    lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = x},
                     {.tag = LB_ARG_VALUE, .u.value = w},
                     {.tag = LB_ARG_NONE},
                     {.tag = LB_ARG_BOOL, .u.i = 1},
                     {.tag = LB_ARG_DTYPE, .u.i = LB_BF16},
                     {.tag = LB_ARG_STRING, .u.string = lb_program_string(p, "cpu")},
                     {.tag = LB_ARG_LIST, .count = 2, .u.first = list},
                     {.tag = LB_ARG_COMPLEX, .count = 2, .u.first = children}};
    lb_op mm = {
        .name = lb_program_string(p, "aten::mm"), .scope = layer, .call = 1, .node = 17, .args = 8, .results = 1};
    mm.first_arg = lb_program_add_args(p, args, 8);
    mm.first_result = lb_program_add_refs(p, &y, 1);
    mm.node_name = lb_program_string(p, "MmBackward0");
    mm.phase = LB_PHASE_BACKWARD;
    mm.flags = LB_OP_RECOMPUTE;
    mm.first_written = mm.first_result;
    mm.line = lb_program_line(p, &(lb_line){lb_program_string(p, "models/llama.py"), lb_program_string(p, "forward"),
                                            lb_program_string(p, "y = x @ w"), 214});
    uint32_t op = lb_program_add_op(p, &mm);
    lb_program_add_boundary(p, &(lb_boundary){layer, 1, op, 0, x, 0, 0});
    lb_program_add_boundary(p, &(lb_boundary){layer, 1, op + 1, 0, y, 1, 1});
    uint32_t ranks[] = {0, 2, 3};
    lb_program_add_collective(p, &(lb_collective){op, lb_program_string(p, "default_pg"), lb_program_string(p, "sum"),
                                                  LB_NONE, 5, lb_program_add_refs(p, ranks, 3), 3});
    lb_program_add_routing(p, &(lb_routing){layer, 0, y, LB_NONE, x, LB_NONE, LB_NONE});
    uint32_t lr = lb_program_add_scalar(p, &(lb_scalar){lb_program_string(p, "lr"), op, 1e-3});
    lb_program_add_scalar(p, &(lb_scalar){lb_program_string(p, "loss"), op + 1, INFINITY});
    uint32_t param =
        lb_program_add_group_param(p, &(lb_group_param){lb_program_string(p, "w"), p->values[w].storage, -1});
    lb_program_add_group(p, &(lb_group){lb_program_string(p, "AdamW"), 0, op, 1, param, 1, lr, 1});
    lb_program_add_notice(
        p, &(lb_notice){lb_program_string(p, "unseen_write"), op, y, lb_program_string(p, "bytes of y changed")});
    return p;
}

/* Values of a rank 3 of 2 x 2: rows 2, 3, 6 and 7 of [8, 6]; a flat parameter with elements of two others and
 * padding. */
static inline lb_program *sharded_program(void)
{
    static const lb_extent rows[] = {{0, 8, 2, 2}, {0, 8, 6, 2}, {1, 6, 0, 6}};
    static const lb_extent matrix[] = {{0, 4, 0, 4}, {1, 5, 0, 5}, {LB_EXTENT_FLAT, 20, 13, 7}},
                           vector[] = {{0, 9, 0, 9}, {LB_EXTENT_FLAT, 9, 0, 5}};
    lb_program *p = lb_program_new();
    p->rank = 3, p->world = 4;
    const lb_mesh_axis axes[] = {{lb_program_string(p, "dp"), 2}, {lb_program_string(p, "tp"), 2}};
    const lb_mesh_axis line[] = {{LB_NONE, 4}};
    const uint32_t ranks[] = {0, 1, 2, 3};
    const lb_placement strided[] = {{LB_PLACEMENT_SHARD, 0, LB_NONE},
                                    {LB_PLACEMENT_PARTIAL, 0, lb_program_string(p, "sum")}},
                       flat[] = {{LB_PLACEMENT_SHARD, LB_EXTENT_FLAT, LB_NONE}};
    const int64_t shapes[][2] = {{4, 6}, {16, 0}, {3, 0}};
    for (int i = 0; i < 3; i++) {
        lb_value v = {.storage = i, .dtype = LB_F32, .name = LB_NONE, .statistics = LB_NONE};
        v.layout = lb_layout_contiguous(i ? 1 : 2, shapes[i]);
        lb_program_add_value(p, &v);
    }
    const uint32_t grid = lb_program_mesh(p, axes, 2, ranks, 4), all = lb_program_mesh(p, line, 1, ranks, 4);
    const lb_shard parts[] = {
        {1, lb_program_string(p, "b"), all, lb_program_add_placements(p, flat, 1), 1,
         lb_program_add_extents(p, vector, 2), 2, 8},
        {1, lb_program_string(p, "a"), all, lb_program_add_placements(p, flat, 1), 1,
         lb_program_add_extents(p, matrix, 3), 3, 1},
        {0, LB_NONE, grid, lb_program_add_placements(p, strided, 2), 2, lb_program_add_extents(p, rows, 3), 3, 0},
    };
    for (int i = 0; i < 3; i++) lb_program_add_shard(p, &parts[i]);
    lb_program_sort_shards(p);
    return p;
}

#endif
