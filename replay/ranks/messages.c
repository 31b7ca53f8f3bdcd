/* Messages between machines: see messages.h. */
#include "ranks/messages.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* What a machine held when it sent: all tensors of the op, dense, one behind the other. */
typedef struct contents {
    char *bytes;
    lb_dtype dtype;
    int64_t n;
    lb_inputs known;
} contents;

typedef struct message {
    lb_message_key key;
    contents of[2]; /* of the machine and of its shadow */
    bool shadowed, missing;
} message;

/* All messages of a step that share their key but for its number. */
typedef struct stream {
    lb_message_key key; /* numbered 0 */
    lb_message_stream sent;
    bool met, aligned; /* the receiver's numbers were compared with these, and fit */
    int64_t shift;
} stream;

struct lb_messages {
    message *list;
    stream *streams;
    uint32_t n, n_streams;
};

lb_messages *lb_messages_new(void)
{
    return calloc(1, sizeof(lb_messages));
}

static void release(message *message)
{
    free(message->of[0].bytes), free(message->of[1].bytes);
}

void lb_messages_free(lb_messages *messages)
{
    for (uint32_t i = 0; messages && i < messages->n; i++) release(&messages->list[i]);
    for (uint32_t i = 0; messages && i < messages->n_streams; i++) free(messages->streams[i].sent.contents);
    if (messages) free(messages->list), free(messages->streams);
    free(messages);
}

lb_message_end lb_messages_stands_at(const lb_machine *machine, lb_message_key *key)
{
    const lb_prepared *prepared = machine->prepared;
    const uint32_t row = prepared->ops[machine->next].collective;
    return row == LB_NONE ? LB_MESSAGE_NONE
                          : lb_message_key_of(prepared->program, &prepared->program->collectives[row], key);
}

static uint32_t find(const lb_messages *messages, const lb_message_key *key)
{
    uint32_t i = 0;
    while (i < messages->n && !lb_message_key_equal(&messages->list[i].key, key)) i++;
    return i;
}

static stream *find_stream(const lb_messages *messages, lb_message_key key)
{
    key.number = 0;
    for (uint32_t i = 0; i < messages->n_streams; i++)
        if (lb_message_key_equal(&messages->streams[i].key, &key)) return &messages->streams[i];
    return NULL;
}

