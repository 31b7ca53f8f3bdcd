/* The recorded ops of a composite, run over other bytes: its kernel "eager".
 *
 * A small interpreter with an environment of its own: a buffer for every storage that the ops touch, recorded layouts
 * in them, the op table's kernels over them. So it has the bits of a replay of these ops, by construction, and needs no
 * machine. */
#ifndef LB_REPLAY_EAGER_H
#define LB_REPLAY_EAGER_H

#include <lastbit/composite.h>

/* As lb_composite_run. Inputs may have fewer elements than were recorded: they are the first of them, row-major; the
 * others are 0. */
lb_status lb_eager_run(const lb_composite *composite, const lb_tensor *inputs, lb_tensor *outputs, lb_err *err);

#endif
