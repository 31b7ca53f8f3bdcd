/* Ranks walked from collective to collective: see diff_order.h. */
#include "diff/diff_order.h"

#include <stdlib.h>

typedef struct ordering {
    const lb_program_view *side;
    const lb_collective_matches *collective_matches;
    uint32_t *at;  /* per part: its next op */
    uint32_t *ops; /* so far */
    uint32_t n;
} ordering;

static uint32_t end_of(const lb_program_view *side, uint32_t part)
{
    return part + 1 < side->n_parts ? side->parts[part + 1].first_op : side->program->n_ops;
}

static void take(ordering *o, uint32_t part)
{
    o->ops[o->n++] = o->at[part]++;
}

/* A send waits for no rank, and its message is there for the rank that receives it. */
static bool goes_on(const ordering *o, uint32_t op)
{
    if (o->collective_matches->of_op[op] == LB_NONE) return true;
    const lb_collective_match *m = &o->collective_matches->list[o->collective_matches->of_op[op]];
    const uint32_t sent = o->collective_matches->ops[m->first];
    return m->message && (sent == op || o->at[lb_program_view_part_of(o->side, sent)] > sent);
}

static void go_to_meeting(ordering *o, uint32_t part)
{
    while (o->at[part] < end_of(o->side, part) && goes_on(o, o->at[part])) take(o, part);
}

/* All members of the collective that `part` waits at, if they are there. */
static bool meet(ordering *o, uint32_t part)
{
    if (o->at[part] == end_of(o->side, part) || o->collective_matches->of_op[o->at[part]] == LB_NONE) return false;
    const lb_collective_match *m = &o->collective_matches->list[o->collective_matches->of_op[o->at[part]]];
    const uint32_t *members = o->collective_matches->ops + m->first;
    for (uint32_t k = 0; k < m->n; k++)
        if (o->at[lb_program_view_part_of(o->side, members[k])] != members[k]) return false;
    for (uint32_t k = 0; k < m->n; k++) take(o, lb_program_view_part_of(o->side, members[k]));
    return true;
}

uint32_t *lb_diff_order(const lb_program_view *side, const lb_collective_matches *collective_matches)
{
    ordering o = {side, collective_matches, malloc((side->n_parts + 1) * sizeof *o.at),
                  malloc((side->program->n_ops + 1) * sizeof *o.ops), 0};
    for (uint32_t p = 0; o.at && p < side->n_parts; p++) o.at[p] = side->parts[p].first_op;
    while (o.at && o.ops && o.n < side->program->n_ops) {
        bool met = false;
        const uint32_t before = o.n;
        for (uint32_t p = 0; p < side->n_parts; p++) go_to_meeting(&o, p);
        met = o.n > before;
        for (uint32_t p = 0; p < side->n_parts; p++) met |= meet(&o, p);
        for (uint32_t p = 0; p < side->n_parts && !met; p++) {
            met = o.at[p] < end_of(side, p);
            if (met) take(&o, p);
        }
    }
    free(o.at);
    return o.ops;
}
