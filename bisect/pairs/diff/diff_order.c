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

static void take(ordering *ordering, uint32_t part)
{
    ordering->ops[ordering->n++] = ordering->at[part]++;
}

/* A send waits for no rank, and its message is there for the rank that receives it. */
static bool goes_on(const ordering *ordering, uint32_t op)
{
    if (ordering->collective_matches->of_op[op] == LB_NONE) return true;
    const lb_collective_match *match = &ordering->collective_matches->list[ordering->collective_matches->of_op[op]];
    const uint32_t sent = ordering->collective_matches->ops[match->first];
    return match->message && (sent == op || ordering->at[lb_program_view_part_of(ordering->side, sent)] > sent);
}

static void go_to_meeting(ordering *ordering, uint32_t part)
{
    while (ordering->at[part] < end_of(ordering->side, part) && goes_on(ordering, ordering->at[part]))
        take(ordering, part);
}

/* All members of the collective that `part` waits at, if they are there. */
static bool meet(ordering *ordering, uint32_t part)
{
    if (ordering->at[part] == end_of(ordering->side, part) ||
        ordering->collective_matches->of_op[ordering->at[part]] == LB_NONE)
        return false;
    const lb_collective_match *match =
        &ordering->collective_matches->list[ordering->collective_matches->of_op[ordering->at[part]]];
    const uint32_t *members = ordering->collective_matches->ops + match->first;
    for (uint32_t k = 0; k < match->n; k++)
        if (ordering->at[lb_program_view_part_of(ordering->side, members[k])] != members[k]) return false;
    for (uint32_t k = 0; k < match->n; k++) take(ordering, lb_program_view_part_of(ordering->side, members[k]));
    return true;
}

uint32_t *lb_diff_order(const lb_program_view *side, const lb_collective_matches *collective_matches)
{
    ordering ordering = {side, collective_matches, malloc((side->n_parts + 1) * sizeof *ordering.at),
                         malloc((side->program->n_ops + 1) * sizeof *ordering.ops), 0};
    for (uint32_t p = 0; ordering.at && p < side->n_parts; p++) ordering.at[p] = side->parts[p].first_op;
    while (ordering.at && ordering.ops && ordering.n < side->program->n_ops) {
        bool met = false;
        const uint32_t before = ordering.n;
        for (uint32_t p = 0; p < side->n_parts; p++) go_to_meeting(&ordering, p);
        met = ordering.n > before;
        for (uint32_t p = 0; p < side->n_parts; p++) met |= meet(&ordering, p);
        for (uint32_t p = 0; p < side->n_parts && !met; p++) {
            met = ordering.at[p] < end_of(side, p);
            if (met) take(&ordering, p);
        }
    }
    free(ordering.at);
    return ordering.ops;
}
