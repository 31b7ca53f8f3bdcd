/* Inside a region whose two spellings share no numbers: where do they meet all the same?
 *
 *      A   picked ─▶ times mask ─▶ sum ─▶ / count ─▶ loss         B   picked' ─▶ ? ─▶ sum' ─▶ / all ─▶ loss'
 *
 * What a side does behind one of its values is asked, not read: it is run from the other side's numbers there.
 *
 *      from A's sum in the place of sum', or its negative, B gives A's loss      what is behind sum' is right: the region ends there
 *      from picked' in the place of A's picked, A gives its own loss             picked' serves as well as picked: the region begins there
 *
 * So a region is cut from both ends until what is left of it differs by itself. */
#ifndef LB_BISECT_HALFWAY_H
#define LB_BISECT_HALFWAY_H

#include "implementations/implementations.h"

/* Of the regions that are named by guess, and that no edit repairs: adds what they meet at to the counterparts.
 * `*any`: there was some, so that B is to be run again, and regions are to be found anew. LB_ERR_NOMEM is the only
 * failure. */
lb_status lb_halfway_find(lb_implementations *x, bool *any, lb_err *err);

#endif
