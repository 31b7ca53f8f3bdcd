/* Angles that sines and cosines read, beside the exact ones: a phase that is off by a tenth turns what it turns
 * elsewhere, however many digits it has. See digits.h. */
#include "check/digits.h"

#include "pair/op_kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Radians. In f32 positions up to 2^20 are off by less. */
static const double OFF = 0.1;

static bool is_turn(const lb_program *program, uint32_t op)
{
    static const char *const names[] = {"aten::cos", "aten::sin", "aten::polar"};
    return program->ops[op].phase == LB_PHASE_FORWARD && lb_op_name_among(program, &program->ops[op], names, 3) >= 0;
}

/* The angle that it reads, as the result that it lies in; LB_NONE. */
static uint32_t angle_of(const lb_digits *digits, uint32_t op)
{
    const lb_program *program = digits->run.program;
    const uint32_t at = strncmp(lb_op_name(program, &program->ops[op]), "aten::polar", 11) == 0;
    if (program->ops[op].args <= at || lb_op_args(program, &program->ops[op])[at].tag != LB_ARG_VALUE) return LB_NONE;
    return lb_value_graph_whole(&digits->run.graph, lb_op_args(program, &program->ops[op])[at].u.value);
}

bool lb_digits_watch_phases(lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t angle = is_turn(program, i) ? angle_of(digits, i) : LB_NONE;
        if (angle != LB_NONE) digits->runs.watch[angle] = 1;
    }
    return true;
}

typedef struct walk {
    const lb_digits *digits;
    uint8_t *seen;  /* per value */
    uint32_t found; /* op */
    double largest;
} walk;

/* Of all that an angle is made of, what is rounded most; of two alike the one behind. */
static void go_back(walk *walk, uint32_t value)
{
    const lb_value_graph *graph = &walk->digits->run.graph;
    const uint32_t op = graph->giver[value];
    if (walk->seen[value]) return;
    walk->seen[value] = 1;
    const lb_rounding_size *size = &walk->digits->log.sizes[value];
    if (graph->given[value] && op != LB_NONE && size->numbers && size->apart.largest > walk->largest)
        walk->largest = size->apart.largest, walk->found = op;
    for (uint32_t k = graph->first_pred[value]; k < graph->first_pred[value + 1]; k++) go_back(walk, graph->preds[k]);
}

static bool add_finding(const lb_digits *digits, uint32_t angle, uint32_t turn)
{
    const lb_program *program = digits->run.program;
    walk walk = {.digits = digits, .seen = calloc((size_t)program->n_values + 1, 1), .found = LB_NONE};
    if (!walk.seen) return false;
    go_back(&walk, angle);
    free(walk.seen);
    const uint32_t op = walk.found == LB_NONE ? turn : walk.found;
    const lb_code_line line = lb_op_line(program, &program->ops[op]);
    for (uint32_t i = 0; i < digits->report->n_findings; i++)
        if (digits->report->findings[i].kind == LB_CHECK_ROUNDED &&
            digits->report->findings[i].line.number == line.number)
            return true;
    lb_check_finding *finding = lb_proof_list_add(digits->report, LB_CHECK_ROUNDED, program);
    if (!finding) return false;
    lb_proof_list_place(finding, program, op, LB_NONE, digits->path);
    finding->effect = digits->runs.apart[angle].largest;
    snprintf(finding->message, sizeof finding->message,
             "the angles that %s reads are wrong by up to %.2g rad: positions times frequencies were rounded, "
             "here by up to %.2g; computed in f32 they are right",
             lb_op_name(program, &program->ops[turn]), digits->runs.apart[angle].largest, walk.largest);
    return true;
}

bool lb_digits_phases(lb_digits *digits)
{
    const lb_program *program = digits->run.program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint32_t angle = is_turn(program, i) ? angle_of(digits, i) : LB_NONE;
        if (angle != LB_NONE && digits->runs.apart[angle].largest > OFF && !add_finding(digits, angle, i)) return false;
    }
    return true;
}
