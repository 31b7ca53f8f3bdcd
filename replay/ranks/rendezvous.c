/* Members of a collective among the ranks of a run: see rendezvous.h. */
#include "ranks/rendezvous.h"

#include <stdlib.h>
#include <string.h>

static const lb_collective *stands_at(const lb_rank_seat *seat)
{
    const lb_prepared *prepared = seat->machine->prepared;
    const uint32_t row = prepared->ops[seat->machine->next].collective;
    return row == LB_NONE ? NULL : &prepared->program->collectives[row];
}

static bool stand_at_the_same(const lb_rank_seat *a, const lb_rank_seat *b)
{
    const lb_collective *x = stands_at(a), *y = stands_at(b);
    const lb_program *p = a->machine->prepared->program, *q = b->machine->prepared->program;
    if (x && y &&
        (lb_message_end_of(lb_op_name(p, &p->ops[x->op])) || lb_message_end_of(lb_op_name(q, &q->ops[y->op]))))
        return false;
    return x && y && x->sequence == y->sequence && x->ranks == y->ranks &&
           (!x->ranks || !memcmp(p->refs + x->first_rank, q->refs + y->first_rank, x->ranks * sizeof(uint32_t))) &&
           !strcmp(lb_program_text(p, x->group), lb_program_text(q, y->group));
}

/* Looked for from `near` on: members of a group mostly sit in the order in which the group lists them. */
static uint32_t seat_of(const lb_rank_seat *seats, uint32_t n, int32_t rank, uint32_t near)
{
    for (uint32_t i = near; i < n; i++)
        if (seats[i].rank == rank) return i;
    for (uint32_t i = 0; i < near && i < n; i++)
        if (seats[i].rank == rank) return i;
    return LB_NONE;
}

/* Of the end of a message: who else has to be there is told by its key. */
static lb_rendezvous gather_message(const lb_rank_seat *seats, uint32_t n, uint32_t self, lb_message_end end,
                                    const lb_message_key *key, const lb_messages *messages)
{
    const uint32_t other = seat_of(seats, n, end == LB_MESSAGE_SENT ? key->receiver : key->sender, 0);
    if (end == LB_MESSAGE_SENT) return other == LB_NONE ? LB_RENDEZVOUS_IMPOSSIBLE : LB_RENDEZVOUS_COMPLETE;
    if (lb_messages_has(messages, seats[self].machine, key)) return LB_RENDEZVOUS_COMPLETE;
    return other == LB_NONE || seats[other].done ? LB_RENDEZVOUS_IMPOSSIBLE : LB_RENDEZVOUS_WAITS;
}

lb_rendezvous lb_rendezvous_gather(const lb_rank_seat *seats, uint32_t n, uint32_t first, const lb_messages *messages,
                                   uint32_t *members, uint32_t *n_members)
{
    lb_message_key key;
    const lb_message_end end = lb_messages_stands_at(seats[first].machine, &key);
    if (end != LB_MESSAGE_NONE) {
        members[0] = first, *n_members = 1;
        return gather_message(seats, n, first, end, &key, messages);
    }
    const lb_collective *row = stands_at(&seats[first]);
    const lb_program *program = seats[first].machine->prepared->program;
    lb_rendezvous found = LB_RENDEZVOUS_COMPLETE;
    *n_members = 0;
    if (!row || !row->ranks || row->ranks > n ||
        !lb_collective_run_knows(lb_op_name(program, &program->ops[seats[first].machine->next])))
        return LB_RENDEZVOUS_IMPOSSIBLE;
    for (uint32_t i = 0; i < row->ranks; i++) {
        const uint32_t m = seat_of(seats, n, (int32_t)program->refs[row->first_rank + i],
                                   *n_members ? members[*n_members - 1] + 1 : 0);
        if (m == LB_NONE || seats[m].done) return LB_RENDEZVOUS_IMPOSSIBLE;
        if (!seats[m].waits || !stand_at_the_same(&seats[first], &seats[m])) found = LB_RENDEZVOUS_WAITS;
        members[(*n_members)++] = m;
    }
    return found;
}

bool lb_rendezvous_postpone(const lb_rank_seat *seat, lb_status *status, lb_err *err)
{
    lb_message_key key;
    if (lb_messages_stands_at(seat->machine, &key) != LB_MESSAGE_RECEIVED || !lb_machine_can_postpone(seat->machine))
        return false;
    *status = lb_machine_postpone(seat->machine, err);
    return true;
}

lb_status lb_rendezvous_run(const lb_rank_seat *seats, const uint32_t *members, uint32_t n_members,
                            lb_messages *messages, lb_err *err)
{
    lb_message_key key;
    const lb_message_end end = lb_messages_stands_at(seats[members[0]].machine, &key);
    if (end == LB_MESSAGE_SENT) return lb_messages_send(messages, seats[members[0]].machine, &key, err);
    if (end == LB_MESSAGE_RECEIVED) return lb_messages_receive(messages, seats[members[0]].machine, &key, err);
    lb_machine **machines = calloc(n_members + 1, sizeof *machines);
    if (!machines) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n_members; i++) machines[i] = seats[members[i]].machine->shadow;
    if (machines[0]) status = lb_collective_run_run(machines, n_members, err);
    for (uint32_t i = 0; i < n_members; i++) machines[i] = seats[members[i]].machine;
    if (status == LB_OK) status = lb_collective_run_run(machines, n_members, err);
    free(machines);
    return status;
}
