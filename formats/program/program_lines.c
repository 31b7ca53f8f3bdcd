/* Lines of the recorded program's code: see lb_line in lastbit/program.h. A step of ten thousand ops has some hundred
 * of them. */
#include "program/program_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t line_hash(const lb_line *line)
{
    uint64_t h = 0xcbf29ce484222325u;
    const uint32_t words[] = {line->file, line->function, line->text, line->number};
    for (int i = 0; i < 4; i++) h = (h ^ words[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static bool same_line(const lb_line *a, const lb_line *b)
{
    return a->file == b->file && a->function == b->function && a->text == b->text && a->number == b->number;
}

uint32_t lb_program_line(lb_program *program, const lb_line *line)
{
    row_set *set = &program->store->lines;
    for (; set->known < program->n_lines; set->known++) /* decoding adds rows by itself */
        if (!lb_hash_add(&set->rows, line_hash(&program->lines[set->known]), set->known)) return LB_NONE;
    const uint64_t hash = line_hash(line);
    LB_HASH_EACH(row, &set->rows, hash)
    if (same_line(&program->lines[row], line)) return row + 1;
    const uint32_t row = lb_program_append(program, LB_TABLE_LINES, line, 1);
    if (row == LB_NONE) return LB_NONE;
    if (lb_hash_add(&set->rows, hash, row)) set->known++;
    return row + 1;
}

static bool copy_text(lb_program *program, const lb_program *from, uint32_t *string)
{
    if (*string == LB_NONE) return true;
    *string = lb_program_string(program, lb_program_text(from, *string));
    return *string != LB_NONE;
}

uint32_t lb_program_copy_line(lb_program *program, const lb_program *from, uint32_t line)
{
    if (line == 0 || line > from->n_lines) return 0;
    lb_line copy = from->lines[line - 1];
    if (!copy_text(program, from, &copy.file) || !copy_text(program, from, &copy.function) ||
        !copy_text(program, from, &copy.text))
        return LB_NONE;
    return lb_program_line(program, &copy);
}

lb_code_line lb_op_line(const lb_program *program, const lb_op *op)
{
    if (!op->line || op->line > program->n_lines) return (lb_code_line){0, "", "", ""};
    const lb_line *line = &program->lines[op->line - 1];
    return (lb_code_line){line->number, lb_program_text(program, line->file), lb_program_text(program, line->function),
                          lb_program_text(program, line->text)};
}

void lb_code_line_text(const lb_code_line *line, char *text, size_t size)
{
    if (size) *text = '\0';
    if (!line->number) return;
    const char *slash = strrchr(line->file, '/');
    snprintf(text, size, "%s:%" PRIu32 "%s%s%s%s", slash ? slash + 1 : line->file, line->number,
             *line->function ? " in " : "", line->function, *line->text ? ": " : "", line->text);
}

lb_code_line lb_code_line_copy(const lb_code_line *line)
{
    const lb_code_line none = {0, "", "", ""};
    const char *const texts[] = {line->file, line->function, line->text};
    size_t size[3], all = 0;
    if (!line->number) return none;
    for (int i = 0; i < 3; i++) all += size[i] = strlen(texts[i]) + 1;
    char *block = malloc(all), *at = block;
    if (!block) return none;
    for (int i = 0; i < 3; at += size[i++]) memcpy(at, texts[i], size[i]);
    return (lb_code_line){line->number, block, block + size[0], block + size[0] + size[1]};
}

void lb_code_line_release(lb_code_line *line)
{
    if (line->number) free((char *)(uintptr_t)line->file); /* the block begins with it */
    *line = (lb_code_line){0, "", "", ""};
}
