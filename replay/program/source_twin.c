/* Sources that are each other's: see source_twin.h. */
#include "program/source_twin.h"

#include <string.h>

bool lb_source_alike(const lb_program *p, const lb_value *a, const lb_program *q, const lb_value *b)
{
    return !strcmp(lb_program_text(p, a->name), lb_program_text(q, b->name)) && a->dtype == b->dtype &&
           lb_layout_same_shape(&a->layout, &b->layout);
}

uint32_t lb_source_twin(const lb_program *p, uint32_t value, const lb_program *other)
{
    const lb_value *mine = &p->values[value];
    bool named = *lb_program_text(p, mine->name) != 0;
    uint32_t place = 0;
    for (uint32_t i = 0; i < p->n_ops && !named; i++) {
        if (!lb_op_is_source(p, &p->ops[i])) continue;
        uint32_t v = lb_op_results(p, &p->ops[i])[0];
        if (v == value) break;
        place += lb_source_alike(p, mine, p, &p->values[v]);
    }
    for (uint32_t i = 0; i < other->n_ops; i++) {
        if (!lb_op_is_source(other, &other->ops[i])) continue;
        uint32_t v = lb_op_results(other, &other->ops[i])[0];
        if (lb_source_alike(p, mine, other, &other->values[v]) && place-- == 0) return i;
    }
    return LB_NONE;
}
