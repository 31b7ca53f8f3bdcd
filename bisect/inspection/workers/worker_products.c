/* Products of gradients over workers: see worker_products.h. */
#define _GNU_SOURCE /* fileno */
#include "workers/worker_products.h"

#include "pair/regenerated.h"

#include <lastbit/output.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 8192, LANES = 8 };

/* ---- bytes that were not kept ------------------------------------------------------------------------------------ */

/* Gradients that were computed again, in an unlinked file, row-major elements of their dtypes. */
typedef struct lb_worker_store {
    FILE *file;
    int64_t size;
    char *bytes;  /* all of it, mapped */
    int64_t **at; /* per worker and row of own.values: where its elements begin, -1: not here */
    bool approximate;
} store;

static lb_status keep_value(store *store, const lb_tensor *tensor, int64_t *at, lb_err *err)
{
    const size_t size = lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout));
    void *dense = malloc(size + 1);
    if (!dense) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a gradient of %zu bytes", size);
    lb_status status = lb_tensor_gather(tensor, dense, err);
    if (status == LB_OK && fwrite(dense, 1, size, store->file) != size)
        status = lb_fail(err, LB_ERR_IO, "could not write %zu bytes of gradients to a file in TMPDIR", size);
    free(dense);
    if (status == LB_OK) *at = store->size, store->size += (int64_t)size;
    for (; status == LB_OK && store->size % 16; store->size++) /* elements begin aligned */
        if (fputc(0, store->file) == EOF) status = lb_fail(err, LB_ERR_IO, "could not write to a file in TMPDIR");
    return status;
}

/* Replays one worker's step, if anything of its gradient was not kept. */
static lb_status regenerate(lb_capture *capture, const lb_worker *worker, store *store, int64_t *at, lb_err *err)
{
    lb_program_view view;
    lb_regenerated again;
    bool lacks = false;
    for (uint32_t i = 0; i < worker->own.n_values; i++) {
        at[i] = -1;
        lacks |= !lb_capture_has_value(capture, worker->program, worker->own.values[i]);
    }
    if (!lacks) return LB_OK;
    LB_TRY(lb_program_view_init(capture, &worker->program, 1, &view, err));
    lb_status status = lb_regenerated_init(&view, &again, err);
    if (status == LB_OK) {
        for (uint32_t i = 0; i < worker->own.n_values; i++) lb_regenerated_want(&again, worker->own.values[i]);
        status = lb_regenerated_run(&again, err);
        for (uint32_t i = 0; i < worker->own.n_values && status == LB_OK; i++) {
            lb_tensor tensor;
            bool exact;
            if (lb_capture_has_value(capture, worker->program, worker->own.values[i]) ||
                !lb_regenerated_value(&again, worker->own.values[i], &tensor, &exact))
                continue;
            store->approximate |= !exact;
            status = keep_value(store, &tensor, &at[i], err);
        }
        lb_regenerated_release(&again);
    }
    lb_program_view_release(&view);
    return status;
}

static void store_release(store *store, uint32_t n)
{
    if (store->bytes) munmap(store->bytes, (size_t)store->size);
    if (store->file) fclose(store->file);
    for (uint32_t r = 0; store->at && r < n; r++) free(store->at[r]);
    free(store->at);
}

static lb_status store_init(const lb_worker_steps *steps, const lb_worker_step *step, store *made, lb_err *err)
{
    lb_status status = LB_OK;
    *made = (store){.file = lb_output_scratch(NULL, NULL), .at = calloc(steps->n_ranks + 1, sizeof *made->at)};
    if (!made->file || !made->at) status = lb_fail(err, LB_ERR_IO, "could not make a file in TMPDIR for gradients");
    for (uint32_t r = 0; r < steps->n_ranks && status == LB_OK; r++) {
        const lb_worker *worker = &step->workers[r];
        made->at[r] = malloc((worker->own.n_values + 1) * sizeof **made->at);
        if (!made->at[r]) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
        if (status == LB_OK && worker->program) status = regenerate(steps->capture, worker, made, made->at[r], err);
    }
    if (status == LB_OK && made->size) {
        made->bytes = fflush(made->file)
                          ? MAP_FAILED
                          : mmap(NULL, (size_t)made->size, PROT_READ, MAP_PRIVATE, fileno(made->file), 0);
        if (made->bytes == MAP_FAILED)
            made->bytes = NULL, status = lb_fail(err, LB_ERR_IO, "could not read gradients back");
    }
    if (status != LB_OK) store_release(made, steps->n_ranks);
    return status;
}

