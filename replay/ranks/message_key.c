/* Keys of messages: see message_key.h. */
#include "message_key.h"

#include <string.h>

enum { PEER = 2, TAG = 3 }; /* of c10d::send(tensors, group, dst, tag) and c10d::recv_(tensors, group, src, tag) */

lb_message_end lb_message_end_of(const char *op_name)
{
    if (!strcmp(op_name, "c10d::send")) return LB_MESSAGE_SENT;
    return strcmp(op_name, "c10d::recv_") ? LB_MESSAGE_NONE : LB_MESSAGE_RECEIVED;
}

/* All but the number. */
static lb_message_end read_row(const lb_program *p, const lb_collective *row, lb_message_key *key)
{
    const lb_op *op = &p->ops[row->op];
    const lb_message_end end = lb_message_end_of(lb_op_name(p, op));
    if (end == LB_MESSAGE_NONE || op->args <= TAG) return LB_MESSAGE_NONE;
    const lb_arg *peer = &lb_op_args(p, op)[PEER], *tag = &lb_op_args(p, op)[TAG];
    if (peer->tag != LB_ARG_INT || tag->tag != LB_ARG_INT || peer->u.i < 0 || peer->u.i >= row->ranks)
        return LB_MESSAGE_NONE;
    const int32_t other = (int32_t)p->refs[row->first_rank + (uint32_t)peer->u.i];
    const bool sent = end == LB_MESSAGE_SENT;
    *key = (lb_message_key){.group = lb_program_text(p, row->group),
                            .sender = sent ? p->rank : other,
                            .receiver = sent ? other : p->rank,
                            .step = p->step,
                            .tag = tag->u.i};
    return end;
}

lb_message_end lb_message_key_of(const lb_program *p, const lb_collective *row, lb_message_key *key)
{
    const lb_message_end end = read_row(p, row, key);
    lb_message_key earlier;
    uint32_t number = 0;
    for (uint32_t c = 0; c < p->n_collectives && end != LB_MESSAGE_NONE; c++)
        number += p->collectives[c].op < row->op && read_row(p, &p->collectives[c], &earlier) == end &&
                  lb_message_key_equal(&earlier, key);
    if (end != LB_MESSAGE_NONE) key->number = number;
    return end;
}

bool lb_message_key_equal(const lb_message_key *a, const lb_message_key *b)
{
    return a->sender == b->sender && a->receiver == b->receiver && a->step == b->step && a->tag == b->tag &&
           a->number == b->number && !strcmp(a->group, b->group);
}
