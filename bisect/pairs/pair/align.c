/* Two sides aligned: see align.h. Here an alignment is opened, filled by the files of aligner.h and closed, and ops are
 * joined. */
#include "pair/aligner.h"

#include "pair/cut_blocks.h"
#include "pair/shown_sources.h"

#include <stdlib.h>
#include <string.h>

/* ---- one op against several ---- */

/* What collectives leave depends on who takes part: lists of gathered pieces are as long as the group, and an
 * all-to-all mixes the pieces of all ranks in each. */
static bool is_mixed(const lb_aligner *al, const lb_reassembly *join)
{
    const lb_op *whole = &al->a->ops[join->whole], *part = &al->b->ops[al->out->joins.part_ops[join->first]];
    return whole->flags & LB_OP_COLLECTIVE &&
           (whole->written != part->written || strstr(lb_op_name(al->a, whole), "alltoall") ||
            strstr(lb_op_name(al->a, whole), "all_to_all"));
}

static bool can_join(const lb_aligner *al, const lb_reassembly *join, uint32_t *values)
{
    const lb_op *whole = &al->a->ops[join->whole];
    if (is_mixed(al, join)) return false;
    for (uint32_t i = 0; i < whole->results + whole->written; i++) {
        uint32_t v = lb_op_outcome(al->a, whole, i);
        if (v == LB_NONE) continue;
        if (!lb_reassembly_values(&al->out->joins, join, al->b, i, values)) return false;
        if (lb_reassembly_dim(al->out->joins.rows, al->a, v, al->b, values, join->parts) == LB_REASSEMBLY_NONE)
            return false;
    }
    return true;
}

/* Runs of one storage make up a longer one only if each begins where the one before ends: sizes may add up by
 * chance. */
static bool lie_behind_each_other(const lb_program *program, const uint32_t *sources, uint32_t n)
{
    for (uint32_t k = 1; k < n; k++) {
        const lb_value *x = lb_source_value(program, sources[k - 1]), *y = lb_source_value(program, sources[k]);
        if (!x || !y || x->storage != y->storage || x->layout.ndim != 1 || y->layout.ndim != 1) continue;
        if (y->layout.offset != x->layout.offset + x->layout.shape[0]) return false;
    }
    return true;
}

bool lb_aligner_join(lb_aligner *al, uint32_t whole, const uint32_t *ops, uint32_t n, uint32_t *values)
{
    lb_reassemblies *reassemblies = &al->out->joins;
    lb_reassembly join = {whole, reassemblies->n_part_ops, n};
    memcpy(reassemblies->part_ops + reassemblies->n_part_ops, ops, n * sizeof *ops);
    if (!lie_behind_each_other(al->b, ops, n) || !can_join(al, &join, values)) return false;
    al->out->join_of_a[whole] = reassemblies->n;
    for (uint32_t k = 0; k < n; k++) al->out->join_of_b[ops[k]] = reassemblies->n, al->out->place_of_b[ops[k]] = k;
    reassemblies->n_part_ops += n;
    reassemblies->list[reassemblies->n++] = join;
    return true;
}

uint32_t lb_aligner_group(const lb_aligner *al, int side, uint32_t op)
{
    const lb_program_view *mine = side ? al->side_b : al->side_a, *other = side ? al->side_a : al->side_b;
    return lb_program_view_group(mine, other, lb_program_view_part_of(mine, op));
}

bool lb_alignment_reassembly(lb_alignment *alignment, const lb_program *a, const lb_program *b, uint32_t whole,
                             const uint32_t *parts, uint32_t n)
{
    lb_aligner al = {.a = a, .b = b, .out = alignment};
    uint32_t *values = malloc((n + 1) * sizeof *values);
    const bool joined = values && lb_aligner_join(&al, whole, parts, n, values);
    free(values);
    return joined;
}

/* ---- all of it ---- */

static uint32_t *none_list(uint32_t count)
{
    uint32_t *list = malloc((count ? count : 1) * sizeof *list);
    if (list) memset(list, 0xFF, count * sizeof *list);
    return list;
}

static bool open_alignment(lb_alignment *out, uint32_t na, uint32_t nb)
{
    memset(out, 0, sizeof *out);
    out->b_of_a = none_list(na), out->a_of_b = none_list(nb);
    out->source_b_of_a = none_list(na), out->reshaped_b_of_a = none_list(na), out->irregular = calloc(na + 1, 1);
    out->join_of_a = none_list(na), out->join_of_b = none_list(nb), out->place_of_b = none_list(nb);
    out->joins.list = calloc(na + 1, sizeof *out->joins.list), out->joins.part_ops = calloc(nb + 1, sizeof(uint32_t));
    return out->b_of_a && out->a_of_b && out->source_b_of_a && out->reshaped_b_of_a && out->irregular &&
           out->join_of_a && out->join_of_b && out->place_of_b && out->joins.list && out->joins.part_ops;
}

static uint32_t *list_shown(const lb_program *program, bool windows)
{
    if (windows) return lb_shown_sources(program);
    uint32_t *shown = none_list(program->n_ops + 1);
    for (uint32_t i = 0; shown && i < program->n_ops; i++)
        if (lb_source_value(program, i)) shown[i] = lb_op_results(program, &program->ops[i])[0];
    return shown;
}

