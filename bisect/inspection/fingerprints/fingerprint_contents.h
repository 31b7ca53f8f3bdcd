/* What names and fingerprints left over, looked for by its numbers: audit's comparison, tensor against tensor. */
#ifndef LB_BISECT_FINGERPRINT_CONTENTS_H
#define LB_BISECT_FINGERPRINT_CONTENTS_H

#include "fingerprints/fingerprint_bytes.h"

/* Whether both tables lie over numbers that can be compared. */
bool lb_fingerprint_contents_are_there(const lb_fingerprint_table *a, const lb_fingerprint_table *b);
/* Puts right what matches of one pair of tables say: other numbers that are the same ones in another layout, what did
 * not arrive by its name and did in a fused tensor. Of others it fills in how their numbers differ. */
lb_status lb_fingerprint_contents_compare(const lb_fingerprint_table *a, const lb_fingerprint_table *b,
                                          lb_fingerprint_match *matches, uint32_t n,
                                          const lb_fingerprint_table_options *options, lb_err *err);

#endif
