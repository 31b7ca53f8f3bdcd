/* What a program leaves in a storage that it wrote in parts, and whether the next one finds it so. */
#ifndef LB_LEFTOVER_DIGEST_H
#define LB_LEFTOVER_DIGEST_H

#include "recorder/tracked_storage.h"

/* Now, when the storage is alive and the program that wrote it in parts is about to end. */
void lb_leftover_remember(lb_recorder *recorder, lb_tracked *storage);
/* The open program is about to touch it. */
bool lb_leftover_unchanged(lb_recorder *recorder, const lb_tracked *storage);
/* An allocation whose bytes mean nothing yet, and whether something wrote there since that no op of ours was. Large
 * ones are not looked at: their pages may not even be there. */
void lb_leftover_note_fresh(lb_recorder *recorder, lb_tracked *storage);
bool lb_leftover_was_filled(lb_recorder *recorder, const lb_tracked *storage);
/* Bytes [first, last) are about to be written. */
void lb_leftover_before_part(lb_recorder *recorder, lb_tracked *storage, uint64_t first, uint64_t last);

#endif
