/* Building, copying and reading programs: see lastbit/program.h. The rules a program keeps stand in program_rules.c,
 * its bytes in program_codec.c.
 *
 * Every table is an array that doubles; strings lie in chunks that never move, so a pointer given out stays valid. */
#include "program/program_shelf.h"
#include "program/program_store.h"

#include <lastbit/text.h>

#include "base/array.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 65536

const char *lb_phase_name(lb_phase phase)
{
    static const char *const names[] = {"forward", "backward", "optimizer", "communication", "other"};
    return (unsigned)phase < sizeof names / sizeof names[0] ? names[phase] : "unknown";
}

const char *lb_source_kind_name(lb_source_kind kind)
{
    static const char *const names[] = {"computed",   "parameter", "state",  "batch",   "random",
                                        "collective", "opaque",    "unseen", "carried", "other"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

/* ---- growth ---------------------------------------------------------------------------------------------------- */

static bool reserve(lb_program *program, lb_program_table_id id, uint32_t rows)
{
    const lb_program_table *table = &lb_program_tables[id];
    uint32_t *capacity = &program->store->capacity[id];
    if (rows <= *capacity) return true;
    void **array = (void **)((char *)program + table->array);
    void *grown = rows <= LB_PROGRAM_MAX_ROWS
                      ? lb_array_fit(*array, capacity, rows < 16 ? 16 : rows, table->row_bytes) /* at most 2^28 */
                      : NULL;
    if (grown)
        *array = grown;
    else
        program->store->lacking = true;
    return grown;
}

uint32_t lb_program_append(lb_program *program, lb_program_table_id id, const void *rows, uint32_t count)
{
    const lb_program_table *table = &lb_program_tables[id];
    uint32_t *n = (uint32_t *)((char *)program + table->count);
    uint32_t first = *n;
    /* Callers like to append a row of the very table, which growing may move. */
    char *array = *(char **)((char *)program + table->array);
    size_t inside = (size_t)((const char *)rows - array);
    bool own = array && (const char *)rows >= array && inside < (size_t)first * table->row_bytes;
    if (count > LB_PROGRAM_MAX_ROWS || !reserve(program, id, first + count)) return LB_NONE;
    array = *(char **)((char *)program + table->array);
    if (own) rows = array + inside;
    if (count) memcpy(array + (size_t)first * table->row_bytes, rows, (size_t)count * table->row_bytes);
    *n = first + count;
    return first;
}

/* ---- strings and scopes ---------------------------------------------------------------------------------------- */

char *lb_program_keep_text(lb_program *program, const char *text, size_t n)
{
    struct lb_program_store *store = program->store;
    text_chunk *chunk = store->chunks;
    if (!chunk || chunk->size - chunk->used < n + 1) {
        size_t size = n + 1 > CHUNK_BYTES ? n + 1 : CHUNK_BYTES;
        chunk = (text_chunk *)malloc(sizeof *chunk + size);
        if (!chunk) return store->lacking = true, NULL;
        *chunk = (text_chunk){store->chunks, 0, size};
        store->chunks = chunk;
    }
    char *kept = chunk->bytes + chunk->used;
    memcpy(kept, text, n);
    kept[n] = '\0';
    chunk->used += n + 1;
    return kept;
}

static uint64_t text_hash(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a: names are short and trusted not to collide on purpose */
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h ^ h >> 29;
}

static const char *string_text(const lb_program *program, uint32_t row)
{
    return program->strings[row];
}

static const char *scope_text(const lb_program *program, uint32_t row)
{
    return lb_program_text(program, program->scopes[row].path);
}

static uint32_t entered_row(const lb_program *program, const row_set *set,
                            const char *(*text_of)(const lb_program *, uint32_t), const char *text, uint64_t hash)
{
    LB_HASH_EACH(row, &set->rows, hash)
    if (strcmp(text_of(program, row), text) == 0) return row;
    return LB_NONE;
}

/* The row of `text`, LB_NONE when there is none. Rows that are not in the set yet (decoding adds them by itself) are
 * entered first; of equal texts the first wins. False when out of memory. */
static bool find_row(const lb_program *program, row_set *set, uint32_t rows,
                     const char *(*text_of)(const lb_program *, uint32_t), const char *text, uint64_t hash,
                     uint32_t *row)
{
    for (; set->known < rows; set->known++) {
        const char *other = text_of(program, set->known);
        const uint64_t its = text_hash(other);
        if (entered_row(program, set, text_of, other, its) == LB_NONE && !lb_hash_add(&set->rows, its, set->known))
            return program->store->lacking = true, false;
    }
    *row = entered_row(program, set, text_of, text, hash);
    return true;
}

static uint32_t intern(lb_program *program, const char *text)
{
    row_set *set = &program->store->strings;
    uint32_t row;
    const uint64_t hash = text ? text_hash(text) : 0;
    if (!text || !find_row(program, set, program->n_strings, string_text, text, hash, &row)) return LB_NONE;
    if (row != LB_NONE) return row;
    char *kept = lb_program_keep_text(program, text, strlen(text));
    row = kept ? lb_program_append(program, LB_TABLE_STRINGS, &kept, 1) : LB_NONE;
    if (row != LB_NONE && lb_hash_add(&set->rows, hash, row)) set->known++;
    return row;
}

static uint32_t intern_by(lb_text_kind kind, lb_program *program, const char *text)
{
    if (!text || lb_text_is_plain(kind, text, strlen(text))) return intern(program, text);
    char *spelt = lb_text_escaped(kind, text, strlen(text));
    const uint32_t row = intern(program, spelt);
    free(spelt);
    return row;
}

uint32_t lb_program_string(lb_program *program, const char *text)
{
    return intern_by(LB_TEXT_ARGUMENT, program, text);
}

uint32_t lb_program_name(lb_program *program, const char *name)
{
    return intern_by(LB_TEXT_NAME, program, name);
}

uint32_t lb_program_scope(lb_program *program, const char *path, const char *class_name, uint32_t parent)
{
    row_set *set = &program->store->scopes;
    uint32_t row;
    lb_scope scope = {lb_program_string(program, path), lb_program_string(program, class_name), parent};
    if (scope.path == LB_NONE || (class_name && scope.class_name == LB_NONE)) return LB_NONE;
    path = program->strings[scope.path];
    const uint64_t hash = text_hash(path);
    if (!find_row(program, set, program->n_scopes, scope_text, path, hash, &row)) return LB_NONE;
    if (row != LB_NONE) {
        lb_scope *known = &program->scopes[row];
        if (known->class_name == LB_NONE) known->class_name = scope.class_name;
        return row;
    }
    row = lb_program_append(program, LB_TABLE_SCOPES, &scope, 1);
    if (row != LB_NONE && lb_hash_add(&set->rows, hash, row)) set->known++;
    return row;
}

/* ---- life-cycle ------------------------------------------------------------------------------------------------ */

lb_program *lb_program_alloc(void)
{
    lb_program *program = (lb_program *)calloc(1, sizeof *program);
    if (!program) return NULL;
    program->world = 1;
    program->shard = LB_NONE;
    program->store = (struct lb_program_store *)calloc(1, sizeof *program->store);
    if (program->store) return program;
    free(program);
    return NULL;
}

lb_program *lb_program_new(void)
{
    lb_program *program = lb_program_alloc();
    if (!program) return NULL;
    if (lb_program_string(program, "") == 0 && lb_program_scope(program, "", NULL, LB_NONE) == 0) return program;
    lb_program_free(program);
    return NULL;
}

void lb_program_release_tables(lb_program *program)
{
    for (int id = 0; id < LB_TABLE_COUNT; id++) free(*(void **)((char *)program + lb_program_tables[id].array));
    for (text_chunk *chunk = program->store->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    program->store->chunks = NULL;
}

void lb_program_free(lb_program *program)
{
    if (!program) return;
    if (program->store->shelf) lb_program_shelf_take(program);
    lb_program_release_tables(program);
    lb_hash_release(&program->store->strings.rows);
    lb_hash_release(&program->store->scopes.rows);
    lb_hash_release(&program->store->lines.rows);
    free(program->store);
    free(program);
}

lb_program *lb_program_copy(const lb_program *program)
{
    lb_program *copy = lb_program_alloc();
    if (!copy) return NULL;
    copy->step = program->step;
    copy->rank = program->rank;
    copy->world = program->world;
    copy->level = program->level;
    copy->complete = program->complete;
    copy->shard = program->shard;
    for (int id = 0; id < LB_TABLE_COUNT; id++) {
        const lb_program_table *table = &lb_program_tables[id];
        const void *rows = *(void *const *)((const char *)program + table->array);
        uint32_t count = *(const uint32_t *)((const char *)program + table->count);
        if (lb_program_append(copy, (lb_program_table_id)id, rows, count) == LB_NONE) goto fail;
    }
    for (uint32_t i = 0; i < copy->n_strings; i++) {
        copy->strings[i] = lb_program_keep_text(copy, program->strings[i], strlen(program->strings[i]));
        if (!copy->strings[i]) goto fail;
    }
    return copy;
fail:
    lb_program_free(copy);
    return NULL;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

#define ADD_ROW(function, type, id)                                                                                    \
    uint32_t function(lb_program *program, const type *row)                                                            \
    {                                                                                                                  \
        return lb_program_append(program, id, row, 1);                                                                 \
    }

ADD_ROW(lb_program_add_value, lb_value, LB_TABLE_VALUES)
ADD_ROW(lb_program_add_statistics, lb_statistics, LB_TABLE_STATISTICS)
ADD_ROW(lb_program_add_op, lb_op, LB_TABLE_OPS)
ADD_ROW(lb_program_add_boundary, lb_boundary, LB_TABLE_BOUNDARIES)
ADD_ROW(lb_program_add_collective, lb_collective, LB_TABLE_COLLECTIVES)
ADD_ROW(lb_program_add_routing, lb_routing, LB_TABLE_ROUTINGS)
ADD_ROW(lb_program_add_scalar, lb_scalar, LB_TABLE_SCALARS)
ADD_ROW(lb_program_add_group, lb_group, LB_TABLE_GROUPS)
ADD_ROW(lb_program_add_group_param, lb_group_param, LB_TABLE_GROUP_PARAMS)
ADD_ROW(lb_program_add_notice, lb_notice, LB_TABLE_NOTICES)
#undef ADD_ROW

uint32_t lb_program_add_args(lb_program *program, const lb_arg *args, uint32_t count)
{
    return lb_program_append(program, LB_TABLE_ARGS, args, count);
}

uint32_t lb_program_copy_args(lb_program *program, const lb_program *from, const lb_arg *args, uint32_t count,
                              const lb_arg_rename *rename)
{
    lb_arg *copy = (lb_arg *)malloc((count + 1u) * sizeof *copy);
    if (!copy) return LB_NONE;
    for (uint32_t i = 0; i < count; i++) {
        copy[i] = args[i];
        if (args[i].tag == LB_ARG_VALUE) copy[i].u.value = rename->value(rename->context, args[i].u.value);
        if (args[i].tag == LB_ARG_STRING) copy[i].u.string = rename->string(rename->context, args[i].u.string);
        if (args[i].tag != LB_ARG_LIST && args[i].tag != LB_ARG_COMPLEX) continue;
        copy[i].u.first = args[i].count
                              ? lb_program_copy_args(program, from, from->args + args[i].u.first, args[i].count, rename)
                              : 0;
        if (copy[i].u.first == LB_NONE) {
            free(copy);
            return LB_NONE;
        }
    }
    const uint32_t first = lb_program_add_args(program, copy, count);
    free(copy);
    return first;
}

uint32_t lb_program_add_refs(lb_program *program, const uint32_t *refs, uint32_t count)
{
    return lb_program_append(program, LB_TABLE_REFS, refs, count);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

const char *lb_program_text(const lb_program *program, uint32_t string)
{
    return string < program->n_strings ? program->strings[string] : "";
}

const char *lb_op_name(const lb_program *program, const lb_op *op)
{
    return lb_program_text(program, op->name);
}

const char *lb_op_layer(const lb_program *program, const lb_op *op)
{
    return op->scope < program->n_scopes ? scope_text(program, op->scope) : "";
}

bool lb_op_is_source(const lb_program *program, const lb_op *op)
{
    if (!op->results) return false;
    const char *name = lb_op_name(program, op);
    return *name == 'l' && strcmp(name, "lb::source") == 0;
}

const char *lb_op_class(const lb_program *program, const lb_op *op)
{
    return op->scope < program->n_scopes ? lb_program_text(program, program->scopes[op->scope].class_name) : "";
}

static void each_value(const lb_program *program, const lb_arg *args, uint32_t count, void (*visit)(void *, uint32_t),
                       void *context)
{
    for (uint32_t i = 0; i < count; i++) {
        if (args[i].tag == LB_ARG_VALUE)
            visit(context, args[i].u.value);
        else if (args[i].tag == LB_ARG_LIST)
            each_value(program, program->args + args[i].u.first, args[i].count, visit, context);
    }
}

void lb_op_each_input(const lb_program *program, const lb_op *op, void (*visit)(void *context, uint32_t value),
                      void *context)
{
    each_value(program, lb_op_args(program, op), op->args, visit, context);
}

typedef struct storage_search {
    const lb_program *program;
    int64_t storage;
    uint32_t found;
} storage_search;

static void match_storage(void *context, uint32_t value)
{
    storage_search *search = (storage_search *)context;
    if (search->found == LB_NONE && search->program->values[value].storage == search->storage) search->found = value;
}

uint32_t lb_op_reads(const lb_program *program, const lb_op *op, int64_t storage)
{
    storage_search search = {program, storage, LB_NONE};
    lb_op_each_input(program, op, match_storage, &search);
    return search.found;
}

uint32_t lb_op_writes(const lb_program *program, const lb_op *op, int64_t storage)
{
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(program, op)[w];
        if (v != LB_NONE && program->values[v].storage == storage) return v;
    }
    return LB_NONE;
}

bool lb_program_name_extends(const char *name, const char *base)
{
    const size_t n = strlen(base);
    return !strncmp(name, base, n) && (!name[n] || name[n] == '.');
}

const lb_group *lb_program_group_of(const lb_program *program, int64_t storage)
{
    for (uint32_t g = 0; g < program->n_groups; g++)
        for (uint32_t i = 0; i < program->groups[g].params; i++)
            if (program->group_params[program->groups[g].first_param + i].storage == storage)
                return &program->groups[g];
    return NULL;
}

bool lb_program_is_option(const lb_program *program, uint32_t scalar)
{
    for (uint32_t g = 0; g < program->n_groups; g++)
        if (scalar - program->groups[g].first_option < program->groups[g].options) return true;
    return false;
}

bool lb_op_writes_flagged(const lb_program *program, const lb_op *op, uint32_t flags)
{
    for (uint32_t w = 0; w < op->written; w++) {
        const uint32_t v = lb_op_written(program, op)[w];
        if (v != LB_NONE && program->values[v].flags & flags) return true;
    }
    return false;
}

uint32_t lb_program_owner(const lb_program *program, const char *parameter)
{
    const char *dot = strrchr(parameter, '.');
    const size_t n = dot ? (size_t)(dot - parameter) : 0;
    for (uint32_t s = 1; n && s < program->n_scopes; s++) {
        const char *path = scope_text(program, s);
        if (strlen(path) == n && !strncmp(path, parameter, n)) return s;
    }
    return 0;
}

bool lb_program_is_tap(const lb_program *program, const lb_boundary *boundary)
{
    return boundary->value != LB_NONE &&
           strcmp(lb_program_text(program, program->scopes[boundary->scope].class_name), "tap") == 0;
}

uint32_t *lb_program_producers(const lb_program *program)
{
    uint32_t *ops = (uint32_t *)malloc((program->n_values + 1u) * sizeof *ops);
    if (!ops) return NULL;
    for (uint32_t v = 0; v < program->n_values; v++) ops[v] = LB_NONE;
    for (uint32_t i = program->n_ops; i-- > 0;) { /* the first has the last word */
        const lb_op *op = &program->ops[i];
        for (uint32_t r = 0; r < op->results; r++)
            if (lb_op_results(program, op)[r] != LB_NONE) ops[lb_op_results(program, op)[r]] = i;
        for (uint32_t r = 0; r < op->written; r++)
            if (lb_op_written(program, op)[r] != LB_NONE) ops[lb_op_written(program, op)[r]] = i;
    }
    return ops;
}
