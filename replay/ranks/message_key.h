/* Messages from one rank to another: c10d::send on one side, c10d::recv_ on the other.
 *
 * A receive takes the message that was sent to its rank with its tag, from its source, in its group, in the order of
 * sending: the third receive takes the third message. Both ends know all of that from their own recording, so that they
 * find each other by a key.
 *
 * But steps of two ranks need not begin at the same message: a stage of a pipeline receives before the first op of its
 * step. What was recorded of the contents tells by how many messages the numbers of two ranks are apart
 * (lb_message_streams_align). */
#ifndef LB_REPLAY_MESSAGE_KEY_H
#define LB_REPLAY_MESSAGE_KEY_H

#include <lastbit/program.h>

typedef enum lb_message_end { LB_MESSAGE_NONE, LB_MESSAGE_SENT, LB_MESSAGE_RECEIVED } lb_message_end;

typedef struct lb_message_key {
    const char *group;        /* of the program's strings */
    int32_t sender, receiver; /* global ranks */
    int64_t step, tag;
    uint32_t number; /* how many messages of that group, of these ranks and with that tag the step has before it */
} lb_message_key;

/* Which end of a message an op is, by its name. */
lb_message_end lb_message_end_of(const char *op_name);
/* The key of the message that the collective `row` of the program is an end of. LB_MESSAGE_NONE: it is none, or its
 * group or its peer is not known (a receive from any source). */
lb_message_end lb_message_key_of(const lb_program *program, const lb_collective *row, lb_message_key *key);
bool lb_message_key_equal(const lb_message_key *a, const lb_message_key *b);

/* The contents of all messages of a step that differ from `key` in nothing but their number, as one of the ends
 * recorded them; none: unknown. */
typedef struct lb_message_stream {
    lb_digest *contents; /* to be freed */
    uint32_t n;
} lb_message_stream;

lb_status lb_message_stream_read(const lb_program *program, lb_message_end end, const lb_message_key *key,
                                 lb_message_stream *stream, lb_err *err);
/* Receive i takes message i + `*shift`: where most contents are equal, and none where nothing speaks against that.
 * False: contents are known, and no two are equal. */
bool lb_message_streams_align(const lb_message_stream *sent, const lb_message_stream *received, int64_t *shift);

#endif
