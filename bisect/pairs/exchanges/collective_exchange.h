/* One collective, or one message, with the bytes that its members gave and received, and what each should have
 * received.
 *
 * Where elements are moved, what should have come is what was sent. Where they are added up it is what came, but for
 * elements that no order of the sum gives (sum_fault.h): these are those of the order that fits best, so that no order
 * needs to be known. */
#ifndef LB_BISECT_COLLECTIVE_EXCHANGE_H
#define LB_BISECT_COLLECTIVE_EXCHANGE_H

#include "exchanges/collective_members.h"
#include "orders/sum_fault.h"

typedef struct lb_collective_exchange {
    const lb_collective_meeting *meeting;
    lb_exchange_kind kind;
    lb_collective_stream *sent, *received; /* per member */
    lb_collective_stream *earlier;         /* per member: what it sent to an earlier collective as large; NULL: none */
    char **right;                          /* per member: what it should have received; NULL: not known */
    lb_collective_reduction reduction;
    lb_collective_order order; /* of the sum that fits best */
    char order_name[48];
    int64_t misses;    /* elements that it does not give, all members together */
    bool sums, proven; /* `proven`: by what was sent, not by what the others received */
} lb_collective_exchange;

lb_status lb_collective_exchange_open(const lb_collective_meeting *meeting, lb_collective_exchange *exchange,
                                      lb_err *err);
void lb_collective_exchange_close(lb_collective_exchange *exchange);
/* Reads bytes, fills `right` and marks the members that received something else; their number. 0 where bytes lack. */
lb_status lb_collective_exchange_mark(lb_capture *capture, lb_collective_exchange *exchange, bool *wrong, uint32_t *n,
                                      lb_err *err);
/* Reads what the members sent to another meeting of theirs, an earlier one. */
lb_status lb_collective_exchange_read_earlier(lb_capture *capture, lb_collective_exchange *exchange,
                                              const lb_collective_meeting *earlier, lb_err *err);
/* Where what was sent decides nothing: `right` of those marked is what one of the others received. */
void lb_collective_exchange_compare(lb_collective_exchange *exchange, const bool *wrong);

/* Bytes of an element that this member received. */
size_t lb_collective_exchange_width(const lb_collective_exchange *exchange, uint32_t member);
/* What is added up, where all of it is known; `inputs` has room for the members. */
bool lb_collective_exchange_terms(const lb_collective_exchange *exchange, const void **inputs, lb_rank_terms *terms);
/* 1 + the place of the member that alone receives element `at` of the sum, where that matters to the order; 0. */
uint32_t lb_collective_exchange_home(const lb_collective_exchange *exchange, const lb_collective_order *order,
                                     int64_t at);
/* Does this order give as much of what was received as the best does? */
bool lb_collective_exchange_fits(const lb_collective_exchange *exchange, const lb_collective_order *order);
/* Where in the sum what this member received begins; -1: sizes do not fit. */
int64_t lb_collective_exchange_part(const lb_collective_exchange *exchange, const lb_rank_terms *terms, uint32_t who);

static inline const lb_collective *lb_collective_member_row(const lb_collective_member *m)
{
    return &m->program->collectives[m->row];
}
static inline const char *lb_collective_member_name(const lb_collective_member *m)
{
    return lb_op_name(m->program, &m->program->ops[m->op]);
}

#endif