/* ---- one parameter ----------------------------------------------------------------------------------------------- */

/* One worker's gradient of it: dense tensors to be added up. */
typedef struct addends {
    const void **data;
    void **owned; /* gathered copies of strided ones */
    lb_dtype *dtypes;
    uint32_t n;
    int64_t elements;
} addends;

static void addends_release(addends *a)
{
    for (uint32_t i = 0; a->owned && i < a->n; i++) free(a->owned[i]);
    free(a->data), free(a->owned), free(a->dtypes);
    *a = (addends){0};
}

/* LB_ERR_NOT_CAPTURED: bytes lack. */
static lb_status addends_init(lb_capture *capture, const lb_worker *worker, const lb_own_gradient *gradient,
                              const store *store, const int64_t *at, addends *a, lb_err *err)
{
    *a = (addends){.data = calloc(gradient->values, sizeof *a->data),
                   .owned = calloc(gradient->values, sizeof *a->owned),
                   .dtypes = calloc(gradient->values, sizeof *a->dtypes)};
    if (!a->data || !a->owned || !a->dtypes) return lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    for (a->n = 0; a->n < gradient->values; a->n++) {
        const uint32_t i = gradient->first + a->n, value = worker->own.values[i];
        lb_tensor tensor;
        a->dtypes[a->n] = worker->program->values[value].dtype;
        a->elements = lb_layout_numel(&worker->program->values[value].layout);
        if (at[i] >= 0) {
            a->data[a->n] = store->bytes + at[i];
            continue;
        }
        if (lb_capture_value(capture, worker->program, value, &tensor, NULL) != LB_OK) return LB_ERR_NOT_CAPTURED;
        a->data[a->n] = tensor.data;
        if (lb_layout_is_contiguous(&tensor.layout)) continue;
        void *dense = a->owned[a->n] = malloc(lb_dtype_bytes(tensor.dtype, (size_t)a->elements) + 1);
        a->data[a->n] = dense;
        if (!dense) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a gradient");
        const lb_status status = lb_tensor_gather(&tensor, dense, err);
        if (status != LB_OK) return a->n++, status;
    }
    return LB_OK;
}

static void load_piece(const addends *addends, int64_t from, size_t n, double *out, double *room)
{
    for (uint32_t i = 0; i < addends->n; i++) {
        const char *at = (const char *)addends->data[i] + lb_dtype_bytes(addends->dtypes[i], (size_t)from);
        lb_load_f64(i ? room : out, addends->dtypes[i], at, n);
        for (size_t k = 0; i && k < n; k++) out[k] += room[k];
    }
}

static double product(const double *x, const double *y, size_t n)
{
    double lanes[LANES] = {0}, sum = 0;
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += x[k + (size_t)l] * y[k + (size_t)l];
    for (; k < n; k++) lanes[k % LANES] += x[k] * y[k];
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    return sum;
}

/* A worker's product with itself: pieces are shared out over threads in rounds, and added in order. */
static bool add_square(const addends *addends, double *into)
{
    enum { ROUND = 64 };
    const int64_t elements = addends->elements, pieces = (elements + PIECE - 1) / PIECE;
    const size_t width = elements < PIECE ? (size_t)elements : PIECE;
    bool failed = false;
    for (int64_t base = 0; base < pieces && !failed; base += ROUND) {
        const int64_t end = base + ROUND < pieces ? base + ROUND : pieces;
        double sums[ROUND] = {0};
#pragma omp parallel if (end - base > 4)
        {
            double *room = malloc((2 * width + 1) * sizeof *room);
#pragma omp for
            for (int64_t piece = base; piece < end; piece++) {
                const int64_t from = piece * PIECE, left = elements - from;
                const size_t count = left < PIECE ? (size_t)left : PIECE;
                if (!room) {
#pragma omp atomic write
                    failed = true;
                    continue;
                }
                load_piece(addends, from, count, room, room + width);
                sums[piece - base] = product(room, room, count);
            }
            free(room);
        }
        for (int64_t piece = base; piece < end && !failed; piece++) *into += sums[piece - base];
    }
    return !failed;
}

