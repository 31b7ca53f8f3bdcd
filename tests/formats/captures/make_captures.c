/* make_captures FOLDER: writes the captures that the Python tests read.
 *
 *   closed.lb   3 ranks, 2 steps, every dtype, closed in order
 *   killed.lb   1 rank, 2 steps, no index: as a killed process leaves it */
#include "capture_sample.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    char path[4096];
    lb_err err = LB_ERR_INIT;
    if (argc != 2) return 129;
    snprintf(path, sizeof path, "%s/closed.lb", argv[1]);
    lb_status status = sample_capture(path, 3, 2, true, &err);
    snprintf(path, sizeof path, "%s/killed.lb", argv[1]);
    if (status == LB_OK) status = sample_capture(path, 1, 2, false, &err);
    if (status != LB_OK) fprintf(stderr, "%s\n", err.message);
    return status == LB_OK ? 0 : 1;
}
