/* Which blobs some archive of a capture may hold.
 *
 * Equal digests are equal bytes, so that a value whose bytes its own rank did not keep may be found in the archive of
 * another. Of a thousand ranks that is a thousand searches, nearly always in vain. This Bloom filter over all digests
 * (some 16 bits each, 8 of them in one line of the cache) says so at once: of 10,000 digests that no archive holds it
 * takes a few for held. */
#ifndef LB_BLOB_FILTER_H
#define LB_BLOB_FILTER_H

#include <lastbit/digest.h>

typedef struct lb_blob_filter lb_blob_filter;

/* For so many digests. NULL when out of memory. */
lb_blob_filter *lb_blob_filter_new(uint64_t digests);
void lb_blob_filter_free(lb_blob_filter *filter);
void lb_blob_filter_add(lb_blob_filter *filter, lb_digest digest);
/* False: it was not added. */
bool lb_blob_filter_may_hold(const lb_blob_filter *filter, lb_digest digest);

#endif
