/* Finding collective_matches: see collective_match.h. */
#include "pair/collective_match.h"

#include "ranks/collective_names.h"
#include "ranks/message_key.h"

#include "base/array.h"
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
static uint32_t op_of_part(const lb_program_view_part *part, const lb_program *program, const lb_collective *row)
{
    for (uint32_t c = 0; c < part->program->n_collectives; c++)
        if (same_collective(program, row, part->program, &part->program->collectives[c]))
            return part->first_op + part->program->collectives[c].op;
    return LB_NONE;
}

/* A part by its rank, for bsearch. */
typedef struct ranked_part {
    int32_t rank;
    uint32_t part;
} ranked_part;

static int by_rank(const void *x, const void *y)
{
    const ranked_part *a = x, *b = y;
    return a->rank != b->rank ? (a->rank > b->rank) - (a->rank < b->rank) : (a->part > b->part) - (a->part < b->part);
}

static ranked_part *parts_by_rank(const lb_program_view *side)
{
    ranked_part *parts = malloc((side->n_parts + 1u) * sizeof *parts);
    for (uint32_t k = 0; parts && k < side->n_parts; k++) parts[k] = (ranked_part){side->parts[k].program->rank, k};
    if (parts && side->n_parts) qsort(parts, side->n_parts, sizeof *parts, by_rank);
    return parts;
}

/* The members' ops in group order; false when one of them is not there. */
static bool gather_members(const lb_program_view *side, const ranked_part *parts, const lb_program *program,
                           const lb_collective *row, uint32_t *ops)
{
    for (uint32_t r = 0; r < row->ranks; r++) {
        const int32_t rank = (int32_t)program->refs[row->first_rank + r];
        ops[r] = LB_NONE;
        for (size_t k = lb_array_first(parts, side->n_parts, sizeof *parts, &rank, lb_by_i32);
             k < side->n_parts && parts[k].rank == rank; k++) /* of several, the last */
            ops[r] = op_of_part(&side->parts[parts[k].part], program, row);
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
static lb_status renumber(const lb_program *from, const lb_program *to, lb_message_end end, lb_message_key *key,
                          bool *known, lb_err *err)
{
    lb_message_stream mine = {0}, theirs = {0};
    const lb_message_end far = end == LB_MESSAGE_SENT ? LB_MESSAGE_RECEIVED : LB_MESSAGE_SENT;
    int64_t shift = 0;
    lb_status status = lb_message_stream_read(from, end, key, &mine, err);
    if (status == LB_OK) status = lb_message_stream_read(to, far, key, &theirs, err);
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
        const lb_program *program = side->parts[k].program;
        lb_message_key wanted = *key;
        if (program->rank != (end == LB_MESSAGE_SENT ? key->receiver : key->sender) || program->step != key->step)
            continue;
        bool known;
        LB_TRY(renumber(of, program, end, &wanted, &known, err));
        for (uint32_t c = 0; known && c < program->n_collectives; c++) {
            lb_message_key theirs;
            const lb_message_end found = lb_message_key_of(program, &program->collectives[c], &theirs);
            if (found == LB_MESSAGE_NONE || found == end || !lb_message_key_equal(&wanted, &theirs)) continue;
            *op = side->parts[k].first_op + program->collectives[c].op;
            return LB_OK;
        }
    }
    return LB_OK;
}

/* A message is what its two ends make together: who sends comes first. */
static lb_status find_message(const lb_program_view *side, const lb_program *of, uint32_t op, const lb_message_key *key,
                              lb_message_end end, lb_collective_matches *matches, uint32_t *n_ops, lb_err *err)
{
    uint32_t other;
    LB_TRY(find_other_end(side, of, key, end, &other, err));
    if (other == LB_NONE || matches->of_op[other] != LB_NONE) return LB_OK;
    matches->of_op[op] = matches->of_op[other] = matches->n;
    matches->list[matches->n++] = (lb_collective_match){*n_ops, 2, true};
    matches->ops[(*n_ops)++] = end == LB_MESSAGE_SENT ? op : other;
    matches->ops[(*n_ops)++] = end == LB_MESSAGE_SENT ? other : op;
    return LB_OK;
}

static lb_status find_of_part(const lb_program_view *side, const ranked_part *parts, const lb_program_view_part *part,
                              lb_collective_matches *matches, uint32_t *n_ops, lb_err *err)
{
    const lb_program *program = part->program;
    for (uint32_t c = 0; c < program->n_collectives; c++) {
        const lb_collective *row = &program->collectives[c];
        const uint32_t op = part->first_op + row->op;
        lb_message_key key;
        if (matches->of_op[op] != LB_NONE) continue;
        const lb_message_end end = lb_message_key_of(program, row, &key);
        if (end != LB_MESSAGE_NONE) LB_TRY(find_message(side, program, op, &key, end, matches, n_ops, err));
        if (end != LB_MESSAGE_NONE || !lb_collective_run_knows(lb_op_name(program, &program->ops[row->op]))) continue;
        if (row->ranks > side->n_parts || !gather_members(side, parts, program, row, matches->ops + *n_ops)) continue;
        for (uint32_t r = 0; r < row->ranks; r++) matches->of_op[matches->ops[*n_ops + r]] = matches->n;
        matches->list[matches->n++] = (lb_collective_match){*n_ops, row->ranks, false};
        *n_ops += row->ranks;
    }
    return LB_OK;
}

lb_status lb_collective_matches_find(const lb_program_view *side, lb_collective_matches *collective_matches,
                                     lb_err *err)
{
    const uint32_t n = count_collectives(side);
    uint32_t n_ops = 0;
    *collective_matches =
        (lb_collective_matches){.list = malloc((n + 1) * sizeof *collective_matches->list),
                                .ops = malloc((n + side->n_parts + 1) * sizeof *collective_matches->ops),
                                .of_op = malloc((side->program->n_ops + 1) * sizeof *collective_matches->of_op)};
    ranked_part *parts = parts_by_rank(side);
    if (!collective_matches->list || !collective_matches->ops || !collective_matches->of_op || !parts) {
        free(parts);
        lb_collective_matches_release(collective_matches);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u collectives", n);
    }
    memset(collective_matches->of_op, 0xFF, side->program->n_ops * sizeof *collective_matches->of_op);
    lb_status status = LB_OK;
    for (uint32_t k = 0; k < side->n_parts && status == LB_OK; k++)
        status = find_of_part(side, parts, &side->parts[k], collective_matches, &n_ops, err);
    free(parts);
    if (status != LB_OK) lb_collective_matches_release(collective_matches);
    return status;
}

void lb_collective_matches_release(lb_collective_matches *collective_matches)
{
    free(collective_matches->list), free(collective_matches->ops), free(collective_matches->of_op);
    *collective_matches = (lb_collective_matches){0};
}
