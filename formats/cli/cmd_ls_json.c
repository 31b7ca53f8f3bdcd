/* lastbit ls --json. */
#include "cli/cmd_ls.h"
#include "cli/value_shards.h"

#include <stdlib.h>

static json_t *shape_json(const lb_layout *layout)
{
    json_t *shape = json_array();
    for (int d = 0; d < layout->ndim; d++) json_array_append_new(shape, json_integer(layout->shape[d]));
    return shape;
}

static json_t *kept_json(const ls_kept *kept)
{
    return json_pack("{s:I, s:I, s:I}", "values", (json_int_t)kept->total, "kept", (json_int_t)kept->kept, "bytes",
                     (json_int_t)kept->bytes);
}

static json_t *phases_json(const uint64_t phases[LB_PHASE_OTHER + 1])
{
    json_t *all = json_object();
    for (int k = 0; k <= LB_PHASE_OTHER; k++)
        json_object_set_new(all, lb_phase_name((lb_phase)k), json_integer((json_int_t)phases[k]));
    return all;
}

static json_t *layers_json(const ls_view *view)
{
    const lb_program *program = view->p;
    json_t *list = json_array();
    ls_layer *layers = ls_count_layers(view);
    for (uint32_t s = 0; layers && s < program->n_scopes; s++) {
        json_t *layer = json_pack(
            "{s:s, s:s, s:I, s:I, s:I, s:o}", "layer", lb_program_text(program, program->scopes[s].path), "class",
            lb_program_text(program, program->scopes[s].class_name), "ops", (json_int_t)layers[s].ops, "forward",
            (json_int_t)layers[s].by_phase[LB_PHASE_FORWARD], "backward",
            (json_int_t)layers[s].by_phase[LB_PHASE_BACKWARD], "kept", kept_json(&layers[s].results));
        json_array_append_new(list, layer);
    }
    free(layers);
    return list;
}

static json_t *ids_json(const uint32_t *rows, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, rows[i] == LB_NONE ? json_null() : json_integer(rows[i]));
    return list;
}

static void add_input(void *context, uint32_t value)
{
    json_array_append_new((json_t *)context, json_integer(value));
}

static json_t *ops_json(const lb_program *program)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        json_t *inputs = json_array();
        lb_op_each_input(program, op, add_input, inputs);
        const lb_code_line line = lb_op_line(program, op);
        json_array_append_new(
            list, json_pack("{s:I, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o}", "op", (json_int_t)i, "name",
                            lb_op_name(program, op), "layer", lb_op_layer(program, op), "phase",
                            lb_phase_name((lb_phase)op->phase), "call", (int)op->call, "inputs", inputs, "results",
                            ids_json(lb_op_results(program, op), op->results), "written",
                            ids_json(lb_op_written(program, op), op->written), "source", lb_command_json_line(&line)));
    }
    return list;
}

static json_t *values_json(const ls_view *view)
{
    const lb_program *program = view->p;
    json_t *list = json_array();
    for (uint32_t i = 0; i < program->n_values; i++) {
        const lb_value *value = &program->values[i];
        char digest[33];
        lb_digest_format(value->logical, digest);
        json_t *row = json_pack(
            "{s:I, s:s, s:s, s:o, s:s, s:s, s:I, s:I, s:o, s:b}", "value", (json_int_t)i, "name",
            lb_program_text(program, value->name), "dtype", lb_dtype_name(value->dtype), "shape",
            shape_json(&value->layout), "source", lb_source_kind_name((lb_source_kind)value->source), "digest", digest,
            "storage", (json_int_t)value->storage, "version", (json_int_t)value->version, "op",
            view->op_of[i] == LB_NONE ? json_null() : json_integer(view->op_of[i]), "kept", (int)view->kept[i]);
        json_t *shards = value_shards_json(program, i);
        if (shards) json_object_set_new(row, "shards", shards);
        json_array_append_new(list, row);
    }
    return list;
}

