/* Remembers what a program leaves in a storage that it wrote in parts (a cache, slice by slice), and tells whether the
 * next program finds the same bytes there. */
#ifndef LB_LEFTOVER_DIGEST_H
#define LB_LEFTOVER_DIGEST_H

#include "recorder/tracked_storage.h"

/* Remembers what is there now. To be called while the storage is alive, just before the program that wrote it in parts
 * ends. */
void lb_leftover_remember(lb_recorder *recorder, lb_tracked *storage);
/* Is what the last program left still there? To be called before the open program touches the storage. */
bool lb_leftover_unchanged(lb_recorder *recorder, const lb_tracked *storage);
/* lb_leftover_note_fresh remembers the bytes of an allocation that nothing has written yet; lb_leftover_was_filled
 * tells whether something other than a recorded op has written there since. Large allocations are not read, as their
 * pages may not exist yet. */
void lb_leftover_note_fresh(lb_recorder *recorder, lb_tracked *storage);
bool lb_leftover_was_filled(lb_recorder *recorder, const lb_tracked *storage);
/* Tells that bytes [first, last) are about to be written. */
void lb_leftover_before_part(lb_recorder *recorder, lb_tracked *storage, uint64_t first, uint64_t last);

#endif
