/* See fingerprint_files.h. A capture's parameters are put beside each other as the pieces of a checkpoint are, so that
 * whatever reads those reads them. */
#include "fingerprints/fingerprint_files.h"

#include "base/array.h"
#include <lastbit/decode_limit.h>
#include <lastbit/json_text.h>
#include <lastbit/program.h>
#include <lastbit/text.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static lb_status out_of_memory(const lb_fingerprint_table *table, lb_err *err)
{
    return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", table->path);
}

/* ---- files of tensors -------------------------------------------------------------------------------------------- */

lb_status lb_fingerprint_files_checkpoint(lb_fingerprint_table *table, lb_err *err)
{
    lb_fingerprint_bytes *fingerprint_bytes = table->bytes = calloc(1, sizeof *fingerprint_bytes);
    if (!fingerprint_bytes) return out_of_memory(table, err);
    LB_TRY(lb_checkpoint_open(table->path, &fingerprint_bytes->checkpoint, err));
    const lb_checkpoint *checkpoint = fingerprint_bytes->checkpoint;
    if (checkpoint->n_faults)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: %s; `lastbit audit` says more", table->path,
                       checkpoint->faults[0].message);
    fingerprint_bytes->pieces = malloc((checkpoint->n_pieces + 1u) * sizeof *fingerprint_bytes->pieces);
    if (!fingerprint_bytes->pieces) return out_of_memory(table, err);
    for (fingerprint_bytes->n = 0; fingerprint_bytes->n < checkpoint->n_pieces; fingerprint_bytes->n++)
        fingerprint_bytes->pieces[fingerprint_bytes->n] =
            (lb_fingerprint_piece){checkpoint->pieces[fingerprint_bytes->n], -1};
    return LB_OK;
}

static int by_row_name(const void *a, const void *b)
{
    return strcmp(((const lb_fingerprint_row *)a)->name, ((const lb_fingerprint_row *)b)->name);
}

lb_status lb_fingerprint_files_unread(lb_fingerprint_table *table, lb_err *err)
{
    const lb_checkpoint *checkpoint = table->bytes->checkpoint;
    lb_fingerprint_row *rows = realloc(table->rows, (table->n + checkpoint->n_unread + 1u) * sizeof *rows);
    if (!rows) return out_of_memory(table, err);
    table->rows = rows;
    for (uint32_t i = 0; i < checkpoint->n_unread; i++) {
        const lb_checkpoint_unread *unread = &checkpoint->unread[i];
        char why[160];
        snprintf(why, sizeof why, "it is quantised (%.40s): no number of it stands in the file to compare",
                 unread->type);
        lb_fingerprint_row *row = &rows[table->n++];
        *row = (lb_fingerprint_row){.name = strdup(unread->name), .shape = unread->shape, .lacks = strdup(why)};
        if (!row->name || !row->lacks) return out_of_memory(table, err);
    }
    if (table->n) qsort(table->rows, table->n, sizeof *table->rows, by_row_name);
    return LB_OK;
}

/* ---- a recorded step --------------------------------------------------------------------------------------------- */

typedef struct parameters {
    lb_fingerprint_table *table;
    const lb_program *program;
    int32_t rank;
} parameters;

static lb_fingerprint_piece *add_piece(parameters *parameters, const char *name, const lb_tensor *tensor)
{
    lb_fingerprint_bytes *fingerprint_bytes = parameters->table->bytes;
    lb_fingerprint_piece *more = lb_array_grow(fingerprint_bytes->pieces, fingerprint_bytes->n, sizeof *more);
    if (!more) return NULL;
    fingerprint_bytes->pieces = more;
    more[fingerprint_bytes->n] =
        (lb_fingerprint_piece){{.name = name, .rank = parameters->rank, .tensor = *tensor}, -1};
    more[fingerprint_bytes->n].held.whole = lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape);
    return &more[fingerprint_bytes->n++];
}

/* The ranges of dimension `d` among a shard's extents, and how many. */
static const lb_extent *extents_of(const lb_program *program, const lb_shard *shard, int d, uint32_t *n)
{
    const lb_extent *rows = program->extents + shard->first_extent;
    uint32_t first = 0;
    while (first < shard->extents && rows[first].dim != d) first++;
    for (*n = 0; first + *n < shard->extents && rows[first + *n].dim == d;) ++*n;
    return rows + first;
}

