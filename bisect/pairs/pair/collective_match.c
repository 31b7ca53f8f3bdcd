/* Finding collective_matches: see collective_match.h. */
#include "pair/collective_match.h"

#include "ranks/collective_names.h"
#include "ranks/message_key.h"

#include <stdlib.h>
#include <string.h>

const lb_collective *lb_collective_of_side(const lb_program_view *side, uint32_t op, const lb_program **recorded)
{
    const lb_program_view_part *part = &side->parts[lb_program_view_part_of(side, op)];
    *recorded = part->program;
    for (uint32_t c = 0; c < part->program->n_collectives; c++)
        if (part->program->collectives[c].op == op - part->first_op) return &part->program->collectives[c];
    return NULL;
}

static bool same_collective(const lb_program *p, const lb_collective *x, const lb_program *q, const lb_collective *y)
{
    return x->sequence == y->sequence && x->ranks == y->ranks &&
           !strcmp(lb_program_text(p, x->group), lb_program_text(q, y->group)) &&
           (!x->ranks || !memcmp(p->refs + x->first_rank, q->refs + y->first_rank, x->ranks * sizeof(uint32_t)));
}

/* The op of `part` that is collective `row` of program `p`; LB_NONE. */
static uint32_t op_of_part(const lb_program_view_part *part, const lb_program *p, const lb_collective *row)
{
    for (uint32_t c = 0; c < part->program->n_collectives; c++)
        if (same_collective(p, row, part->program, &part->program->collectives[c]))
            return part->first_op + part->program->collectives[c].op;
    return LB_NONE;
}

/* The members' ops in group order; false when one of them is not there. */
static bool gather_members(const lb_program_view *side, const lb_program *p, const lb_collective *row, uint32_t *ops)
{
    for (uint32_t r = 0; r < row->ranks; r++) {
        ops[r] = LB_NONE;
        for (uint32_t k = 0; k < side->n_parts; k++)
            if (side->parts[k].program->rank == (int32_t)p->refs[row->first_rank + r])
                ops[r] = op_of_part(&side->parts[k], p, row);
        if (ops[r] == LB_NONE) return false;
    }
    return row->ranks > 1;
}

static uint32_t count_collectives(const lb_program_view *side)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < side->n_parts; k++) n += side->parts[k].program->n_collectives;
    return n;
}

/* The number that the other end, in program q, gives to the message that `*key` numbers as program p does. Not
 * `*known`: it is not known to be there. */
static lb_status renumber(const lb_program *p, const lb_program *q, lb_message_end end, lb_message_key *key,
                          bool *known, lb_err *err)
{
    lb_message_stream mine = {0}, theirs = {0};
    const lb_message_end far = end == LB_MESSAGE_SENT ? LB_MESSAGE_RECEIVED : LB_MESSAGE_SENT;
    int64_t shift = 0;
    lb_status status = lb_message_stream_read(p, end, key, &mine, err);
    if (status == LB_OK) status = lb_message_stream_read(q, far, key, &theirs, err);
    *known = status == LB_OK && (end == LB_MESSAGE_SENT ? lb_message_streams_align(&mine, &theirs, &shift)
                                                        : lb_message_streams_align(&theirs, &mine, &shift));
    const int64_t number = end == LB_MESSAGE_SENT ? key->number - shift : key->number + shift;
    *known = *known && number >= 0 && number < theirs.n;
    if (*known) key->number = (uint32_t)number;
    free(mine.contents), free(theirs.contents);
    return status;
}

/* The other end of a message of program `of`; LB_NONE where it is not there. */
static lb_status find_other_end(const lb_program_view *side, const lb_program *of, const lb_message_key *key,
                                lb_message_end end, uint32_t *op, lb_err *err)
{
    *op = LB_NONE;
    for (uint32_t k = 0; k < side->n_parts; k++) {
        const lb_program *p = side->parts[k].program;
        lb_message_key wanted = *key;
        if (p->rank != (end == LB_MESSAGE_SENT ? key->receiver : key->sender) || p->step != key->step) continue;
        bool known;
        LB_TRY(renumber(of, p, end, &wanted, &known, err));
        for (uint32_t c = 0; known && c < p->n_collectives; c++) {
            lb_message_key theirs;
            const lb_message_end found = lb_message_key_of(p, &p->collectives[c], &theirs);
            if (found == LB_MESSAGE_NONE || found == end || !lb_message_key_equal(&wanted, &theirs)) continue;
            *op = side->parts[k].first_op + p->collectives[c].op;
            return LB_OK;
        }
    }
    return LB_OK;
}

/* A message is what its two ends make together: who sends comes first. */
static lb_status find_message(const lb_program_view *side, const lb_program *of, uint32_t op, const lb_message_key *key,
                              lb_message_end end, lb_collective_matches *m, uint32_t *n_ops, lb_err *err)
{
    uint32_t other;
    LB_TRY(find_other_end(side, of, key, end, &other, err));
    if (other == LB_NONE || m->of_op[other] != LB_NONE) return LB_OK;
    m->of_op[op] = m->of_op[other] = m->n;
    m->list[m->n++] = (lb_collective_match){*n_ops, 2, true};
    m->ops[(*n_ops)++] = end == LB_MESSAGE_SENT ? op : other;
    m->ops[(*n_ops)++] = end == LB_MESSAGE_SENT ? other : op;
    return LB_OK;
}

static lb_status find_of_part(const lb_program_view *side, const lb_program_view_part *part, lb_collective_matches *m,
                              uint32_t *n_ops, lb_err *err)
{
    const lb_program *p = part->program;
    for (uint32_t c = 0; c < p->n_collectives; c++) {
        const lb_collective *row = &p->collectives[c];
        const uint32_t op = part->first_op + row->op;
        lb_message_key key;
        if (m->of_op[op] != LB_NONE) continue;
        const lb_message_end end = lb_message_key_of(p, row, &key);
        if (end != LB_MESSAGE_NONE) LB_TRY(find_message(side, p, op, &key, end, m, n_ops, err));
        if (end != LB_MESSAGE_NONE || !lb_collective_run_knows(lb_op_name(p, &p->ops[row->op]))) continue;
        if (row->ranks > side->n_parts || !gather_members(side, p, row, m->ops + *n_ops)) continue;
        for (uint32_t r = 0; r < row->ranks; r++) m->of_op[m->ops[*n_ops + r]] = m->n;
        m->list[m->n++] = (lb_collective_match){*n_ops, row->ranks, false};
        *n_ops += row->ranks;
    }
    return LB_OK;
}

lb_status lb_collective_matches_find(const lb_program_view *side, lb_collective_matches *m, lb_err *err)
{
    const uint32_t n = count_collectives(side);
    uint32_t n_ops = 0;
    *m = (lb_collective_matches){.list = malloc((n + 1) * sizeof *m->list),
                                 .ops = malloc((n + side->n_parts + 1) * sizeof *m->ops),
                                 .of_op = malloc((side->program->n_ops + 1) * sizeof *m->of_op)};
    if (!m->list || !m->ops || !m->of_op) {
        lb_collective_matches_release(m);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u collectives", n);
    }
    memset(m->of_op, 0xFF, side->program->n_ops * sizeof *m->of_op);
    lb_status status = LB_OK;
    for (uint32_t k = 0; k < side->n_parts && status == LB_OK; k++)
        status = find_of_part(side, &side->parts[k], m, &n_ops, err);
    if (status != LB_OK) lb_collective_matches_release(m);
    return status;
}

void lb_collective_matches_release(lb_collective_matches *m)
{
    free(m->list), free(m->ops), free(m->of_op);
    *m = (lb_collective_matches){0};
}