/* Few workers: pieces are shared out over threads in rounds, and added in order. */
static bool add_pieces(const addends *addends, uint32_t n, int64_t elements, double *into)
{
    enum { ROUND = 64 };
    const int64_t pieces = (elements + PIECE - 1) / PIECE;
    double *sums = malloc((size_t)ROUND * n * n * sizeof *sums + 1);
    bool failed = !sums;
    for (int64_t base = 0; base < pieces && !failed; base += ROUND) {
        const int64_t end = base + ROUND < pieces ? base + ROUND : pieces;
#pragma omp parallel if (end - base > 4)
        {
            double *room = malloc(((size_t)n + 1) * PIECE * sizeof *room);
#pragma omp for
            for (int64_t piece = base; piece < end; piece++) {
                const int64_t from = piece * PIECE, left = elements - from;
                const size_t count = left < PIECE ? (size_t)left : PIECE;
                double *out = sums + (size_t)(piece - base) * n * n;
                if (!room) {
#pragma omp atomic write
                    failed = true;
                    continue;
                }
                for (uint32_t i = 0; i < n; i++)
                    load_piece(&addends[i], from, count, room + (size_t)i * PIECE, room + (size_t)n * PIECE);
                for (uint32_t i = 0; i < n; i++)
                    for (uint32_t j = i; j < n; j++)
                        out[i * n + j] = addends[i].n && addends[j].n
                                             ? product(room + (size_t)i * PIECE, room + (size_t)j * PIECE, count)
                                             : 0;
            }
            free(room);
        }
        for (int64_t piece = base; piece < end && !failed; piece++)
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = i; j < n; j++) into[i * n + j] += sums[(size_t)(piece - base) * n * n + i * n + j];
    }
    free(sums);
    return !failed;
}

/* Many workers: one piece at a time, of which some workers of the band are widened at once; those that they are
 * multiplied with are shared out over threads. */
static bool add_pairs(const addends *addends, size_t n, lb_worker_band band, int64_t elements, double *into)
{
    enum { AT_ONCE = 512 << 10 }; /* elements: 4 MB */
    const size_t width = elements < PIECE ? (size_t)elements : PIECE, fit = AT_ONCE / (width ? width : 1);
    const size_t rows_at_once = fit < band.n ? fit : band.n;
    double *rows = malloc((rows_at_once * width + 1) * sizeof *rows);
    bool failed = !rows;
#pragma omp parallel if (band.n * n * width > 1 << 20)
    {
        double *column = malloc((2 * width + 1) * sizeof *column);
        for (int64_t from = 0; from < elements; from += PIECE)
            for (size_t block = 0; block < band.n; block += rows_at_once) {
                const size_t left = band.n - block, end = block + (rows_at_once < left ? rows_at_once : left);
                const size_t count = elements - from < PIECE ? (size_t)(elements - from) : PIECE;
#pragma omp for
                for (size_t i = block; i < end; i++)
                    if (rows && column)
                        load_piece(&addends[band.first + i], from, count, rows + (i - block) * width, column);
#pragma omp for schedule(dynamic, 16)
                for (size_t j = band.first + block; j < n; j++) {
                    if (!rows || !column) {
#pragma omp atomic write
                        failed = true;
                        continue;
                    }
                    if (!addends[j].n) continue;
                    load_piece(&addends[j], from, count, column, column + width);
                    for (size_t i = block; i < end && band.first + i <= j; i++)
                        if (addends[band.first + i].n)
                            into[i * n + j] += product(rows + (i - block) * width, column, count);
                }
            }
        free(column);
    }
    free(rows);
    return !failed;
}

/* `at`: where it stands where all workers have the same gradients. */
static const lb_own_gradient *find_gradient(const lb_worker *worker, const char *key, uint32_t at)
{
    if (at < worker->own.n && !strcmp(worker->own.list[at].key, key)) return &worker->own.list[at];
    for (uint32_t i = 0; i < worker->own.n; i++)
        if (!strcmp(worker->own.list[i].key, key)) return &worker->own.list[i];
    return NULL;
}

