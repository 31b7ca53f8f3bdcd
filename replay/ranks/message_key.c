/* Keys of messages: see message_key.h. */
#include "ranks/message_key.h"

#include <stdlib.h>
#include <string.h>

enum { PEER = 2, TAG = 3 }; /* of c10d::send(tensors, group, dst, tag) and c10d::recv_(tensors, group, src, tag) */

lb_message_end lb_message_end_of(const char *op_name)
{
    if (!strcmp(op_name, "c10d::send")) return LB_MESSAGE_SENT;
    return strcmp(op_name, "c10d::recv_") ? LB_MESSAGE_NONE : LB_MESSAGE_RECEIVED;
}

static bool add_digest(const lb_program *program, uint32_t value, lb_digest *sum)
{
    if (value == LB_NONE) return true;
    const lb_value *v = &program->values[value];
    const lb_digest of = lb_layout_is_contiguous(&v->layout) && !lb_digest_is_none(v->blob) ? v->blob : v->logical;
    if (lb_digest_is_none(of) || v->flags & LB_VALUE_UNDEFINED) return false;
    const lb_digest both[2] = {*sum, of};
    *sum = lb_digest_is_none(*sum) ? of : lb_digest_bytes(both, sizeof both);
    return true;
}

/* What was recorded of the tensors that are sent or received; no digest: not all of it is known. Ranks may see one
 * message in different shapes, so that contiguous tensors are named by their bytes alone. */
static lb_digest contents_of(const lb_program *program, const lb_op *op, lb_message_end end)
{
    const lb_arg *sent = &lb_op_args(program, op)[0];
    bool known = true;
    lb_digest contents = {0};
    if (end == LB_MESSAGE_RECEIVED) {
        for (uint32_t i = 0; i < op->written; i++)
            known &= add_digest(program, lb_op_written(program, op)[i], &contents);
    } else if (sent->tag == LB_ARG_VALUE) {
        known = add_digest(program, sent->u.value, &contents);
    } else {
        for (uint32_t i = 0; sent->tag == LB_ARG_LIST && i < sent->count; i++) {
            const lb_arg *arg = &program->args[sent->u.first + i];
            known &= arg->tag == LB_ARG_VALUE && add_digest(program, arg->u.value, &contents);
        }
    }
    return known ? contents : (lb_digest){0};
}

/* All but the number. */
static lb_message_end read_row(const lb_program *program, const lb_collective *row, lb_message_key *key)
{
    const lb_op *op = &program->ops[row->op];
    const lb_message_end end = lb_message_end_of(lb_op_name(program, op));
    if (end == LB_MESSAGE_NONE || op->args <= TAG) return LB_MESSAGE_NONE;
    const lb_arg *peer = &lb_op_args(program, op)[PEER], *tag = &lb_op_args(program, op)[TAG];
    if (peer->tag != LB_ARG_INT || tag->tag != LB_ARG_INT || peer->u.i < 0 || peer->u.i >= row->ranks)
        return LB_MESSAGE_NONE;
    const int32_t other = (int32_t)program->refs[row->first_rank + (uint32_t)peer->u.i];
    const bool sent = end == LB_MESSAGE_SENT;
    *key = (lb_message_key){.group = lb_program_text(program, row->group),
                            .sender = sent ? program->rank : other,
                            .receiver = sent ? other : program->rank,
                            .step = program->step,
                            .tag = tag->u.i};
    return end;
}

lb_message_end lb_message_key_of(const lb_program *program, const lb_collective *row, lb_message_key *key)
{
    const lb_message_end end = read_row(program, row, key);
    lb_message_key earlier = {0};
    uint32_t number = 0;
    for (uint32_t c = 0; c < program->n_collectives && end != LB_MESSAGE_NONE; c++)
        number += program->collectives[c].op < row->op &&
                  read_row(program, &program->collectives[c], &earlier) == end && lb_message_key_equal(&earlier, key);
    if (end != LB_MESSAGE_NONE) key->number = number;
    return end;
}

bool lb_message_key_equal(const lb_message_key *a, const lb_message_key *b)
{
    return a->sender == b->sender && a->receiver == b->receiver && a->step == b->step && a->tag == b->tag &&
           a->number == b->number && !strcmp(a->group, b->group);
}

lb_status lb_message_stream_read(const lb_program *program, lb_message_end end, const lb_message_key *key,
                                 lb_message_stream *stream, lb_err *err)
{
    lb_message_key k;
    *stream = (lb_message_stream){calloc(program->n_collectives + 1, sizeof *stream->contents), 0};
    if (!stream->contents) return lb_fail(err, LB_ERR_NOMEM, "out of memory for messages");
    for (uint32_t c = 0; c < program->n_collectives; c++) {
        const lb_collective *row = &program->collectives[c];
        if (read_row(program, row, &k) != end) continue;
        k.number = key->number;
        if (lb_message_key_equal(&k, key))
            stream->contents[stream->n++] = contents_of(program, &program->ops[row->op], end);
    }
    return LB_OK;
}

typedef struct agreement {
    uint32_t equal, different;
} agreement;

static agreement compare(const lb_message_stream *sent, const lb_message_stream *received, int64_t shift)
{
    agreement a = {0};
    for (int64_t i = shift < 0 ? -shift : 0; i < received->n && i + shift < sent->n; i++) {
        const lb_digest digest = received->contents[i], y = sent->contents[i + shift];
        if (lb_digest_is_none(digest) || lb_digest_is_none(y)) continue;
        *(lb_digest_equal(digest, y) ? &a.equal : &a.different) += 1;
    }
    return a;
}

bool lb_message_streams_align(const lb_message_stream *sent, const lb_message_stream *received, int64_t *shift)
{
    agreement best = compare(sent, received, 0);
    *shift = 0;
    const int64_t furthest = sent->n > received->n ? sent->n : received->n;
    for (int64_t far = 1; best.different && far < furthest; far++)
        for (int sign = 1; sign >= -1; sign -= 2) {
            const agreement a = compare(sent, received, sign * far);
            if (a.equal > best.equal) best = a, *shift = sign * far;
        }
    return best.equal || !best.different;
}