static json_t *taps_json(const ls_view *view)
{
    const lb_program *program = view->p;
    json_t *list = json_array();
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        if (!lb_program_is_tap(program, boundary)) continue;
        const lb_value *value = &program->values[boundary->value];
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:s, s:o, s:b}", "name",
                                        lb_program_text(program, program->scopes[boundary->scope].path), "value",
                                        (json_int_t)boundary->value, "dtype", lb_dtype_name(value->dtype), "shape",
                                        shape_json(&value->layout), "kept", (int)view->kept[boundary->value]));
    }
    return list;
}

static json_t *decisions_json(const lb_program *program)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (!(op->flags & LB_OP_DECISION)) continue;
        json_t *inputs = json_array();
        lb_op_each_input(program, op, add_input, inputs);
        json_array_append_new(list, json_pack("{s:I, s:s, s:s, s:s, s:o}", "op", (json_int_t)i, "name",
                                              lb_op_name(program, op), "layer", lb_op_layer(program, op), "phase",
                                              lb_phase_name((lb_phase)op->phase), "inputs", inputs));
    }
    return list;
}

static json_t *optimizers_json(const lb_program *program)
{
    json_t *list = json_array();
    for (uint32_t g = 0; g < program->n_groups; g++) {
        const lb_group *row = &program->groups[g];
        json_t *options = json_object(), *names = json_array();
        for (uint32_t k = 0; k < row->options; k++) {
            const lb_scalar *option = &program->scalars[row->first_option + k];
            json_object_set_new(options, lb_program_text(program, option->name),
                                lb_command_json_finite(option->number));
        }
        for (uint32_t k = 0; k < row->params; k++)
            json_array_append_new(
                names, json_string(lb_program_text(program, program->group_params[row->first_param + k].name)));
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:o, s:o}", "optimizer", lb_program_text(program, row->optimizer),
                                        "group", (json_int_t)row->index, "parameters", names, "options", options));
    }
    return list;
}

json_t *ls_program_json(const ls_view *view, const ls_options *options)
{
    const lb_program *program = view->p;
    json_t *by_level = json_object(), *scalars = json_object(), *notices = json_array();
    for (int k = 0; k < LS_LEVELS; k++) json_object_set_new(by_level, ls_level_names[k], kept_json(&view->levels[k]));
    for (uint32_t i = 0; i < program->n_scalars; i++)
        json_object_set_new(scalars, lb_program_text(program, program->scalars[i].name),
                            lb_command_json_finite(program->scalars[i].number));
    for (uint32_t i = 0; i < program->n_notices; i++)
        json_array_append_new(notices,
                              json_pack("{s:s, s:s}", "kind", lb_program_text(program, program->notices[i].kind),
                                        "message", lb_program_text(program, program->notices[i].message)));
    json_t *all =
        json_pack("{s:i, s:I, s:i, s:s, s:b, s:s, s:I, s:o, s:I, s:o, s:I, s:I, s:o, s:o, s:o}", "rank",
                  (int)program->rank, "step", (json_int_t)program->step, "world", (int)program->world, "level",
                  ls_levels_reached[program->level], "complete", (int)program->complete, "shard",
                  lb_program_text(program, program->shard), "ops", (json_int_t)program->n_ops, "phases",
                  phases_json(view->phases), "values", (json_int_t)program->n_values, "kept", by_level, "collectives",
                  (json_int_t)program->n_collectives, "routings", (json_int_t)program->n_routings, "optimizers",
                  optimizers_json(program), "scalars", scalars, "notices", notices);
    json_object_set_new(all, "taps", taps_json(view));
    json_object_set_new(all, "decisions", decisions_json(program));
    if (options->layers) json_object_set_new(all, "layers", layers_json(view));
    if (options->ops) json_object_set_new(all, "op_list", ops_json(program));
    if (options->values) json_object_set_new(all, "value_list", values_json(view));
    return all;
}

json_t *ls_tables_json(lb_capture *capture, int32_t rank)
{
    json_t *all = json_object();
    const char *name;
    for (uint32_t i = 0; (name = lb_capture_table_name(capture, rank, i)); i++) {
        const char *text = lb_capture_table(capture, rank, name);
        json_t *table = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        json_object_set_new(all, name, table ? table : json_null());
    }
    return all;
}
