/* The program that a capture recorded, as one would type it. */
#include "shell/shell_word.h"

#include <lastbit/json_text.h>
#include <lastbit/bisect.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>

char *lb_recorded_program(lb_capture *capture, int32_t rank, uint32_t world)
{
    const char *table = lb_capture_table(capture, rank, "receipt");
    json_t *receipt = table ? json_loads(table, 0, NULL) : NULL;
    const json_t *process = json_object_get(receipt, "process"), *argv = json_object_get(process, "argv"), *arg;
    const json_t *environment = json_object_get(receipt, "environment");
    const char *executable = json_string_value(json_object_get(process, "executable"));
    char *text = NULL;
    size_t size = 0, i;
    FILE *out = lb_text_stream_open(&text, &size);
    if (out) {
        if (!json_array_size(argv))
            fputs("YOUR PROGRAM", out);
        else if (world > 1 &&
                 (json_object_get(environment, "TORCHELASTIC_RUN_ID") || json_object_get(environment, "LOCAL_RANK")))
            fprintf(out, "torchrun --nproc-per-node %u", world);
        else
            lb_shell_word(out, executable ? executable : "python");
        json_array_foreach((json_t *)argv, i, arg)
        {
            fputc(' ', out);
            lb_shell_word(out, json_string_value(arg) ? json_string_value(arg) : "");
        }
        fclose(out);
    }
    json_decref(receipt);
    return text;
}
