/* The schemas as bytes: see schema_files.h. The assembler reads them. */
#include "command/schema_files.h"

#include "command/command_line.h"

#include <lastbit/text_stream.h>

#include <stdio.h>
#include <string.h>

#define EMBED(name, text)                                                                                              \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".globl lb_schema_bytes_" #name ", lb_schema_end_" #name "\n"                                              \
            ".hidden lb_schema_bytes_" #name ", lb_schema_end_" #name "\n"                                             \
            "lb_schema_bytes_" #name ":\n"                                                                             \
            ".incbin \"" LB_SOURCE_DIR "/include/lastbit/schema/" #name ".json\"\n"                                    \
            "lb_schema_end_" #name ":\n"                                                                               \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const char lb_schema_bytes_##name[], lb_schema_end_##name[];
LB_COMMANDS(EMBED)
EMBED(words, "")
#undef EMBED

static const struct {
    const char *name, *bytes, *end;
} files[] = {
#define ROW(name, text) {#name, lb_schema_bytes_##name, lb_schema_end_##name},
    LB_COMMANDS(ROW) ROW(words, "")
#undef ROW
};

static int find(const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(files[i].name, name) == 0) return (int)i;
    return -1;
}

bool lb_schema_files_print(const char *name)
{
    const int i = find(name);
    if (i >= 0) fwrite(files[i].bytes, 1, (size_t)(files[i].end - files[i].bytes), stdout);
    return i >= 0;
}

/* What every answer has. */
static bool is_shared(const char *field)
{
    return !strcmp(field, "schema") || !strcmp(field, "command") || !strcmp(field, "inputs");
}

char *lb_schema_files_fields(const char *command)
{
    const int i = find(command);
    json_t *schema = i < 0 ? NULL : json_loadb(files[i].bytes, (size_t)(files[i].end - files[i].bytes), 0, NULL),
           *field;
    char *text = NULL;
    size_t size = 0;
    const char *name;
    FILE *to = schema ? lb_text_stream_open(&text, &size) : NULL;
    bool first = true;
    json_object_foreach(to ? json_object_get(schema, "properties") : NULL, name, field)
    {
        const char *type = json_string_value(json_object_get(field, "type"));
        if (is_shared(name)) continue;
        fprintf(to, "%s%s%s", first ? "" : ", ", name, type && !strcmp(type, "array") ? "[]" : "");
        first = false;
    }
    json_decref(schema);
    if (to) fclose(to);
    return text;
}
