/* What `record` says when the program has ended: what is in the capture and what to type next, or why nothing is. */
#ifndef LB_CAPTURE_RECORD_SUMMARY_H
#define LB_CAPTURE_RECORD_SUMMARY_H

#include "launch/launch.h"

#include <stdbool.h>
#include <stdint.h>

/* As they were given; texts are popt's copies. */
typedef struct lb_record_options {
    char *out, *level, *steps, *ranks, *keep, *layers, *budget, *ring, *compiled, *step_at;
    char *like, *nccl, *nccl_step, *mpi_step, *device_memory, *sync, *close_each;
    int mpi, force, no_lines, receipt_host, poison;
    uint64_t budget_bytes, device_bytes;
    unsigned long ring_steps, close_steps;
} lb_record_options;

typedef struct lb_record_summary {
    uint64_t bytes;
    uint32_t archives, ranks, steps;
    bool full; /* the disk */
    int64_t first_step, last_step;
    uint32_t rescued;  /* steps that the flight recorder's files had when the program had ended badly */
    bool unread;       /* files of the flight recorder, or parts of them: they stay */
    int code;          /* of the program */
    char stopped[200]; /* why recording ended before the program did; "": it did not */
    lb_err err;        /* why the capture does not read */
} lb_record_summary;

/* What the flight recorder left in its files becomes the capture where the program ended badly, whatever ended it. */
void lb_record_summary_rescue(const lb_record_options *options, const char *folder, lb_record_summary *recorded);
/* Counts what is in the folder, and opens it. */
void lb_record_summary_look(const char *folder, lb_record_summary *recorded);
/* A line on stderr, and the answer of --json. */
void lb_record_summary_say(const lb_record_options *options, const lb_record_summary *recorded,
                           const lb_launch_report *notes);
void lb_record_summary_say_json(const lb_record_options *options, const lb_record_summary *recorded,
                                const lb_launch_report *notes, int code);

#endif
