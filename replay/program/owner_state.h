/* Owners while they are found: what owner.c, which makes them, shares with owner_names.c (what can own elements, and
 * the names of sets) and owner_flow.c (which owner each element has). No other file includes it. */
#ifndef LB_REPLAY_OWNER_STATE_H
#define LB_REPLAY_OWNER_STATE_H

#include "program/owner.h"
#include "program/owner_sets.h"

/* What a set of owners is called, and the module that holds them all. */
typedef struct lb_owner_text {
    uint32_t set;
    char *name, *module;
} lb_owner_text;

struct lb_owners {
    const lb_slice_flow *flow;
    const lb_program *program;
    const char **names; /* of what can own; the sets' numbers */
    uint32_t n_names;
    lb_owner_sets sets;
    uint32_t *anchors;    /* per storage of the flow: set */
    uint32_t *first_node; /* per op, and one more */
    uint32_t *from, *to;  /* per node: sets */
    uint32_t *owner;      /* per node: set */
    uint32_t *whole;      /* per op: set */
    uint8_t *followed;    /* per op: flows are followed through it */
    uint32_t all;         /* the set of all parameters */
    lb_owner_text *texts; /* of every set that some op has, ascending */
    uint32_t n_texts;
};

/* *set becomes its union with another one. */
static inline void lb_owners_join(lb_owners *owners, uint32_t *set, uint32_t more)
{
    *set = lb_owner_set_join(&owners->sets, *set, more);
}

/* ---- who can own, and what it is called (owner_names.c) ---- */

/* Fills `names`, of both programs (the second may be NULL), ascending. */
lb_status lb_owners_list_names(lb_owners *owners, const lb_program *const programs[2], lb_err *err);
/* Fills `anchors` of the storages whose owner the recordings name. */
lb_status lb_owners_anchor(lb_owners *owners, const lb_program *const programs[2], lb_err *err);
/* Last of all: fills `whole`, `all` and `texts`. */
lb_status lb_owners_write_texts(lb_owners *owners, lb_err *err);
const lb_owner_text *lb_owners_text(const lb_owners *owners, uint32_t set);

/* ---- whose an element is (owner_flow.c) ---- */

/* Fills `from`, `to`, `followed` and `owner` from the anchors. */
void lb_owners_follow(lb_owners *owners);
/* Storages without a name that one owner's numbers are written to become its own: `*any` says that some did. */
lb_status lb_owners_adopt(lb_owners *owners, bool *any, lb_err *err);
/* What left the tensors (a rate that became a Python number) comes back in the op that is called next. */
void lb_owners_take_over_from_next(lb_owners *owners);

#endif
