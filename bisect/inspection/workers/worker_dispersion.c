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

static double cosine(const double *products, uint32_t all, uint32_t a, uint32_t b)
{
    const double norms = products[a * all + a] * products[b * all + b];
    return norms > 0 ? products[a * all + b] / sqrt(norms) : NAN;
}

/* `products`: all x all, of the whole or of some parameters. */
static void fill_row(const crew *crew, const double *products, lb_ranks_row *row)
{
    const uint32_t all = crew->steps->n_ranks;
    double sum = 0, least = INFINITY;
    uint32_t pairs = 0;
    for (uint32_t i = 0; i < crew->n; i++) crew->room[i] = sqrt(products[crew->rows[i] * all + crew->rows[i]]);
    row->grad_norm_mean = mean(crew->room, crew->n), row->grad_norm_std = deviation(crew->room, crew->n);
    for (uint32_t i = 0; i < crew->n; i++)
        for (uint32_t k = i + 1; k < crew->n; k++) {
            const double x = cosine(products, all, crew->rows[i], crew->rows[k]);
            if (!lb_workers_pair(crew->steps, crew->rows[i], crew->rows[k]) || isnan(x)) continue;
            sum += x, pairs++;
            if (x < least) least = x;
        }
    row->grad_cosine_mean = pairs ? sum / pairs : NAN, row->grad_cosine_min = pairs ? least : NAN;
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
    uint32_t *left;   /* per row: its keys that are still to come */
    double **sums;    /* per row, n x n; NULL: not begun, or done */
    lb_ranks_row *rows;
    uint32_t n;
} row_sums;

static void release_sums(row_sums *row_sums)
{
    for (uint32_t i = 0; row_sums->sums && i < row_sums->n; i++) free(row_sums->sums[i]);
    free(row_sums->row_of), free(row_sums->left), free(row_sums->sums);
}

/* `paths[k]` is of key k (NULL text: of none). */
static lb_status list_rows(const path *paths, uint32_t n_keys, row_sums *row_sums, lb_err *err)
{
    uint32_t *first = calloc(n_keys + 1, sizeof *first);
    row_sums->row_of = malloc((n_keys + 1) * sizeof *row_sums->row_of),
    row_sums->left = calloc(n_keys + 1, sizeof *row_sums->left);
    row_sums->sums = calloc(n_keys + 1, sizeof *row_sums->sums),
    row_sums->rows = calloc(n_keys + 1, sizeof *row_sums->rows);
    bool room = first && row_sums->row_of && row_sums->left && row_sums->sums && row_sums->rows;
    for (uint32_t k = 0; room && k < n_keys; k++) {
        uint32_t row = paths[k].text ? 0 : row_sums->n;
        while (row < row_sums->n && !same_path(&paths[first[row]], &paths[k])) row++;
        row_sums->row_of[k] = paths[k].text ? row : LB_NONE;
        if (!paths[k].text) continue;
        row_sums->left[row]++;
        if (row < row_sums->n) continue;
        first[row_sums->n] = k;
        row_sums->rows[row_sums->n].layer = strndup(paths[k].text, paths[k].n);
        room = row_sums->rows[row_sums->n++].layer != NULL;
    }
    free(first);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
}

