/* Rows of the report: see diff_rows.h. */
#include "diff/diff_rows.h"

#include "diff/diff_arguments.h"
#include "diff/diff_values.h"

#include <math.h>
#include <string.h>

void lb_diff_rows_call_noise(const lb_diff_walk *walk, lb_diff_row *row, bool bad_bits)
{
    if (row->local == LB_VERDICT_IDENTICAL || bad_bits) return;
    row->local = LB_VERDICT_NOISE;
    row->why = walk->noise.runs == 1 ? "no more than another run of the first side differs by"
                                     : "no more than other runs of the first side differ by";
}

lb_diff_row lb_diff_walk_row(const lb_diff_walk *walk, uint32_t a, uint32_t b)
{
    const lb_program *program = a != LB_NONE ? walk->pa : walk->pb;
    const lb_op *op = &program->ops[a != LB_NONE ? a : b];
    lb_diff_row row = {.step = walk->pa->step,
                       .rank = walk->pa->rank,
                       .phase = (lb_phase)op->phase,
                       .index = a,
                       .other = b,
                       .order = a,
                       .bound_ratio = NAN,
                       .why = "",
                       .difference = {.cosine = 1, .first = -1}};
    row.layer = lb_report_keep(walk->report, lb_op_layer(program, op));
    row.op = lb_report_keep(walk->report, lb_op_name(program, op));
    return row;
}

uint32_t lb_diff_rows_partner(const lb_diff_walk *walk, uint32_t a)
{
    const lb_alignment *al = &walk->alignment;
    if (al->b_of_a[a] != LB_NONE) return al->b_of_a[a];
    if (al->source_b_of_a[a] != LB_NONE) return al->source_b_of_a[a];
    return al->join_of_a[a] == LB_NONE ? LB_NONE : al->joins.part_ops[al->joins.list[al->join_of_a[a]].first];
}

lb_diff_row lb_diff_walk_own_row(const lb_diff_walk *walk, uint32_t a)
{
    return lb_diff_walk_row(walk, a, lb_diff_rows_partner(walk, a));
}

static lb_code_line kept_line(lb_diff_report *report, const lb_program *program, uint32_t op)
{
    const lb_code_line line = lb_op_line(program, &program->ops[op]);
    return lb_report_keep_line(report, &line);
}

/* Where the row speaks of arguments, or of ops that one side alone runs. */
static void name_arguments(const lb_diff_walk *walk, const lb_program *const programs[2], const uint32_t ops[2],
                           lb_diff_row *row)
{
    const lb_program *const p[] = {programs[walk->swapped], programs[!walk->swapped]};
    const uint32_t of[] = {ops[walk->swapped], ops[!walk->swapped]};
    if (!strncmp(row->why, "called with other arguments", 27) || !strcmp(row->why, "the random draws differ"))
        lb_arguments_describe(walk->report, p, of, row);
    else if (row->lone)
        lb_arguments_options(walk->report, p, of, NULL, row);
}

/* Of the first side, by its place in one program. Who has no such op speaks for the parts that stand for the other's.
 * `second`: the program of the second side that `other` is of. */
lb_diff_row lb_diff_rows_turned(const lb_diff_walk *walk, const lb_diff_row *row, const lb_program **second)
{
    lb_diff_row turned = *row;
    uint32_t ops[] = {row->index, row->other};
    int32_t ranks[2];
    const lb_program *programs[2] = {NULL, NULL};
    lb_code_line lines[2] = {{0, "", "", ""}, {0, "", "", ""}};
    const lb_program_view *sides[] = {walk->a, walk->b};
    uint32_t group = 0, n;
    for (int k = 0; k < 2; k++)
        if (ops[k] != LB_NONE)
            group = lb_program_view_group(sides[k], sides[!k], lb_program_view_part_of(sides[k], ops[k]));
    for (int k = 0; k < 2; k++) {
        const uint32_t first = lb_program_view_first_of(sides[k], sides[!k], group, &n);
        const uint32_t part = ops[k] != LB_NONE  ? lb_program_view_part_of(sides[k], ops[k])
                              : first != LB_NONE ? first
                                                 : 0;
        const lb_program_view_part *of = &sides[k]->parts[part];
        if (ops[k] != LB_NONE) ops[k] -= of->first_op;
        if (ops[k] != LB_NONE) lines[k] = kept_line(walk->report, of->program, ops[k]);
        ranks[k] = of->program->rank, programs[k] = of->program;
    }
    turned.index = ops[walk->swapped], turned.rank = ranks[walk->swapped];
    turned.other = ops[!walk->swapped], turned.other_rank = ranks[!walk->swapped];
    *second = programs[!walk->swapped];
    turned.lines[0] = lines[walk->swapped], turned.lines[1] = lines[!walk->swapped];
    if (ops[0] != LB_NONE && ops[1] != LB_NONE) name_arguments(walk, programs, ops, &turned);
    return turned;
}

/* A place that differs by itself. Of an op that one side alone runs, the other side has none there. */
static void report_place(const lb_diff_walk *walk, const lb_diff_row *row, const lb_program *second)
{
    lb_diff_difference difference = {.row = *row, .effect = NAN, .times = 1, .steps = 1, .last_step = row->step};
    difference.ranks[0] = lb_program_view_rank_bit((uint32_t)row->rank);
    const bool runs =
        row->other != LB_NONE && (!row->lone || !strcmp(lb_op_name(second, &second->ops[row->other]), row->op));
    if (runs) {
        const lb_op *op = &second->ops[row->other];
        difference.op_b = lb_report_keep(walk->report, lb_op_name(second, op));
        difference.layer_b = lb_report_keep(walk->report, lb_op_layer(second, op));
        difference.ranks[1] = lb_program_view_rank_bit((uint32_t)row->other_rank);
    }
    lb_report_place(walk->report, &difference);
}

void lb_diff_rows_report(const lb_diff_walk *walk, const lb_diff_row *row)
{
    const lb_program *second;
    const lb_diff_row turned = lb_diff_rows_turned(walk, row, &second);
    lb_report_row(walk->report, &turned);
    if (row->local == LB_VERDICT_DIVERGED && row->op) report_place(walk, &turned, second);
}

void lb_diff_rows_report_layer(const lb_diff_walk *walk, const lb_diff_row *row)
{
    const lb_program *second;
    const lb_diff_row turned = lb_diff_rows_turned(walk, row, &second);
    lb_report_layer(walk->report, &turned);
}

void lb_diff_rows_measure(lb_diff_walk *walk, uint32_t a, lb_diff_row *row, bool bad_bits)
{
    const lb_alignment *al = &walk->alignment;
    const bool noise = al->b_of_a[a] != LB_NONE ? lb_diff_values_measure_pair(walk, a, al->b_of_a[a], row)
                       : al->join_of_a[a] != LB_NONE
                           ? lb_diff_values_measure_join(walk, &al->joins.list[al->join_of_a[a]], row)
                           : false;
    if (noise) lb_diff_rows_call_noise(walk, row, bad_bits);
}
