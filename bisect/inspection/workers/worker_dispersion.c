/* How far workers pull apart: see worker_dispersion.h. */
#include "workers/worker_dispersion.h"

#include "program/block.h"
#include "workers/worker_products.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i];
    return n ? sum / n : NAN;
}

/* Of the population: over n. */
static double deviation(const double *x, uint32_t n)
{
    const double m = mean(x, n);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (x[i] - m) * (x[i] - m);
    return n ? sqrt(sum / n) : NAN;
}

/* Workers of one step, as far as their gradients are known. */
typedef struct crew {
    const lb_worker_steps *steps;
    uint32_t *rows; /* ranks of the capture */
    uint32_t n;
    double *room; /* n */
} crew;

/* The rows of products at hand, and which of them count. */
typedef struct rows_at_hand {
    lb_worker_band band;
    bool *pairs; /* band.n x n_ranks */
} rows_at_hand;

/* Cosines of all pairs that are added up row by row: a pair is in the band of its earlier worker. */
typedef struct cosines {
    double sum, least;
    uint64_t pairs;
} cosines;

static double cosine(double product, double square_a, double square_b)
{
    const double norms = square_a * square_b;
    return norms > 0 ? product / sqrt(norms) : NAN;
}

/* `products`: those of the band, of the whole or of some parameters; `squares`: of all workers. What each worker has
 * to do with others is added to `of_worker` (NULL: nowhere). */
static void add_cosines(const crew *crew, const rows_at_hand *at, const double *products, const double *squares,
                        cosines *all, cosines *of_worker)
{
    const size_t n_ranks = crew->steps->n_ranks;
    for (uint32_t i = 0; i < crew->n; i++) {
        const uint32_t a = crew->rows[i];
        if (a < at->band.first || a - at->band.first >= at->band.n) continue;
        const size_t row = (size_t)(a - at->band.first) * n_ranks;
        for (uint32_t k = i + 1; k < crew->n; k++) {
            const uint32_t b = crew->rows[k];
            const double x = at->pairs[row + b] ? cosine(products[row + b], squares[a], squares[b]) : NAN;
            if (isnan(x)) continue;
            all->sum += x, all->pairs++;
            if (x < all->least) all->least = x;
            if (of_worker) of_worker[a].sum += x, of_worker[a].pairs++, of_worker[b].sum += x, of_worker[b].pairs++;
        }
    }
}

static void fill_row(const crew *crew, const double *squares, const cosines *cosines, lb_ranks_row *row)
{
    for (uint32_t i = 0; i < crew->n; i++) crew->room[i] = sqrt(squares[crew->rows[i]]);
    row->grad_norm_mean = mean(crew->room, crew->n), row->grad_norm_std = deviation(crew->room, crew->n);
    row->grad_cosine_mean = cosines->pairs ? cosines->sum / (double)cosines->pairs : NAN;
    row->grad_cosine_min = cosines->pairs ? cosines->least : NAN;
}

/* One band of all: the products of workers with themselves are among them. */
static bool is_whole(const crew *crew, const rows_at_hand *at)
{
    return at->band.n == crew->steps->n_ranks;
}

static void copy_squares(const crew *crew, const double *products, double *squares)
{
    const size_t n_ranks = crew->steps->n_ranks;
    for (size_t r = 0; r < n_ranks; r++) squares[r] = products[r * n_ranks + r];
}

static void add_into(double *into, const double *from, size_t n)
{
    for (size_t i = 0; i < n; i++) into[i] += from[i];
}

/* ---- by layer and block ------------------------------------------------------------------------------------------ */

/* A path that rows are summed up under. */
typedef struct path {
    const char *text;
    size_t n;
} path;

static bool same_path(const path *a, const path *b)
{
    return a->n == b->n && !memcmp(a->text, b->text, a->n);
}

/* Rows by path. Products of a row are there from its first key to its last, so that few are at a time. */
typedef struct row_sums {
    uint32_t *row_of; /* per key; LB_NONE: of none */
    uint32_t *keys;   /* per row: how many are summed up in it */
    uint32_t *left;   /* per row: its keys that are still to come */
    double **sums;    /* per row, of the band; NULL: not begun, or done */
    double *squares;  /* per row, n_ranks each */
    cosines *cosines; /* per row */
    lb_ranks_row *rows;
    uint32_t n;
} row_sums;

static void release_sums(row_sums *row_sums)
{
    for (uint32_t i = 0; row_sums->sums && i < row_sums->n; i++) free(row_sums->sums[i]);
    free(row_sums->row_of), free(row_sums->keys), free(row_sums->left), free(row_sums->sums);
    free(row_sums->squares), free(row_sums->cosines);
}