/* Adds one key's products to its row, which is filled by the last of them. */
static lb_status add_key(const crew *crew, row_sums *row_sums, uint32_t key, const double *products, lb_err *err)
{
    const size_t cells = (size_t)crew->steps->n_ranks * crew->steps->n_ranks;
    const uint32_t row = row_sums->row_of[key];
    if (row == LB_NONE) return LB_OK;
    if (!row_sums->sums[row]) row_sums->sums[row] = calloc(cells + 1, sizeof **row_sums->sums);
    if (!row_sums->sums[row]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for layers");
    add_into(row_sums->sums[row], products, cells);
    if (--row_sums->left[row]) return LB_OK;
    fill_row(crew, row_sums->sums[row], &row_sums->rows[row]);
    free(row_sums->sums[row]);
    row_sums->sums[row] = NULL;
    return LB_OK;
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
    row_sums *layers, *blocks;
    double *all; /* n x n */
    lb_err *err;
} adding;

static lb_status take_key(void *context, uint32_t key, const double *products)
{
    adding *adding = context;
    add_into(adding->all, products, (size_t)adding->crew->steps->n_ranks * adding->crew->steps->n_ranks);
    LB_TRY(add_key(adding->crew, adding->layers, key, products, adding->err));
    return add_key(adding->crew, adding->blocks, key, products, adding->err);
}

/* Workers of whose gradients nothing lacks. */
static void choose_crew(crew *crew, const lb_worker_products *products)
{
    crew->n = 0;
    for (uint32_t r = 0; r < products->n; r++)
        if (products->whole[r] && lb_worker_steps_has(crew->steps, r)) crew->rows[crew->n++] = r;
}

static lb_status begin(const lb_worker_step *step, const lb_worker_products *products, adding *adding)
{
    path *paths = calloc(products->n_keys + 1, sizeof *paths);
    adding->all = calloc((size_t)products->n * products->n + 1, sizeof *adding->all);
    lb_status status = paths && adding->all ? LB_OK : lb_fail(adding->err, LB_ERR_NOMEM, "out of memory for layers");
    for (uint32_t k = 0; paths && k < products->n_keys; k++)
        paths[k] = (path){products->layers[k], products->layer_chars[k]};
    if (status == LB_OK) status = list_rows(paths, products->n_keys, adding->layers, adding->err);
    if (paths) memset(paths, 0, products->n_keys * sizeof *paths);
    if (status == LB_OK) status = block_paths(step, products, paths, adding->err);
    if (status == LB_OK) status = list_rows(paths, products->n_keys, adding->blocks, adding->err);
    free(paths);
    return status;
}

static void end(adding *adding)
{
    release_sums(adding->layers), release_sums(adding->blocks);
    free(adding->all);
}

/* Rows are filled by a crew that is known behind the last gradient only. Where it turns out to be a smaller one, which
 * is so where something lacks, all is done again. */
static lb_status add_keys(const lb_worker_step *step, lb_worker_products *products, adding *adding)
{
    for (uint32_t before = adding->crew->n;; before = adding->crew->n) {
        *adding->layers = *adding->blocks = (row_sums){0};
        lb_status status = begin(step, products, adding);
        if (status == LB_OK)
            status = lb_worker_products_each(adding->crew->steps, step, products, take_key, adding, adding->err);
        choose_crew(adding->crew, products);
        if (status != LB_OK || adding->crew->n == before) return status;
        lb_worker_dispersion_free(adding->layers->rows, adding->layers->n);
        lb_worker_dispersion_free(adding->blocks->rows, adding->blocks->n);
        end(adding);
    }
}

static void fill_workers(const crew *crew, const double *all, lb_ranks_step *out)
{
    const uint32_t n_ranks = crew->steps->n_ranks;
    for (uint32_t i = 0; i < crew->n; i++) {
        double sum = 0;
        uint32_t n = 0;
        lb_ranks_worker *worker = &out->workers[crew->rows[i]];
        worker->grad_norm = sqrt(all[(size_t)crew->rows[i] * n_ranks + crew->rows[i]]);
        for (uint32_t k = 0; k < crew->n; k++) {
            const double x = k == i || !lb_workers_pair(crew->steps, crew->rows[i], crew->rows[k])
                                 ? NAN
                                 : cosine(all, n_ranks, crew->rows[i], crew->rows[k]);
            if (!isnan(x)) sum += x, n++;
        }
        if (n) worker->cosine = sum / n;
    }
}

static lb_status fill_gradients(const lb_worker_steps *steps, const lb_worker_step *step, crew *crew,
                                lb_ranks_step *out, lb_err *err)
{
    lb_worker_products products;
    row_sums layers = {0}, blocks = {0};
    adding adding = {crew, &layers, &blocks, NULL, err};
    LB_TRY(lb_worker_products_init(steps, step, &products, err));
    out->gradients = products.n_keys, out->approximate = products.approximate;
    choose_crew(crew, &products);
    lb_status status = products.n_keys ? add_keys(step, &products, &adding) : LB_OK;
    out->lacking = products.lacking;
    if (status == LB_OK && crew->n && products.n_keys) {
        fill_row(crew, adding.all, &out->all);
        fill_workers(crew, adding.all, out);
        out->layers = layers.rows, out->n_layers = layers.n;
        out->blocks = blocks.rows, out->n_blocks = blocks.n;
    } else {
        lb_worker_dispersion_free(layers.rows, layers.n);
        lb_worker_dispersion_free(blocks.rows, blocks.n);
    }
    end(&adding);
    lb_worker_products_release(&products);
    return status;
}

lb_status lb_worker_dispersion_of(const lb_worker_steps *steps, const lb_worker_step *step, lb_ranks_step *out,
                                  lb_err *err)
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
    if (status == LB_OK) status = fill_gradients(steps, step, &crew, out, err);
    free(crew.rows), free(crew.room);
    return status;
}

void lb_worker_dispersion_free(lb_ranks_row *rows, uint32_t n)
{
    for (uint32_t i = 0; rows && i < n; i++) free(rows[i].layer);
    free(rows);
}
