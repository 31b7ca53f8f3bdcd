/* Which bytes `pack --strip` leaves out. Private to formats/.
 *
 * The same bytes lie in a capture under many names: a parameter here is a carried source there, a batch is a slice of a
 * larger tensor, autocast makes a copy of every weight. So they are listed by digest, for all ranks and steps, before
 * anything is written: the chosen sources, whatever shares a storage with them, and what ops that only move or cast
 * made of those. */
#ifndef LB_CAPTURE_STRIP_H
#define LB_CAPTURE_STRIP_H

#include <lastbit/archive.h>

typedef struct lb_strip_list {
    lb_digest *digests; /* ascending, none twice */
    uint8_t *met;       /* of each: was asked for before */
    uint64_t n;
} lb_strip_list;

/* `strip`: lb_strip. Reads every program of the capture. */
lb_status lb_strip_list_make(lb_capture *capture, uint32_t strip, lb_strip_list *list, lb_err *err);
/* `*first`: it was never asked for before. */
bool lb_strip_list_holds(lb_strip_list *list, lb_digest digest, bool *first);
void lb_strip_list_release(lb_strip_list *list);

#endif
