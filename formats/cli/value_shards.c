/* Shards printed: see value_shards.h. */
#include "cli/value_shards.h"

#include <inttypes.h>
#include <stdio.h>

void value_shards_print(const lb_program *program, uint32_t value, const char *before)
{
    uint32_t n;
    char text[400];
    const lb_shard *rows = lb_program_shards_of(program, value, &n);
    for (uint32_t i = 0; i < n; i++) {
        lb_shard_text(program, &rows[i], text, sizeof text);
        printf("%s%s%s%s", before, lb_program_text(program, rows[i].name), rows[i].name == LB_NONE ? "" : ": ", text);
    }
}

static json_t *axes_json(const lb_program *program, const lb_shard *row)
{
    static const char *const kinds[] = {"replicate", "shard", "partial"};
    json_t *list = json_array();
    for (uint32_t i = 0; row->mesh != LB_NONE && i < row->placements; i++) {
        const lb_mesh *mesh = &program->meshes[row->mesh];
        const lb_mesh_axis *axis = &program->mesh_axes[mesh->first_axis + i];
        const lb_placement *placed = &program->placements[row->first_placement + i];
        json_t *one = json_pack(
            "{s:s, s:I, s:I, s:s}", "name", lb_program_text(program, axis->name), "size", (json_int_t)axis->size, "at",
            (json_int_t)lb_program_mesh_coordinate(program, mesh, i, program->rank), "placement", kinds[placed->kind]);
        if (placed->kind == LB_PLACEMENT_SHARD) json_object_set_new(one, "dim", json_integer(placed->dim));
        if (placed->kind == LB_PLACEMENT_PARTIAL)
            json_object_set_new(one, "reduce", json_string(lb_program_text(program, placed->reduce)));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *shard_json(const lb_program *program, const lb_shard *row)
{
    const lb_layout whole = lb_shard_whole(program, row);
    json_t *shape = json_array(), *ranges = json_array(), *ranks = json_array();
    for (int d = 0; d < whole.ndim; d++) json_array_append_new(shape, json_integer(whole.shape[d]));
    for (uint32_t i = 0; i < row->extents; i++) {
        const lb_extent *extent = &program->extents[row->first_extent + i];
        json_array_append_new(ranges, json_pack("{s:i, s:I, s:I}", "dim", (int)extent->dim, "from",
                                                (json_int_t)extent->from, "size", (json_int_t)extent->size));
    }
    const lb_mesh *mesh = row->mesh == LB_NONE ? NULL : &program->meshes[row->mesh];
    for (uint32_t r = 0; mesh && r < mesh->ranks; r++)
        json_array_append_new(ranks, json_integer((json_int_t)program->refs[mesh->first_rank + r]));
    return json_pack("{s:s, s:o, s:o, s:I, s:o, s:o}", "name", lb_program_text(program, row->name), "whole", shape,
                     "ranges", ranges, "at", (json_int_t)row->at, "mesh", axes_json(program, row), "ranks", ranks);
}

json_t *value_shards_json(const lb_program *program, uint32_t value)
{
    uint32_t n;
    const lb_shard *rows = lb_program_shards_of(program, value, &n);
    json_t *list = n ? json_array() : NULL;
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, shard_json(program, &rows[i]));
    return list;
}

static void print_mesh(const lb_program *program, const lb_mesh *mesh, const char *before)
{
    printf("%s", before);
    for (uint32_t i = 0; i < mesh->axes; i++) {
        const lb_mesh_axis *axis = &program->mesh_axes[mesh->first_axis + i];
        const char *name = lb_program_text(program, axis->name);
        printf("%s%s%s%" PRIu32, i ? " x " : "", name, *name ? " " : "", axis->size);
    }
}

void value_shards_summary(const lb_program *program)
{
    uint32_t values = 0;
    for (uint32_t i = 0; i < program->n_shards; i++)
        values += !i || program->shards[i].value != program->shards[i - 1].value;
    if (!values) return;
    printf("  %" PRIu32 " value%s of tensors that ranks share", values, values == 1 ? "" : "s");
    for (uint32_t i = 0; i < program->n_meshes; i++) print_mesh(program, &program->meshes[i], i ? ", " : ": ");
    putchar('\n');
}