/* `paths[k]` is of key k (NULL text: of none). */
static lb_status list_rows(const path *paths, uint32_t n_keys, uint32_t n_ranks, row_sums *row_sums, lb_err *err)
{
    uint32_t *first = calloc(n_keys + 1, sizeof *first);
    row_sums->row_of = malloc((n_keys + 1) * sizeof *row_sums->row_of),
    row_sums->keys = calloc(n_keys + 1, sizeof *row_sums->keys),
    row_sums->left = calloc(n_keys + 1, sizeof *row_sums->left);
    row_sums->sums = calloc(n_keys + 1, sizeof *row_sums->sums),
    row_sums->cosines = calloc(n_keys + 1, sizeof *row_sums->cosines),
    row_sums->rows = calloc(n_keys + 1, sizeof *row_sums->rows);
    bool room = first && row_sums->row_of && row_sums->keys && row_sums->left && row_sums->sums && row_sums->cosines &&
                row_sums->rows;
    for (uint32_t k = 0; room && k < n_keys; k++) {
        uint32_t row = paths[k].text ? 0 : row_sums->n;
        while (row < row_sums->n && !same_path(&paths[first[row]], &paths[k])) row++;
        row_sums->row_of[k] = paths[k].text ? row : LB_NONE;
        if (!paths[k].text) continue;
        row_sums->keys[row]++;
        if (row < row_sums->n) continue;
        first[row_sums->n] = k;
        row_sums->cosines[row_sums->n].least = INFINITY;
        row_sums->rows[row_sums->n].layer = strndup(paths[k].text, paths[k].n);
        room = row_sums->rows[row_sums->n++].layer != NULL;
    }
    free(first);
    if (room) row_sums->squares = calloc((size_t)row_sums->n * n_ranks + 1, sizeof *row_sums->squares);
    return room && row_sums->squares ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
}

static void begin_band(row_sums *row_sums)
{
    if (row_sums->n) memcpy(row_sums->left, row_sums->keys, row_sums->n * sizeof *row_sums->left);
}

