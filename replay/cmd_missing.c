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

char *lb_missing_text(const lb_missing *missing, lb_capture *capture)
{
    if (!missing->ops) return NULL;
    char *text = NULL, *program = lb_recorded_program(capture, missing->rank, missing->world);
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out) {
        fprintf(out,
                "missing: %" PRIu64
                " ops cannot be judged: bytes of their inputs or results were not kept at level %s\n",
                missing->ops, lb_level_name((lb_level)missing->level));
        fprintf(out,
                "  to record them again: lastbit record -o again.lb --level ops --steps %" PRId64 "-%" PRId64
                " -- %s\n",
                missing->first_step, missing->last_step, program ? program : "YOUR PROGRAM");
        fclose(out);
    }
    free(program);
    return text;
}