/* A part that is ranges of each dimension: a block for each combination of them. */
static bool add_blocks(parameters *parameters, const char *name, const lb_tensor *part, const lb_shard *shard)
{
    const lb_layout whole = lb_shard_whole(parameters->program, shard);
    uint32_t which[LB_MAX_DIMS] = {0};
    for (;;) {
        lb_tensor block = *part;
        int64_t start[LB_MAX_DIMS] = {0}, offset = 0;
        for (int d = 0; d < whole.ndim; d++) {
            uint32_t n;
            const lb_extent *extent = extents_of(parameters->program, shard, d, &n);
            int64_t before = 0;
            for (uint32_t k = 0; k < which[d]; k++) before += extent[k].size;
            start[d] = extent[which[d]].from, block.layout.shape[d] = extent[which[d]].size;
            offset += before * part->layout.stride[d];
        }
        block.data = (char *)part->data + offset * (int64_t)lb_dtype_bits(part->dtype) / 8;
        lb_fingerprint_piece *piece = add_piece(parameters, name, &block);
        if (!piece) return false;
        piece->held.placed = true, piece->held.whole = whole;
        memcpy(piece->held.start, start, sizeof start);
        int d = whole.ndim - 1;
        for (uint32_t n; d >= 0; which[d--] = 0) {
            extents_of(parameters->program, shard, d, &n);
            if (++which[d] < n) break;
        }
        if (d < 0) return true;
    }
}

/* What the program said that a value is of larger tensors. A part lies dense in its value. */
static bool add_shards(parameters *parameters, const char *name, const lb_tensor *value, const lb_shard *shards,
                       uint32_t n)
{
    const lb_program *program = parameters->program;
    const size_t width = lb_dtype_bits(value->dtype) / 8;
    for (uint32_t i = 0; i < n; i++) {
        const lb_layout part = lb_shard_part(program, &shards[i]);
        const int64_t held = lb_layout_numel(&part);
        const char *own = shards[i].name == LB_NONE ? name : lb_program_text(program, shards[i].name);
        if (!lb_layout_is_contiguous(&value->layout) || held < 0 || shards[i].at < 0 ||
            held > lb_layout_numel(&value->layout) - shards[i].at)
            continue;
        lb_tensor tensor = {value->data ? (char *)value->data + (size_t)shards[i].at * width : NULL, value->dtype,
                            part};
        if (!lb_shard_is_flat(program, &shards[i])) {
            if (!add_blocks(parameters, own, &tensor, &shards[i])) return false;
            continue;
        }
        lb_fingerprint_piece *piece = add_piece(parameters, own, &tensor);
        if (!piece) return false;
        piece->held.placed = true, piece->held.whole = lb_shard_whole(program, &shards[i]);
        piece->flat = program->extents[shards[i].first_extent + shards[i].extents - 1].from;
        parameters->table->bytes->flat = true;
    }
    return true;
}

/* The first source of each name: what the step begins with. */
static bool add_parameters(parameters *parameters)
{
    const lb_program *program = parameters->program;
    uint8_t *seen = calloc(program->n_strings + 1u, 1);
    bool made = seen != NULL;
    for (uint32_t i = 0; i < program->n_ops && made; i++) {
        const uint32_t v =
            lb_op_is_source(program, &program->ops[i]) ? lb_op_results(program, &program->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !(program->values[v].flags & LB_VALUE_PARAMETER) || program->values[v].name == LB_NONE)
            continue;
        if (seen[program->values[v].name]++) continue;
        lb_tensor tensor;
        uint32_t n;
        const lb_shard *shards = lb_program_shards_of(program, v, &n);
        const char *name = lb_program_text(program, program->values[v].name);
        if (lb_capture_value(parameters->table->bytes->capture, program, v, &tensor, NULL) != LB_OK)
            tensor = (lb_tensor){NULL, program->values[v].dtype, program->values[v].layout};
        made = n ? add_shards(parameters, name, &tensor, shards, n) : add_piece(parameters, name, &tensor) != NULL;
    }
    free(seen);
    return made;
}

