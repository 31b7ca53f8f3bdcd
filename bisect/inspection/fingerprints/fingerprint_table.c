/* See lastbit/fingerprint_table.h. What a path is decides how its pieces are listed; then each row is measured. */
#include "fingerprints/fingerprint_files.h"
#include "parts/parts_each.h"

#include <stdlib.h>
#include <string.h>

/* ---- rows out of pieces ------------------------------------------------------------------------------------------ */

static int by_name_and_rank(const void *a, const void *b)
{
    const lb_checkpoint_piece *piece = &((const lb_fingerprint_piece *)a)->held,
                              *y = &((const lb_fingerprint_piece *)b)->held;
    const int order = strcmp(piece->name, y->name);
    return order                    ? order
           : piece->rank != y->rank ? (piece->rank > y->rank) - (piece->rank < y->rank)
                                    : (piece > y) - (piece < y);
}

static lb_status make_rows(lb_fingerprint_table *table, lb_err *err)
{
    lb_fingerprint_bytes *fingerprint_bytes = table->bytes;
    table->rows = calloc(fingerprint_bytes->n + 1u, sizeof *table->rows);
    if (!table->rows) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", table->path);
    if (fingerprint_bytes->n)
        qsort(fingerprint_bytes->pieces, fingerprint_bytes->n, sizeof *fingerprint_bytes->pieces, by_name_and_rank);
    for (uint32_t i = 0; i < fingerprint_bytes->n; i++) {
        const lb_checkpoint_piece *piece = &fingerprint_bytes->pieces[i].held;
        if (i && !strcmp(piece->name, fingerprint_bytes->pieces[i - 1].held.name)) {
            table->rows[table->n - 1].pieces++;
            continue;
        }
        lb_fingerprint_row *row = &table->rows[table->n];
        *row = (lb_fingerprint_row){.name = strdup(piece->name), .dtype = piece->tensor.dtype, .first = i, .pieces = 1};
        if (!row->name) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", table->path);
        row->shape = lb_layout_contiguous(piece->whole.ndim, piece->whole.shape);
        table->n++;
    }
    return LB_OK;
}

static bool is_large(const lb_fingerprint_table *table, const lb_fingerprint_row *row)
{
    if (row->lacks) return false;
    const lb_tensor *p = &table->bytes->pieces[row->first].held.tensor;
    return lb_dtype_bytes(p->dtype, (size_t)lb_layout_numel(&p->layout)) >= 32u << 20;
}

static void measure_row(lb_fingerprint_table *table, uint32_t i, const lb_fingerprint_table_options *options,
                        lb_err *why, uint64_t *done)
{
    lb_err own = LB_ERR_INIT;
    if (!table->rows[i].lacks) lb_fingerprint_bytes_settle(table, &table->rows[i], NULL, options->rounded, &own);
#pragma omp critical(lb_fingerprint_progress)
    {
        if (own.status != LB_OK && why->status == LB_OK) *why = own;
        if (options->progress) options->progress("reading", ++*done, table->n);
    }
}

/* A large row is shared out among the threads, small ones among each other. */
static lb_status measure_rows(lb_fingerprint_table *table, const lb_fingerprint_table_options *options, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    uint64_t done = 0;
    for (uint32_t i = 0; i < table->n; i++)
        if (is_large(table, &table->rows[i])) measure_row(table, i, options, &why, &done);
#pragma omp parallel for schedule(dynamic, 1)
    for (uint32_t i = 0; i < table->n; i++)
        if (!is_large(table, &table->rows[i])) measure_row(table, i, options, &why, &done);
    return why.status == LB_OK ? LB_OK : lb_fail(err, why.status, "%s: %s", table->path, why.message);
}

/* ---- rows as units of work --------------------------------------------------------------------------------------- */

typedef struct shared_rows {
    lb_fingerprint_table *table;
    const lb_fingerprint_table_options *options;
} shared_rows;

static void row_record(lb_part_record *record, lb_fingerprint_row *row)
{
    const char *lacks = row->lacks;
    const lb_layout piece = row->shape;
    int64_t shape[LB_MAX_DIMS] = {0}, elements = 1;
    uint32_t dims = (uint32_t)piece.ndim;
    memcpy(shape, piece.shape, dims * sizeof *shape);
    lb_part_record_u32(record, &dims);
    if (dims != (uint32_t)piece.ndim) lb_part_record_refuse(record, "shape", "%u dimensions of %d", dims, piece.ndim);
    /* As its pieces side by side, along any dimension. */
    for (int d = 0; d < piece.ndim; d++) {
        lb_part_record_tally(record, &shape[d], 0);
        if (shape[d] < piece.shape[d] || (piece.shape[d] ? shape[d] / piece.shape[d] > row->pieces : shape[d] > 0) ||
            __builtin_mul_overflow(elements, shape[d], &elements))
            lb_part_record_refuse(record, "shape", "%lld along dimension %d, where each of its %u pieces has %lld",
                                  (long long)shape[d], d, row->pieces, (long long)piece.shape[d]);
    }
    if (record->reading && record->status == LB_OK) row->shape = lb_layout_contiguous(piece.ndim, shape);
    lb_part_record_u64(record, &row->raw.a), lb_part_record_u64(record, &row->raw.b);
    lb_part_record_u64(record, &row->numbers.a), lb_part_record_u64(record, &row->numbers.b);
    for (int k = 0; k < LB_FINGERPRINT_NARROW; k++) {
        lb_part_record_bool(record, &row->has_rounded[k]);
        lb_part_record_u64(record, &row->rounded[k].a), lb_part_record_u64(record, &row->rounded[k].b);
    }
    lb_part_record_bool(record, &row->constant);
    lb_part_record_text(record, &lacks);
    if (record->reading && !row->lacks && lacks) row->lacks = strdup(lacks);
}