static lb_status add_stream(lb_messages *messages, const lb_program *program, lb_message_key key, lb_err *err)
{
    key.number = 0;
    stream *grown = lb_array_grow(messages->streams, messages->n_streams, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a message");
    messages->streams = grown, grown[messages->n_streams] = (stream){.key = key};
    return lb_message_stream_read(program, LB_MESSAGE_SENT, &key, &grown[messages->n_streams++].sent, err);
}

/* The message's key, as its sender numbers it; false: the sender has none that is known to be it. */
static bool sent_key(const lb_messages *messages, const lb_program *receiver, lb_message_key *key)
{
    stream *stream = find_stream(messages, *key);
    if (!stream) return false;
    if (!stream->met) {
        lb_message_stream received;
        stream->met = true;
        stream->aligned = lb_message_stream_read(receiver, LB_MESSAGE_RECEIVED, key, &received, NULL) == LB_OK &&
                          lb_message_streams_align(&stream->sent, &received, &stream->shift);
        free(received.contents);
    }
    const int64_t number = key->number + stream->shift;
    if (!stream->aligned || number < 0 || number >= stream->sent.n) return false;
    key->number = (uint32_t)number;
    return true;
}

bool lb_messages_has(const lb_messages *messages, const lb_machine *machine, const lb_message_key *key)
{
    lb_message_key sent = *key;
    return sent_key(messages, machine->prepared->program, &sent) && find(messages, &sent) < messages->n;
}

/* ---- sending ---- */

static bool is_undefined(const lb_program *program, uint32_t value)
{
    return program->values[value].flags & LB_VALUE_UNDEFINED;
}

/* One tensor more; `*whole` is false where it could not be had. */
static lb_status append(contents *contents, lb_machine *machine, uint32_t value, bool *whole, lb_err *err)
{
    lb_tensor tensor;
    LB_TRY(lb_machine_input(machine, value, &tensor, &contents->known, err));
    const int64_t n = lb_layout_numel(&tensor.layout);
    if (contents->known.missing || (n && !tensor.data) || (contents->n && contents->dtype != tensor.dtype) ||
        lb_dtype_bits(tensor.dtype) < 8 || is_undefined(machine->prepared->program, value)) {
        *whole = false;
        return LB_OK;
    }
    const size_t size = lb_dtype_bits(tensor.dtype) / 8;
    char *grown = realloc(contents->bytes, (size_t)(contents->n + n) * size + 1);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a message");
    contents->bytes = grown, contents->dtype = tensor.dtype;
    const lb_tensor dense = {grown + (size_t)contents->n * size, tensor.dtype,
                             lb_layout_contiguous(tensor.layout.ndim, tensor.layout.shape)};
    lb_memory_tensor_copy(&dense, &tensor, NULL);
    contents->n += n;
    return LB_OK;
}

static lb_status take_contents(contents *contents, lb_machine *machine, bool *whole, lb_err *err)
{
    const lb_program *program = machine->prepared->program;
    const lb_arg *tensors = &lb_op_args(program, &program->ops[machine->next])[0];
    contents->known = (lb_inputs)LB_INPUTS_INIT;
    if (tensors->tag == LB_ARG_VALUE) return append(contents, machine, tensors->u.value, whole, err);
    for (uint32_t i = 0; tensors->tag == LB_ARG_LIST && i < tensors->count && *whole; i++) {
        const lb_arg *arg = &program->args[tensors->u.first + i];
        *whole = arg->tag == LB_ARG_VALUE && arg->u.value != LB_NONE;
        if (*whole) LB_TRY(append(contents, machine, arg->u.value, whole, err));
    }
    return LB_OK;
}

lb_status lb_messages_send(lb_messages *messages, lb_machine *machine, const lb_message_key *key, lb_err *err)
{
    message sent = {.key = *key, .shadowed = machine->shadow != NULL};
    bool whole = true;
    if (!find_stream(messages, *key)) LB_TRY(add_stream(messages, machine->prepared->program, *key, err));
    lb_status status = sent.shadowed ? take_contents(&sent.of[1], machine->shadow, &whole, err) : LB_OK;
    if (status == LB_OK && whole) status = take_contents(&sent.of[0], machine, &whole, err);
    sent.missing = !whole;
    message *grown = status == LB_OK ? lb_array_grow(messages->list, messages->n, sizeof *grown) : NULL;
    if (!grown) {
        release(&sent);
        return status == LB_OK ? lb_fail(err, LB_ERR_NOMEM, "out of memory for a message") : status;
    }
    messages->list = grown, grown[messages->n++] = sent;
    return lb_machine_stand_in(machine, err); /* a send gives nothing */
}

/* ---- receiving ---- */

static uint32_t count_outputs(const lb_op *op)
{
    return op->written ? op->written : op->results;
}

static uint32_t output_of(const lb_program *program, const lb_op *op, uint32_t i)
{
    return op->written ? lb_op_written(program, op)[i] : lb_op_results(program, op)[i];
}

static bool fits(const lb_machine *machine, const contents *contents)
{
    const lb_program *program = machine->prepared->program;
    const lb_op *op = &program->ops[machine->next];
    int64_t n = 0;
    for (uint32_t i = 0; i < count_outputs(op); i++)
        if (output_of(program, op, i) != LB_NONE)
            n += lb_layout_numel(&program->values[output_of(program, op, i)].layout);
    return n == contents->n;
}

static lb_status put_contents(const contents *contents, lb_machine *machine, lb_err *err)
{
    const lb_program *program = machine->prepared->program;
    const lb_op *op = &program->ops[machine->next];
    const size_t size = lb_dtype_bits(contents->dtype) / 8;
    int64_t at = 0;
    for (uint32_t i = 0; i < count_outputs(op); i++) {
        const uint32_t v = output_of(program, op, i);
        lb_tensor window;
        if (v == LB_NONE) continue;
        LB_TRY(lb_machine_output(machine, v, &window, err));
        const lb_tensor dense = {contents->bytes + (size_t)at * size, contents->dtype,
                                 lb_layout_contiguous(window.layout.ndim, window.layout.shape)};
        lb_memory_tensor_copy(&window, &dense, NULL);
        at += lb_layout_numel(&window.layout);
    }
    return lb_machine_finish(machine, &contents->known, NULL, err);
}

lb_status lb_messages_receive(lb_messages *messages, lb_machine *machine, const lb_message_key *key, lb_err *err)
{
    lb_message_key sent = *key;
    sent_key(messages, machine->prepared->program, &sent);
    const uint32_t at = find(messages, &sent);
    message message = messages->list[at];
    lb_status status = LB_OK;
    memmove(messages->list + at, messages->list + at + 1, (messages->n - at - 1) * sizeof message);
    messages->n--;
    if (message.missing || message.shadowed != (machine->shadow != NULL) || !fits(machine, &message.of[0])) {
        status = lb_machine_stand_in(machine, err);
    } else {
        if (message.shadowed) status = put_contents(&message.of[1], machine->shadow, err);
        if (status == LB_OK) status = put_contents(&message.of[0], machine, err);
    }
    release(&message);
    return status;
}