/* The pieces as a checkpoint, for what compares those by their numbers. */
static bool make_checkpoint(lb_fingerprint_table *table, uint32_t ranks)
{
    lb_fingerprint_bytes *fingerprint_bytes = table->bytes;
    lb_checkpoint *checkpoint = fingerprint_bytes->checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint) return false;
    checkpoint->path = strdup(table->path), checkpoint->files = calloc(1, sizeof *checkpoint->files);
    checkpoint->pieces = calloc(fingerprint_bytes->n + 1u, sizeof *checkpoint->pieces);
    if (!checkpoint->path || !checkpoint->files || !checkpoint->pieces) return false;
    checkpoint->files[0] = (lb_checkpoint_file){strdup(""), -1, 0, -1, 0}, checkpoint->n_files = 1;
    checkpoint->ranks = (int32_t)ranks, checkpoint->distributed = ranks > 1;
    return checkpoint->files[0].path != NULL;
}

lb_status lb_fingerprint_files_capture(lb_fingerprint_table *table, int64_t step, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    lb_fingerprint_bytes *fingerprint_bytes = table->bytes = calloc(1, sizeof *fingerprint_bytes);
    if (!fingerprint_bytes) return out_of_memory(table, err);
    LB_TRY(lb_capture_open(table->path, &fingerprint_bytes->capture, err));
    const uint32_t n_ranks = lb_capture_ranks(fingerprint_bytes->capture, &ranks),
                   n_steps = lb_capture_steps(fingerprint_bytes->capture, &steps);
    if (n_steps == 0) return lb_capture_lacks(fingerprint_bytes->capture, INT64_MIN, INT64_MAX, err);
    table->step = step == INT64_MIN ? steps[0] : step;
    bool there = false;
    for (uint32_t i = 0; i < n_steps; i++) there |= steps[i] == table->step;
    if (!there) return lb_capture_lacks(fingerprint_bytes->capture, table->step, table->step, err);
    for (uint32_t r = 0; r < n_ranks; r++) {
        parameters parameters = {table, NULL, ranks[r]};
        lb_err why = LB_ERR_INIT;
        const lb_status status =
            lb_capture_program(fingerprint_bytes->capture, ranks[r], table->step, &parameters.program, &why);
        if (status == LB_ERR_NOT_FOUND) continue; /* this rank did not record the step */
        if (status != LB_OK) return lb_fail(err, status, "%s", why.message);
        if (!add_parameters(&parameters)) return out_of_memory(table, err);
    }
    bool kept = false;
    for (uint32_t i = 0; i < fingerprint_bytes->n; i++) kept |= fingerprint_bytes->pieces[i].held.tensor.data != NULL;
    if (!kept)
        return lb_fail(err, LB_ERR_NOT_CAPTURED,
                       "%s: step %lld kept no parameter; `lastbit record --level sources` keeps them", table->path,
                       (long long)table->step);
    return make_checkpoint(table, n_ranks) ? LB_OK : out_of_memory(table, err);
}

void lb_fingerprint_files_lacking(lb_fingerprint_table *table)
{
    lb_fingerprint_bytes *fingerprint_bytes = table->bytes;
    for (uint32_t i = 0; i < table->n; i++) {
        lb_fingerprint_row *row = &table->rows[i];
        bool kept = true;
        for (uint32_t k = 0; k < row->pieces; k++)
            kept &= fingerprint_bytes->pieces[row->first + k].held.tensor.data != NULL;
        if (!kept) row->lacks = strdup("its bytes were not kept");
        for (uint32_t k = 0; k < row->pieces && kept; k++)
            if (fingerprint_bytes->pieces[row->first + k].flat < 0)
                fingerprint_bytes->checkpoint->pieces[fingerprint_bytes->checkpoint->n_pieces++] =
                    fingerprint_bytes->pieces[row->first + k].held;
    }
}

/* ---- a table in JSON --------------------------------------------------------------------------------------------- */

static lb_status no_table(const lb_fingerprint_table *table, const char *what, lb_err *err)
{
    return lb_fail(err, LB_ERR_CORRUPT,
                   "%s: is not a table of fingerprints (%s); `lastbit fingerprint --json FILE` writes one", table->path,
                   what);
}

static lb_status read_shape(const lb_fingerprint_table *table, const json_t *shape, lb_layout *layout, lb_err *err)
{
    int64_t sizes[LB_MAX_DIMS] = {0};
    const size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > LB_MAX_DIMS) return no_table(table, "a shape", err);
    for (size_t d = 0; d < n; d++) {
        const json_t *size = json_array_get(shape, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0) return no_table(table, "a shape", err);
        sizes[d] = json_integer_value(size);
    }
    *layout = lb_layout_contiguous((int)n, sizes);
    return lb_layout_numel(layout) < 0 ? no_table(table, "a shape", err) : LB_OK;
}

