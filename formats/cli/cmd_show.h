/* What `lastbit show` shows of one value (cmd_show_value.c), for the command that chooses it (cmd_show.c). */
#ifndef LB_CMD_SHOW_H
#define LB_CMD_SHOW_H

#include "command/command_line.h"

#include <lastbit/archive.h>

typedef struct show_options {
    const char *slice; /* NULL: the whole value */
    uint64_t limit;    /* elements printed at most */
    bool contents, histogram;
} show_options;

typedef struct shown {
    const lb_program *program;
    uint32_t value, op; /* op that gave it, or LB_NONE */
    bool has_bytes, has_statistics;
    lb_tensor tensor;         /* with bytes: of the slice */
    void *widened;            /* owns the elements when the slice is of a type that cannot be sliced in place */
    lb_statistics statistics; /* of the slice; as recorded when there is none */
} shown;

/* LB_ERR_NOT_CAPTURED when a slice is asked for and the bytes were not kept. Release it whatever happens. */
lb_status show_look(shown *shown, lb_capture *capture, const lb_program *program, uint32_t value, uint32_t op,
                    const show_options *options, lb_err *err);
void show_release(shown *shown);

lb_status show_print(const shown *shown, const show_options *options, lb_err *err);
json_t *show_json(const shown *shown, const show_options *options, lb_err *err); /* NULL on failure */
/* Types that NumPy lacks become float32 or complex64, and stderr says so. */
lb_status show_write_npy(const shown *shown, const char *path, lb_err *err);

#endif