static lb_status work_row(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const shared_rows *rows = context;
    lb_err why = LB_ERR_INIT;
    uint64_t done = 0;
    lb_fingerprint_table_options quiet = *rows->options;
    quiet.progress = NULL;
    measure_row(rows->table, (uint32_t)unit, &quiet, &why, &done);
    row_record(record, &rows->table->rows[unit]);
    return why.status == LB_OK ? LB_OK : lb_fail(err, why.status, "%s: %s", rows->table->path, why.message);
}

static lb_status fold_row(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    (void)err;
    const shared_rows *rows = context;
    row_record(record, &rows->table->rows[unit]);
    return record->status;
}

static lb_status share_rows(lb_fingerprint_table *table, const lb_fingerprint_table_options *options, lb_err *err)
{
    shared_rows rows = {table, options};
    const lb_parts_loop loop = {"tensor", table->n, work_row, fold_row, &rows};
    return options->parts ? lb_parts_each(options->parts, &loop, err) : measure_rows(table, options, err);
}

/* ---- which kind of file ------------------------------------------------------------------------------------------ */

static bool ends_with(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && !strcmp(path + n - m, end);
}

static bool is_table(const char *path)
{
    return ends_with(path, ".json") && !ends_with(path, ".index.json");
}

static bool is_tensor_file(const char *path)
{
    static const char *const ends[] = {".safetensors", ".index.json", ".pt", ".pth", ".bin", ".npy", ".npz", ".gguf"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(path, ends[i])) return true;
    return false;
}

/* A file that no name tells is a capture's archive; a folder is one where a rank's archive lies in it. */
static lb_status is_capture(const char *path, bool *capture, lb_err *err)
{
    struct stat st;
    lb_input_names names;
    *capture = false;
    LB_TRY(lb_input_look(path, &st, err));
    if (!S_ISDIR(st.st_mode)) return *capture = !is_tensor_file(path), LB_OK;
    LB_TRY(lb_input_list(path, &names, err));
    for (uint32_t i = 0; i < names.n; i++)
        *capture |= !strncmp(names.rows[i], "rank-", 5) && ends_with(names.rows[i], ".tar");
    lb_input_names_release(&names);
    return LB_OK;
}

static lb_status open_table(lb_fingerprint_table *table, const lb_fingerprint_table_options *options, lb_err *err)
{
    bool capture;
    if (is_table(table->path)) return lb_fingerprint_files_table(table, err);
    LB_TRY(is_capture(table->path, &capture, err));
    LB_TRY(capture ? lb_fingerprint_files_capture(table, options->step, err)
                   : lb_fingerprint_files_checkpoint(table, err));
    LB_TRY(make_rows(table, err));
    if (capture)
        lb_fingerprint_files_lacking(table);
    else
        LB_TRY(lb_fingerprint_files_unread(table, err));
    return share_rows(table, options, err);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

lb_status lb_fingerprint_table_open(const char *path, const lb_fingerprint_table_options *options,
                                    lb_fingerprint_table **table, lb_err *err)
{
    lb_fingerprint_table_options chosen = LB_FINGERPRINT_TABLE_OPTIONS_INIT;
    if (options) memcpy(&chosen, options, options->size < sizeof chosen ? options->size : sizeof chosen);
    lb_fingerprint_table *t = calloc(1, sizeof *t);
    if (t) t->step = INT64_MIN, t->path = strdup(path);
    lb_status status = t && t->path ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    if (status == LB_OK) status = open_table(t, &chosen, err);
    for (uint32_t i = 0; status == LB_OK && i < t->n; i++)
        if (!t->rows[i].lacks)
            t->sum = lb_fingerprint_add(t->sum, lb_fingerprint_named(t->rows[i].raw, t->rows[i].name));
    if (status == LB_OK)
        *table = t;
    else
        lb_fingerprint_table_close(t);
    return status;
}

void lb_fingerprint_table_close(lb_fingerprint_table *table)
{
    if (!table) return;
    for (uint32_t i = 0; table->rows && i < table->n; i++) free(table->rows[i].name), free(table->rows[i].lacks);
    lb_fingerprint_bytes_free(table->bytes);
    free(table->rows), free(table->path), free(table);
}
