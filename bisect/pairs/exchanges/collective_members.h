/* Calls of several ranks that are one collective, or one message, and the bytes that each gave and received. */
#ifndef LB_BISECT_COLLECTIVE_MEMBERS_H
#define LB_BISECT_COLLECTIVE_MEMBERS_H

#include "exchanges/collective_extract.h"
#include "exchanges/rank_steps.h"

#include "ranks/collective_names.h"

/* One rank's call. */
typedef struct lb_collective_member {
    const lb_program *program;
    uint32_t row;               /* of the program's collectives */
    uint32_t op;                /* its op */
    uint32_t number;            /* of the op in the whole step, where the program is an extract of it */
    uint32_t place;             /* of this rank in the group */
    uint32_t *inputs, *outputs; /* values */
    uint32_t n_inputs, n_outputs;
    uint32_t ordinal;          /* calls of this rank in the same group before it; messages: that went the same way */
    uint32_t group;            /* a number, equal for calls in the same group */
    bool message, sends;       /* `sends`: a message that goes out */
    int64_t tag;               /* of a message that has one; -1 */
    uint32_t sender, receiver; /* of a message: places; else 0 */
} lb_collective_member;

/* All that meet. Of a message the sender, then the receiver; of a collective in group order. */
typedef struct lb_collective_meeting {
    lb_collective_member *members;
    uint32_t n;
    bool message, whole; /* `whole`: every member was recorded */
} lb_collective_meeting;

typedef struct lb_collective_meetings {
    lb_collective_member *members;
    uint32_t n_members;
    lb_collective_meeting *list; /* in the order in which the first member called them */
    uint32_t n;
} lb_collective_meetings;

/* Of the programs of one step (NULL: not recorded). LB_ERR_NOMEM is the only failure. */
lb_status lb_collective_meetings_find(const lb_program *const *programs, uint32_t n,
                                      lb_collective_meetings *collective_matches, lb_err *err);
/* The same of extracts of them (collective_extract.h): in the order of the whole step's ops. */
lb_status lb_collective_meetings_find_extracts(const lb_collective_extract *extracts, uint32_t n,
                                               lb_collective_meetings *collective_matches, lb_err *err);
void lb_collective_meetings_release(lb_collective_meetings *collective_matches);
/* Who stands at this place of the group. */
int32_t lb_collective_member_rank(const lb_collective_member *member, uint32_t place);

/* Dense elements of values one behind the other. */
typedef struct lb_collective_stream {
    char *bytes; /* NULL: some were not kept, or never written */
    int64_t elements;
    lb_dtype dtype;
} lb_collective_stream;
lb_status lb_collective_stream_read(lb_capture *capture, const lb_program *program, const uint32_t *values, uint32_t n,
                                    lb_collective_stream *stream, lb_err *err);

#endif