/* Gradients of one parameter, of the workers from `first` on: where these are all, those that lack are counted. */
static lb_status addends_of_key(const lb_worker_steps *steps, const lb_worker_step *step, uint32_t key, uint32_t first,
                                lb_worker_products *out, addends *addends, lb_err *err)
{
    lb_status status = LB_OK;
    for (uint32_t rank = first; rank < steps->n_ranks && status == LB_OK; rank++) {
        const lb_worker *worker = &step->workers[rank];
        const lb_own_gradient *gradient =
            worker->program ? find_gradient(worker, out->keys[key], out->places[key]) : NULL;
        if (!gradient || !lb_worker_steps_has(steps, rank)) continue;
        status = addends_init(steps->capture, worker, gradient, out->store, out->store->at[rank], &addends[rank], err);
        const int64_t elements = status == LB_OK ? addends[rank].elements : 0;
        if (!out->elements[key]) out->elements[key] = elements;
        /* Another size under one name cannot be compared. */
        const bool other = elements && elements != out->elements[key];
        if (status == LB_ERR_NOT_CAPTURED || other) out->lacking += !first, out->whole[rank] = false;
        if (status == LB_ERR_NOT_CAPTURED || !elements || other) addends_release(&addends[rank]);
        if (status == LB_ERR_NOT_CAPTURED) status = LB_OK;
    }
    return status;
}

static double scale_of(const lb_worker_step *step, uint32_t a, uint32_t b)
{
    return step->workers[a].own.scale * step->workers[b].own.scale;
}

/* `into`: band.n x n, zeros. */
static lb_status products_of_key(const lb_worker_steps *steps, const lb_worker_step *step, uint32_t key,
                                 lb_worker_band band, lb_worker_products *out, double *into, lb_err *err)
{
    enum { FEW = 32 };
    const size_t n = steps->n_ranks;
    addends *addends = calloc(n + 1, sizeof *addends);
    lb_status status = addends ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    if (status == LB_OK) status = addends_of_key(steps, step, key, band.first, out, addends, err);
    if (status == LB_OK && !(n < FEW && band.n == n ? add_pieces(addends, (uint32_t)n, out->elements[key], into)
                                                    : add_pairs(addends, n, band, out->elements[key], into)))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for products of gradients");
    for (uint32_t i = 0; i < band.n && status == LB_OK; i++)
        for (uint32_t k = band.first + i; k < n; k++) {
            const double scale = scale_of(step, band.first + i, k);
            if (scale != 1) into[i * n + k] /= scale;
        }
    for (uint32_t rank = 0; addends && rank < n; rank++) addends_release(&addends[rank]);
    free(addends);
    return status;
}

