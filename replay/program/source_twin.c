/* Sources that are each other's: see source_twin.h. */
#include "program/source_twin.h"

#include <string.h>

bool lb_source_alike(const lb_program *pa, const lb_value *a, const lb_program *pb, const lb_value *b)
{
    return !strcmp(lb_program_text(pa, a->name), lb_program_text(pb, b->name)) && a->dtype == b->dtype &&
           lb_layout_same_shape(&a->layout, &b->layout);
}

uint32_t lb_source_twin(const lb_program *program, uint32_t value, const lb_program *other)
{
    const lb_value *mine = &program->values[value];
    bool named = *lb_program_text(program, mine->name) != 0;
    uint32_t place = 0;
    for (uint32_t i = 0; i < program->n_ops && !named; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        uint32_t v = lb_op_results(program, &program->ops[i])[0];
        if (v == value) break;
        place += lb_source_alike(program, mine, program, &program->values[v]);
    }
    for (uint32_t i = 0; i < other->n_ops; i++) {
        if (!lb_op_is_source(other, &other->ops[i])) continue;
        uint32_t v = lb_op_results(other, &other->ops[i])[0];
        if (lb_source_alike(program, mine, other, &other->values[v]) && place-- == 0) return i;
    }
    return LB_NONE;
}