/* Adds one key's products to its row, whose cosines are known by the last of them. */
static lb_status add_key(const crew *crew, const rows_at_hand *at, row_sums *row_sums, uint32_t key,
                         const double *products, lb_err *err)
{
    const size_t n_ranks = crew->steps->n_ranks, cells = at->band.n * n_ranks;
    const uint32_t row = row_sums->row_of[key];
    if (row == LB_NONE) return LB_OK;
    if (!row_sums->sums[row]) row_sums->sums[row] = calloc(cells + 1, sizeof **row_sums->sums);
    if (!row_sums->sums[row]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
    add_into(row_sums->sums[row], products, cells);
    if (--row_sums->left[row]) return LB_OK;
    double *squares = row_sums->squares + row * n_ranks;
    if (is_whole(crew, at)) copy_squares(crew, row_sums->sums[row], squares);
    add_cosines(crew, at, row_sums->sums[row], squares, &row_sums->cosines[row], NULL);
    free(row_sums->sums[row]);
    row_sums->sums[row] = NULL;
    return LB_OK;
}

static void add_squares(const crew *crew, row_sums *row_sums, uint32_t key, const double *squares)
{
    const uint32_t row = row_sums->row_of[key];
    if (row != LB_NONE) add_into(row_sums->squares + (size_t)row * crew->steps->n_ranks, squares, crew->steps->n_ranks);
}

static void fill_rows(const crew *crew, row_sums *row_sums)
{
    for (uint32_t i = 0; i < row_sums->n; i++)
        fill_row(crew, row_sums->squares + (size_t)i * crew->steps->n_ranks, &row_sums->cosines[i], &row_sums->rows[i]);
}

/* The innermost residual block of each layer. */
static lb_status block_paths(const lb_worker_step *step, const lb_worker_products *products, path *paths, lb_err *err)
{
    const lb_program *program = NULL;
    lb_slice_flow *flow;
    lb_blocks blocks = {0};
    for (uint32_t r = 0; r < products->n && !program; r++) program = step->workers[r].program;
    if (!program) return LB_OK;
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    lb_status status = lb_blocks_find(program, flow, &blocks, err);
    for (uint32_t k = 0; k < products->n_keys && status == LB_OK; k++)
        for (uint32_t b = 0; b < blocks.n; b++) {
            const char *text = lb_program_text(program, program->scopes[blocks.rows[b].scope].path);
            const size_t n = strlen(text);
            if (n > products->layer_chars[k] || strncmp(text, products->layers[k], n) || n < paths[k].n) continue;
            if (n == products->layer_chars[k] || products->layers[k][n] == '.') paths[k] = (path){text, n};
        }
    lb_blocks_release(&blocks);
    lb_slice_flow_free(flow);
    return status;
}

/* ---- all of a step ----------------------------------------------------------------------------------------------- */

typedef struct adding {
    crew *crew;
    rows_at_hand at;
    row_sums layers, blocks;
    double *all;        /* of the band: all parameters */
    double *squares;    /* n_ranks */
    cosines cosines;    /* of all pairs */
    cosines *of_worker; /* per rank */
    lb_err *err;
} adding;

static lb_status take_squares(void *context, uint32_t key, const double *squares)
{
    adding *adding = context;
    add_into(adding->squares, squares, adding->crew->steps->n_ranks);
    add_squares(adding->crew, &adding->layers, key, squares);
    add_squares(adding->crew, &adding->blocks, key, squares);
    return LB_OK;
}

static lb_status take_key(void *context, uint32_t key, const double *products)
{
    adding *adding = context;
    add_into(adding->all, products, (size_t)adding->at.band.n * adding->crew->steps->n_ranks);
    LB_TRY(add_key(adding->crew, &adding->at, &adding->layers, key, products, adding->err));
    return add_key(adding->crew, &adding->at, &adding->blocks, key, products, adding->err);
}

/* Workers of whose gradients nothing lacks. */
static void choose_crew(crew *crew, const lb_worker_products *products)
{
    crew->n = 0;
    for (uint32_t r = 0; r < products->n; r++)
        if (products->whole[r] && lb_worker_steps_has(crew->steps, r)) crew->rows[crew->n++] = r;
}

/* `rows`: of a band. */
static lb_status begin(const lb_worker_step *step, const lb_worker_products *products, uint32_t rows, adding *adding)
{
    const size_t n = products->n;
    path *paths = calloc(products->n_keys + 1, sizeof *paths);
    *adding = (struct adding){.crew = adding->crew, .cosines = {.least = INFINITY}, .err = adding->err};
    adding->all = malloc((rows * n + 1) * sizeof *adding->all), adding->at.pairs = malloc(rows * n + 1);
    adding->squares = calloc(n + 1, sizeof *adding->squares),
    adding->of_worker = calloc(n + 1, sizeof *adding->of_worker);
    const bool room = paths && adding->all && adding->at.pairs && adding->squares && adding->of_worker;
    lb_status status = room ? LB_OK : lb_fail(adding->err, LB_ERR_NOMEM, "out of memory for layers");
    for (uint32_t k = 0; paths && k < products->n_keys; k++)
        paths[k] = (path){products->layers[k], products->layer_chars[k]};
    if (status == LB_OK) status = list_rows(paths, products->n_keys, products->n, &adding->layers, adding->err);
    if (paths) memset(paths, 0, products->n_keys * sizeof *paths);
    if (status == LB_OK) status = block_paths(step, products, paths, adding->err);
    if (status == LB_OK) status = list_rows(paths, products->n_keys, products->n, &adding->blocks, adding->err);
    free(paths);
    return status;
}

static void end(adding *adding)
{
    release_sums(&adding->layers), release_sums(&adding->blocks);
    free(adding->all), free(adding->at.pairs), free(adding->squares), free(adding->of_worker);
    *adding = (struct adding){.crew = adding->crew, .err = adding->err};
}

static lb_status add_band(const lb_worker_step *step, lb_worker_products *products, lb_worker_band band, adding *adding)
{
    const crew *crew = adding->crew;
    const size_t n = products->n;
    adding->at.band = band;
    for (uint32_t i = 0; i < band.n; i++)
        for (uint32_t k = band.first + i; k < n; k++)
            adding->at.pairs[i * n + k] = lb_workers_pair(crew->steps, band.first + i, k);
    memset(adding->all, 0, band.n * n * sizeof *adding->all);
    begin_band(&adding->layers), begin_band(&adding->blocks);
    LB_TRY(lb_worker_products_each(crew->steps, step, band, products, take_key, adding, adding->err));
    if (is_whole(crew, &adding->at)) copy_squares(crew, adding->all, adding->squares);
    add_cosines(crew, &adding->at, adding->all, adding->squares, &adding->cosines, adding->of_worker);
    return LB_OK;
}

/* Which workers are compared is known behind the last gradient only. Where they turn out to be fewer, which is so where
 * something lacks, all is done again. Of several bands squares come first, and they tell it. */
static lb_status add_keys(const lb_worker_step *step, lb_worker_products *products, uint32_t rows, adding *adding)
{
    crew *crew = adding->crew;
    for (uint32_t before = crew->n;; before = crew->n) {
        lb_status status = begin(step, products, rows, adding);
        if (status == LB_OK && rows < products->n) {
            status = lb_worker_products_squares(crew->steps, step, products, take_squares, adding, adding->err);
            choose_crew(crew, products), before = crew->n;
        }
        for (uint32_t first = 0; first < products->n && status == LB_OK; first += rows) {
            const uint32_t left = products->n - first;
            status = add_band(step, products, (lb_worker_band){first, rows < left ? rows : left}, adding);
        }
        choose_crew(crew, products);
        if (status != LB_OK || crew->n == before) return status;
        lb_worker_dispersion_free(adding->layers.rows, adding->layers.n);
        lb_worker_dispersion_free(adding->blocks.rows, adding->blocks.n);
        end(adding);
    }
}

static void fill_workers(const adding *adding, lb_ranks_step *out)
{
    const crew *crew = adding->crew;
    for (uint32_t i = 0; i < crew->n; i++) {
        lb_ranks_worker *worker = &out->workers[crew->rows[i]];
        const cosines *cosines = &adding->of_worker[crew->rows[i]];
        worker->grad_norm = sqrt(adding->squares[crew->rows[i]]);
        if (cosines->pairs) worker->cosine = cosines->sum / (double)cosines->pairs;
    }
}

/* As many workers as have their products in the room of a table. */
static uint32_t rows_of_band(uint32_t at_once, uint32_t n)
{
    enum { TABLE_BYTES = 8 << 20 };
    const size_t fit = TABLE_BYTES / sizeof(double) / (n ? n : 1), rows = at_once ? at_once : fit ? fit : 1;
    return rows < n ? (uint32_t)rows : n;
}

static lb_status fill_gradients(const lb_worker_steps *steps, const lb_worker_step *step, uint32_t at_once, crew *crew,
                                lb_ranks_step *out, lb_err *err)
{
    lb_worker_products products;
    adding adding = {.crew = crew, .err = err};
    LB_TRY(lb_worker_products_init(steps, step, &products, err));
    out->gradients = products.n_keys, out->approximate = products.approximate;
    choose_crew(crew, &products);
    lb_status status = LB_OK;
    if (products.n_keys) status = add_keys(step, &products, rows_of_band(at_once, products.n), &adding);
    out->lacking = products.lacking;
    if (status == LB_OK && crew->n && products.n_keys) {
        fill_row(crew, adding.squares, &adding.cosines, &out->all);
        fill_rows(crew, &adding.layers), fill_rows(crew, &adding.blocks);
        fill_workers(&adding, out);
        out->layers = adding.layers.rows, out->n_layers = adding.layers.n;
        out->blocks = adding.blocks.rows, out->n_blocks = adding.blocks.n;
    } else {
        lb_worker_dispersion_free(adding.layers.rows, adding.layers.n);
        lb_worker_dispersion_free(adding.blocks.rows, adding.blocks.n);
    }
    end(&adding);
    lb_worker_products_release(&products);
    return status;
}

lb_status lb_worker_dispersion_of(const lb_worker_steps *steps, const lb_worker_step *step, uint32_t at_once,
                                  lb_ranks_step *out, lb_err *err)
{
    crew crew = {steps, calloc(steps->n_ranks + 1, sizeof *crew.rows), 0,
                 calloc(steps->n_ranks + 1, sizeof *crew.room)};
    uint32_t losses = 0;
    double least = INFINITY, most = -INFINITY;
    *out = (lb_ranks_step){.step = step->step,
                           .loss_mean = NAN,
                           .loss_std = NAN,
                           .loss_range = NAN,
                           .all = {NULL, NAN, NAN, NAN, NAN},
                           .workers = calloc(steps->n_ranks + 1, sizeof *out->workers)};
    lb_status status = crew.rows && crew.room && out->workers
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", steps->n_ranks);
    for (uint32_t r = 0; r < steps->n_ranks && status == LB_OK; r++) {
        const double loss = step->workers[r].program ? step->workers[r].own.loss : NAN;
        out->workers[out->n_workers++] = (lb_ranks_worker){steps->ranks[r], loss, NAN, NAN};
        if (isnan(loss)) continue;
        crew.room[losses++] = loss;
        if (loss < least) least = loss;
        if (loss > most) most = loss;
    }
    if (status == LB_OK && losses) {
        out->loss_mean = mean(crew.room, losses), out->loss_std = deviation(crew.room, losses),
        out->loss_range = most - least;
        /* All alike is no dispersion, whatever the mean rounded to. */
        if (most == least) out->loss_std = 0;
    }
    if (status == LB_OK) status = fill_gradients(steps, step, at_once, &crew, out, err);
    free(crew.rows), free(crew.room);
    return status;
}

void lb_worker_dispersion_free(lb_ranks_row *rows, uint32_t n)
{
    for (uint32_t i = 0; rows && i < n; i++) free(rows[i].layer);
    free(rows);
}