/* `into`: n zeros. */
static lb_status squares_of_key(const lb_worker_steps *steps, const lb_worker_step *step, uint32_t key,
                                lb_worker_products *out, double *into, lb_err *err)
{
    const uint32_t n = steps->n_ranks;
    addends *addends = calloc((size_t)n + 1, sizeof *addends);
    lb_status status = addends ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    if (status == LB_OK) status = addends_of_key(steps, step, key, 0, out, addends, err);
    for (uint32_t rank = 0; rank < n && status == LB_OK; rank++) {
        if (addends[rank].n && !add_square(&addends[rank], &into[rank]))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for products of gradients");
        const double scale = scale_of(step, rank, rank);
        if (scale != 1) into[rank] /= scale;
    }
    for (uint32_t rank = 0; addends && rank < n; rank++) addends_release(&addends[rank]);
    free(addends);
    return status;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* Workers mostly have the same gradients in the same order. */
static bool is_next_key(const lb_worker_products *products, uint32_t place, uint32_t *next, const char *key)
{
    while (*next < products->n_keys && products->places[*next] < place) ++*next;
    return *next < products->n_keys && products->places[*next] == place && !strcmp(products->keys[*next], key);
}

static lb_status list_keys(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_products *out,
                           lb_err *err)
{
    uint32_t room = 1;
    for (uint32_t r = 0; r < steps->n_ranks; r++) room += step->workers[r].own.n;
    out->keys = calloc(room, sizeof *out->keys), out->places = calloc(room, sizeof *out->places);
    out->layers = calloc(room, sizeof *out->layers), out->layer_chars = calloc(room, sizeof *out->layer_chars);
    out->whole = calloc(steps->n_ranks + 1, sizeof *out->whole), out->elements = calloc(room, sizeof *out->elements);
    if (!out->keys || !out->places || !out->layers || !out->layer_chars || !out->whole || !out->elements)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    for (uint32_t r = 0; r < steps->n_ranks; r++) {
        const lb_worker *worker = &step->workers[r];
        uint32_t next = 0;
        out->whole[r] = worker->program && worker->own.n;
        for (uint32_t i = 0; i < worker->own.n; i++) {
            const lb_own_gradient *gradient = &worker->own.list[i];
            bool known = out->n_keys && is_next_key(out, i, &next, gradient->key);
            if (!known) known = !lb_worker_key_reduced(steps, gradient->key);
            for (uint32_t k = 0; k < out->n_keys && !known; k++) known = !strcmp(out->keys[k], gradient->key);
            if (known) continue;
            const char *dot = gradient->name != LB_NONE ? strrchr(gradient->key, '.') : NULL;
            const char *path = lb_program_text(worker->program, worker->program->scopes[gradient->scope].path);
            out->layers[out->n_keys] = gradient->name != LB_NONE ? gradient->key : path;
            out->layer_chars[out->n_keys] = gradient->name == LB_NONE ? strlen(path)
                                            : dot                     ? (size_t)(dot - gradient->key)
                                                                      : 0;
            out->places[out->n_keys] = i;
            out->keys[out->n_keys++] = gradient->key;
        }
    }
    return LB_OK;
}

lb_status lb_worker_products_init(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_products *out,
                                  lb_err *err)
{
    *out = (lb_worker_products){.n = steps->n_ranks};
    lb_status status = list_keys(steps, step, out, err);
    if (status == LB_OK && out->n_keys) {
        out->store = calloc(1, sizeof *out->store);
        status = out->store ? store_init(steps, step, out->store, err)
                            : lb_fail(err, LB_ERR_NOMEM, "out of memory for gradients");
    }
    if (status == LB_OK && out->store) out->approximate = out->store->approximate;
    if (status != LB_OK) {
        free(out->store); /* what it held is gone with the failure */
        out->store = NULL;
        lb_worker_products_release(out);
    }
    return status;
}

lb_status lb_worker_products_squares(const lb_worker_steps *steps, const lb_worker_step *step,
                                     lb_worker_products *products, lb_worker_products_take *take, void *context,
                                     lb_err *err)
{
    double *squares = malloc(((size_t)products->n + 1) * sizeof *squares);
    lb_status status = squares ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for products of gradients");
    products->lacking = 0;
    for (uint32_t k = 0; k < products->n_keys && status == LB_OK; k++) {
        memset(squares, 0, products->n * sizeof *squares);
        status = squares_of_key(steps, step, k, products, squares, err);
        if (status == LB_OK) status = take(context, k, squares);
    }
    free(squares);
    return status;
}

lb_status lb_worker_products_each(const lb_worker_steps *steps, const lb_worker_step *step, lb_worker_band band,
                                  lb_worker_products *products, lb_worker_products_take *take, void *context,
                                  lb_err *err)
{
    const size_t cells = (size_t)band.n * products->n;
    double *sums = malloc((cells + 1) * sizeof *sums);
    lb_status status = sums ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for products of gradients");
    if (!band.first) products->lacking = 0;
    for (uint32_t k = 0; k < products->n_keys && status == LB_OK; k++) {
        memset(sums, 0, cells * sizeof *sums);
        status = products_of_key(steps, step, k, band, products, sums, err);
        if (status == LB_OK) status = take(context, k, sums);
    }
    free(sums);
    return status;
}

void lb_worker_products_release(lb_worker_products *products)
{
    if (products->store) store_release(products->store, products->n);
    free(products->store);
    free(products->keys), free(products->places), free(products->layers), free(products->layer_chars),
        free(products->whole), free(products->elements);
    *products = (lb_worker_products){0};
}
