/* Ops without bytes to judge them by: see cmd_missing.h. */
#define _GNU_SOURCE /* open_memstream */
#include "cmd_missing.h"

#include <inttypes.h>
#include <lastbit/bisect.h>
#include <lastbit/capture.h>
#include <stdio.h>
#include <stdlib.h>

void lb_missing_add(lb_missing *missing, const lb_event *event)
{
    if (event->verdict != LB_VERDICT_MISSING) return;
    if (!missing->ops || event->step < missing->first_step) missing->first_step = event->step;
    if (!missing->ops || event->step > missing->last_step) missing->last_step = event->step;
    if (!missing->ops || event->program->level < missing->level) missing->level = event->program->level;
    if (!missing->ops) missing->rank = event->rank, missing->world = (uint32_t)event->program->world;
    missing->ops++;
}

char *lb_missing_text(const lb_missing *missing, lb_capture *capture, const char *path, lb_replay_mode mode)
{
    if (!missing->ops) return NULL;
    char *text = NULL, *program = lb_recorded_program(capture, missing->rank, missing->world);
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out) {
        const bool sources = missing->level >= LB_LEVEL_SOURCES, chained = mode == LB_REPLAY_CHAINED;
        fprintf(out, "missing: the bytes of %s of %" PRIu64 " ops were not kept at level %s\n",
                chained ? "sources" : "inputs", missing->ops, lb_level_name((lb_level)missing->level));
        if (sources && !chained)
            fprintf(out, "  from the sources on:   lastbit replay --mode chained %s\n", path);
        fprintf(out,
                "  to record them again:  lastbit record -o again.lb --level %s --steps %" PRId64 "-%" PRId64
                " -- %s\n",
                chained ? "sources" : "ops", missing->first_step, missing->last_step,
                program ? program : "YOUR PROGRAM");
        fclose(out);
    }
    free(program);
    return text;
}
