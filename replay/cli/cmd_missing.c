/* Ops without bytes to judge them by: see cmd_missing.h. */
#include "cli/cmd_missing.h"

#include <inttypes.h>
#include <lastbit/capture.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>

void lb_missing_add(lb_missing *missing, const lb_event *event)
{
    if (event->verdict == LB_VERDICT_MISSING) lb_lack_add(&missing->lack, event->program, event->op);
}

char *lb_missing_text(const lb_missing *missing, lb_capture *capture, const char *path, bool backend)
{
    const lb_lack *lack = &missing->lack;
    char *text = NULL, *command = lb_lack_command(lack, capture, NULL);
    size_t size = 0;
    FILE *out = command ? lb_text_stream_open(&text, &size) : NULL;
    if (out) {
        fprintf(out,
                "missing: %" PRIu64
                " ops cannot be judged: bytes of their inputs or results were not kept at level %s, "
                "and what is computed here has other bits\n",
                lack->ops, lb_keep_level_name((lb_level)lack->level));
        if (!backend) fprintf(out, "  to have PyTorch compute these bits: lastbit replay --backend torch %s\n", path);
        fprintf(out, "  to record them again: %s\n", command);
        fclose(out);
    }
    free(command);
    return text;
}