static lb_status read_row(const lb_fingerprint_table *table, const json_t *from, lb_fingerprint_row *row, lb_err *err)
{
    const char *name = json_string_value(json_object_get(from, "name")),
               *dtype = json_string_value(json_object_get(from, "dtype")),
               *raw = json_string_value(json_object_get(from, "fingerprint")),
               *numbers = json_string_value(json_object_get(from, "numbers")),
               *lacks = json_string_value(json_object_get(from, "lacks"));
    const json_t *rounded = json_object_get(from, "rounded");
    if (!name || !dtype || (!lacks && !lb_dtype_valid(lb_dtype_parse(dtype))))
        return no_table(table, "a tensor's name or dtype", err);
    const size_t n = strlen(name);
    *row = (lb_fingerprint_row){.name = lb_text_is_name(name, n) ? strdup(name) : lb_text_name(name, n),
                                .dtype = lb_dtype_parse(dtype)};
    if (!row->name) return out_of_memory(table, err);
    LB_TRY(read_shape(table, json_object_get(from, "shape"), &row->shape, err));
    row->constant = json_is_true(json_object_get(from, "constant"));
    for (size_t i = 0; i < json_array_size(rounded); i++) {
        const json_t *one = json_array_get(rounded, i);
        const char *to = json_string_value(json_object_get(one, "dtype")),
                   *text = json_string_value(json_object_get(one, "numbers"));
        for (int k = 0; k < LB_FINGERPRINT_NARROW && to && text; k++)
            if (lb_dtype_parse(to) == lb_fingerprint_table_narrow(k))
                row->has_rounded[k] = lb_fingerprint_parse(text, &row->rounded[k], NULL) == LB_OK;
    }
    if (lacks) return (row->lacks = strdup(lacks)) ? LB_OK : out_of_memory(table, err);
    if (!raw || !numbers || lb_fingerprint_parse(raw, &row->raw, NULL) != LB_OK ||
        lb_fingerprint_parse(numbers, &row->numbers, NULL) != LB_OK)
        return no_table(table, "a fingerprint", err);
    return LB_OK;
}

static lb_status read_rows(lb_fingerprint_table *read, const json_t *root, lb_err *err)
{
    const char *schema = json_string_value(json_object_get(root, "schema"));
    const json_t *tables = json_object_get(root, "tables"), *table = json_array_get(tables, 0),
                 *tensors = json_object_get(table, "tensors"), *step = json_object_get(table, "step");
    if (!schema || strcmp(schema, "lastbit.fingerprint/1")) return no_table(read, "its schema", err);
    if (json_array_size(tables) != 1) return no_table(read, "it holds several tables, or none", err);
    if (!json_is_array(tensors)) return no_table(read, "its tensors", err);
    if (json_is_integer(step)) read->step = json_integer_value(step);
    read->rows = calloc(json_array_size(tensors) + 1, sizeof *read->rows);
    if (!read->rows) return out_of_memory(read, err);
    for (size_t i = 0; i < json_array_size(tensors); i++)
        LB_TRY(read_row(read, json_array_get(tensors, i), &read->rows[read->n++], err));
    if (read->n) qsort(read->rows, read->n, sizeof *read->rows, by_row_name);
    for (uint32_t i = 1; i < read->n; i++)
        if (!strcmp(read->rows[i].name, read->rows[i - 1].name))
            return no_table(read, "a name stands in it twice", err);
    return LB_OK;
}

lb_status lb_fingerprint_files_table(lb_fingerprint_table *table, lb_err *err)
{
    struct stat st;
    json_error_t why;
    LB_TRY(lb_input_look(table->path, &st, err));
    if (S_ISDIR(st.st_mode)) return lb_fail(err, LB_ERR_CORRUPT, "%s: is a folder", table->path);
    const char *bytes;
    size_t size;
    LB_TRY(lb_input_map(table->path, &bytes, &size, err));
    json_t *root = lb_decode_limit_json(bytes, size, 0, lb_decode_limit_room(), &why);
    lb_status status = LB_OK;
    if (root)
        status = read_rows(table, root, err);
    else if (lb_decode_limit_json_status(LB_ERR_CORRUPT) != LB_ERR_CORRUPT)
        status = lb_fail(err, lb_decode_limit_json_status(LB_ERR_CORRUPT), "%s: %s", table->path, why.text);
    else
        status = no_table(table, why.text, err);
    json_decref(root);
    munmap((void *)(uintptr_t)bytes, size);
    return status;
}