static void keep_served(lb_layer_ops *ops, lb_alignment *out, int side)
{
    out->served[side] = ops->served, out->n_served[side] = ops->program->n_ops;
    ops->served = NULL;
}

static lb_status align_ops(lb_aligner *al, const lb_layer_names_map *const rules[2], bool by_parameter, lb_err *err)
{
    const lb_program_view *sides[] = {al->side_a, al->side_b};
    lb_status status = lb_forwards_find(al->side_a, al->side_b, &al->out->forwards, err);
    const uint32_t *const calls[] = {al->out->forwards.used ? al->out->forwards.sides[0].call : NULL,
                                     al->out->forwards.used ? al->out->forwards.sides[1].call : NULL};
    if (status == LB_OK) status = lb_layer_ops_list(sides, rules, calls, by_parameter, al->ops, err);
    if (status == LB_OK) lb_aligner_match_layers(al);
    for (int k = 0; k < 2 && by_parameter; k++) keep_served(&al->ops[k], al->out, k);
    lb_layer_ops_release(&al->ops[0]), lb_layer_ops_release(&al->ops[1]);
    if (status == LB_OK && al->failed)
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory while aligning %u with %u ops", al->a->n_ops, al->b->n_ops);
    return status;
}

/* Sources come last: what has no name meets by the ops that read it. */
static lb_status make(lb_aligner *al, const lb_batch_rows *rows, const lb_layer_names_map *const rules[2],
                      bool by_parameter, lb_err *err)
{
    lb_alignment *out = al->out;
    al->a = al->side_a->program, al->b = al->side_b->program;
    const bool room = open_alignment(out, al->a->n_ops, al->b->n_ops);
    out->joins.rows = rows;
    out->shown[0] = list_shown(al->a, by_parameter), out->shown[1] = list_shown(al->b, by_parameter);
    lb_status status = LB_OK;
    if (!room || !out->shown[0] || !out->shown[1])
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory while aligning %u with %u ops", al->a->n_ops, al->b->n_ops);
    if (status == LB_OK) status = align_ops(al, rules, by_parameter, err);
    if (status == LB_OK) status = lb_aligner_match_sources(al, rules, err);
    if (status == LB_OK) status = lb_cut_blocks_find(al->side_a, al->side_b, out, err);
    if (status != LB_OK) lb_alignment_release(out);
    return status;
}

lb_status lb_alignment_make(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules_a,
                            const lb_layer_names_map *rules_b, const lb_batch_rows *rows, lb_alignment *out,
                            lb_err *err)
{
    lb_aligner al = {.side_a = a, .side_b = b, .out = out};
    return make(&al, rows, (const lb_layer_names_map *const[]){rules_a, rules_b}, false, err);
}

lb_status lb_alignment_make_by_parameter(const lb_program_view *a, const lb_program_view *b,
                                         const lb_layer_names_map *rules_a, const lb_layer_names_map *rules_b,
                                         lb_alignment *out, lb_err *err)
{
    lb_aligner al = {.side_a = a, .side_b = b, .out = out};
    return make(&al, NULL, (const lb_layer_names_map *const[]){rules_a, rules_b}, true, err);
}

bool lb_alignment_reads_rows(const lb_alignment *alignment, const lb_program *a, uint32_t op_a, const lb_program *b,
                             uint32_t op_b)
{
    lb_row_operands with_rows;
    return alignment->joins.rows && lb_batch_rows_meet(alignment->joins.rows, a, op_a, b, op_b, &with_rows) &&
           with_rows.inputs;
}

bool lb_alignment_finer(const lb_program *program, const lb_program *other)
{
    const lb_program *programs[] = {program, other};
    uint64_t calls[2] = {0, 0};
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < programs[k]->n_boundaries; i++) {
            const lb_boundary *boundary = &programs[k]->boundaries[i];
            calls[k] += boundary->output && !boundary->recompute && boundary->position == 0;
        }
    return calls[0] > calls[1];
}

void lb_alignment_part(lb_alignment *alignment, uint32_t op_a)
{
    const uint32_t b = alignment->b_of_a[op_a], row = alignment->join_of_a[op_a];
    if (b != LB_NONE) {
        alignment->b_of_a[op_a] = alignment->a_of_b[b] = LB_NONE;
        alignment->pairs--, alignment->only_a++, alignment->only_b++;
    }
    if (row == LB_NONE) return;
    lb_reassembly *join = &alignment->joins.list[row];
    for (uint32_t k = 0; k < join->parts; k++)
        alignment->join_of_b[alignment->joins.part_ops[join->first + k]] = LB_NONE;
    alignment->only_a++, alignment->only_b += join->parts;
    alignment->join_of_a[op_a] = LB_NONE, join->parts = 0;
}

void lb_alignment_release(lb_alignment *alignment)
{
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; alignment->served[k] && i < alignment->n_served[k]; i++) free(alignment->served[k][i]);
        free(alignment->served[k]);
    }
    free(alignment->b_of_a), free(alignment->a_of_b), free(alignment->source_b_of_a), free(alignment->reshaped_b_of_a),
        free(alignment->irregular);
    free(alignment->join_of_a), free(alignment->join_of_b), free(alignment->place_of_b);
    free(alignment->shown[0]), free(alignment->shown[1]);
    lb_reassemblies_release(&alignment->joins);
    lb_forwards_release(&alignment->forwards);
    memset(alignment, 0, sizeof *alignment);
}
