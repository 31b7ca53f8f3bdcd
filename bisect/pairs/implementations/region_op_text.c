/* Why a region's op is named, in words: see region_op.h. */
#include "implementations/region_op.h"

#include "implementations/implementations.h"
#include "joined/joined_ranks.h"

#include <stdio.h>
#include <string.h>

static const char *short_name(const lb_program *p, uint32_t op)
{
    const char *name = lb_joined_ranks_op_name(p, &p->ops[op]);
    return strncmp(name, "aten::", 6) ? name : name + 6;
}

static const char *source_name(const lb_program *p, uint32_t v)
{
    return p->values[v].name == LB_NONE || !*lb_program_text(p, p->values[v].name)
               ? "a constant"
               : lb_program_text(p, p->values[v].name);
}

static void list_ops(const lb_implementations *x, const lb_region *r, int side, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < r->n[side] && i < 6 && at < size; i++) {
        const int n = snprintf(text + at, size - at, "%s%s", i ? ", " : "",
                               short_name(x->sides[side].program, x->regions.ops[r->first[side] + i]));
        at += n > 0 ? (size_t)n : 0;
    }
    if (r->n[side] > 6 && at < size) snprintf(text + at, size - at, " and %u more", r->n[side] - 6);
}

static void repair_text(const lb_implementations *x, const lb_region *r, char *text, size_t size)
{
    const lb_repair *e = &r->repair;
    static const char *const sides[] = {"first", "second"};
    char name[160];
    const lb_repair *also = &r->also;
    snprintf(name, sizeof name, "%.100s", short_name(x->sides[e->side].program, e->op));
    if (e->times > 1) snprintf(name + strlen(name), sizeof name - strlen(name), ", all %u times,", e->times);
    if (e->kind == LB_REPAIR_FUNCTION)
        snprintf(text, size, "with %s in place of %s the %s side computes what the %s one does", e->function + 6, name,
                 sides[e->side], sides[!e->side]);
    else if (also->kind != LB_REPAIR_NONE)
        snprintf(
            text, size,
            "with %.9g in place of %.9g in %s and %.9g in place of %.9g in %s the %s side computes what the %s one "
            "does",
            e->after, e->before, name, also->after, also->before, short_name(x->sides[e->side].program, also->op),
            sides[e->side], sides[!e->side]);
    else
        snprintf(text, size, "with %.9g in place of %.9g in %s the %s side computes what the %s one does", e->after,
                 e->before, name, sides[e->side], sides[!e->side]);
}

void lb_region_op_text(const lb_implementations *x, const lb_region *r, char *text, size_t size)
{
    char ops[2][240];
    const lb_counterpart *c = &x->counterparts.list[r->counterpart];
    list_ops(x, r, 0, ops[0], sizeof ops[0]), list_ops(x, r, 1, ops[1], sizeof ops[1]);
    switch (r->reason) {
    case LB_REGION_ARGUMENTS:
        snprintf(text, size, "called with other arguments, from the same inputs: this is not the same function");
        break;
    case LB_REGION_PART: snprintf(text, size, "it takes another part of the same numbers on the second side"); break;
    case LB_REGION_ORDER:
        snprintf(
            text, size,
            "it reads the same numbers in another order on the second side: heads, halves or channels are put together "
            "differently");
        break;
    case LB_REGION_REARRANGED:
        snprintf(text, size, "both sides have the same numbers here, each in an order of its own");
        break;
    case LB_REGION_MASK:
        snprintf(text, size,
                 "from the same inputs with another mask, or other arguments beside it: this is not the same function");
        break;
    case LB_REGION_SOURCE:
        if (r->op[0] != LB_NONE && lb_op_is_source(x->sides[0].program, &x->sides[0].program->ops[r->op[0]]))
            snprintf(text, size, "the two sides are given other numbers: %s (first side) and %s",
                     source_name(x->sides[0].program, r->source[0]), source_name(x->sides[1].program, r->source[1]));
        else
            snprintf(text, size, "this reads %s%s%s%s, whose numbers the other side does not hold",
                     r->source[0] != LB_NONE ? source_name(x->sides[0].program, r->source[0]) : "",
                     r->source[0] != LB_NONE ? " (first side)" : "",
                     r->source[0] != LB_NONE && r->source[1] != LB_NONE ? " and " : "",
                     r->source[1] != LB_NONE ? source_name(x->sides[1].program, r->source[1]) : "");
        break;
    case LB_REGION_UPDATE:
        snprintf(text, size, "only the %s side updates %s", r->op[0] != LB_NONE ? "first" : "second", c->name);
        break;
    case LB_REGION_MISSING:
        snprintf(text, size, "only the %s side runs %s here%s%s", r->op[0] != LB_NONE ? "first" : "second",
                 r->op[0] != LB_NONE   ? short_name(x->sides[0].program, r->op[0])
                 : r->op[1] != LB_NONE ? short_name(x->sides[1].program, r->op[1])
                                       : "an op",
                 c->name ? ", for " : "", c->name ? c->name : "");
        break;
    case LB_REGION_DETACHED:
        snprintf(text, size,
                 "the gradient does not pass through this value on the %s side, where it is detached or computed "
                 "without gradients; on the %s side it does",
                 r->stops ? "second" : "first", r->stops ? "first" : "second");
        break;
    case LB_REGION_REPAIRED: repair_text(x, r, text, size); break;
    case LB_REGION_OPS:
        snprintf(text, size,
                 "from the same inputs the first side computes %s, the second %s, which is not the same function",
                 ops[0], ops[1]);
        break;
    }
}
