/* Whether a recorded run cast numbers beyond the range of e4m3fn to NaN: by the version of PyTorch in its receipt.
 * Before 2.13 a cast rounded what is beyond 464 to NaN, on every device; since then it saturates at 448. */
#ifndef LB_REPLAY_E4M3_NAN_H
#define LB_REPLAY_E4M3_NAN_H

#include <lastbit/archive.h>

/* Of that rank's receipt; false where it has none or names no version. */
bool lb_e4m3_nan_of(lb_capture *capture, int32_t rank);

#endif
