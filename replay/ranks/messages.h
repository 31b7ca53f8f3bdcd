/* Messages on their way from one machine to another. A send leaves a copy of what its machine (and its shadow) holds
 * there; a receive that has the same key (message_key.h) takes it, at once or later: programs often post a receive
 * before they send what the other rank waits for, so that the machine goes on without the message until something needs
 * it (lb_machine_postpone). */
#ifndef LB_REPLAY_MESSAGES_H
#define LB_REPLAY_MESSAGES_H

#include "machine/machine.h"
#include "ranks/message_key.h"

typedef struct lb_messages lb_messages;

lb_messages *lb_messages_new(void);
void lb_messages_free(lb_messages *messages);

/* The end of a message that the machine stands at. */
lb_message_end lb_messages_stands_at(const lb_machine *machine, lb_message_key *key);
/* The message that the machine receives there was sent, and is known to be it. */
bool lb_messages_has(const lb_messages *messages, const lb_machine *machine, const lb_message_key *key);
/* The machine sends what it stands at, and goes on. Numbers that replay has not are no message: who receives takes what
 * was recorded. */
lb_status lb_messages_send(lb_messages *messages, lb_machine *machine, const lb_message_key *key, lb_err *err);
/* The machine takes the message, which is there, and goes on. */
lb_status lb_messages_receive(lb_messages *messages, lb_machine *machine, const lb_message_key *key, lb_err *err);

#endif
