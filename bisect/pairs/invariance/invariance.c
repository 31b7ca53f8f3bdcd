/* Rows among other rows: see lastbit/invariance.h. Here is which launches are tried and what becomes of the rows;
 * row_batch.h runs them. */
#include "base/array.h"
#include <lastbit/invariance.h>

#include "invariance/launch_rule.h"
#include "pair/op_kind.h"
#include "kernel/openblas.h"
#include "kernel/ops.h"
#include "invariance/row_batch.h"
#include "orders/schedule.h"
#include "program/selector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 512, SOME_ROWS = 64 };
static const int64_t most_work = (int64_t)1 << 31; /* multiplications of one batch of attention */

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* One way to launch batches of any size. */
typedef struct launch {
    const lb_launch_rule *rule; /* NULL: the same text for all */
    lb_row_run run;
    const char *text, *name; /* without a rule; a kernel's name in reports */
} launch;

/* The text for a batch of `rows`; false: it is not launched so. */
static bool launch_text(const launch *how, const lb_launch_shape *recorded, int64_t rows, char text[LB_LAUNCH_TEXT])
{
    lb_launch_shape shape = *recorded;
    shape.rows = rows;
    if (how->rule) return how->rule->choose(&shape, text);
    return snprintf(text, LB_LAUNCH_TEXT, "%s", how->text) < LB_LAUNCH_TEXT;
}

static const lb_launch_rule *rule_named(const char *name)
{
    for (const lb_launch_rule *r = lb_launch_rules(); r->name; r++)
        if (!strcmp(r->name, name)) return r;
    return NULL;
}

static bool is_order(const char *text)
{
    lb_schedule schedule;
    if (lb_schedule_parse(text, &schedule, NULL) != LB_OK) return false;
    lb_schedule_release(&schedule);
    return true;
}

static bool is_kernel_of(lb_composite_kind kind, const char *text)
{
    return lb_composite_check(kind, text, NULL) == LB_OK;
}

static lb_status check_launch(const char *text, lb_err *err)
{
    char rules[256] = "";
    lb_err orders = LB_ERR_INIT;
    lb_schedule schedule;
    if (!strcmp(text, "openblas")) return lb_openblas_load(err);
    if (!strcmp(text, "own") || rule_named(text) || is_order(text)) return LB_OK;
    if (is_kernel_of(LB_COMPOSITE_RMS_NORM, text) || is_kernel_of(LB_COMPOSITE_SOFTMAX, text) ||
        is_kernel_of(LB_COMPOSITE_ATTENTION, text))
        return LB_OK;
    for (const lb_launch_rule *r = lb_launch_rules(); r->name; r++)
        snprintf(rules + strlen(rules), sizeof rules - strlen(rules), " %s", r->name);
    lb_schedule_parse(text, &schedule, &orders); /* fails, and says what there is */
    return lb_fail(
        err, LB_ERR_INVALID,
        "--launch %s: neither own, openblas nor a rule (%s), nor the text of a kernel of rms_norm, softmax or "
        "attention, nor of an order: %s",
        text, rules + 1, orders.message);
}

static bool is_asked(const lb_invariance_options *options, const char *name)
{
    for (uint32_t i = 0; i < options->n_launches; i++)
        if (!strcmp(options->launches[i], name)) return true;
    return !options->n_launches;
}

/* ---- one batch, one launch --------------------------------------------------------------------------------------- */

static int64_t count_differing(const char *x, const char *y, int64_t elements, size_t element)
{
    int64_t differing = 0;
    for (int64_t i = 0; i < elements; i++)
        differing += memcmp(x + (size_t)i * element, y + (size_t)i * element, element) != 0;
    return differing;
}

/* Rows from `from` on in batches of one size, as many batches as it takes to see `row->embedded` of them. -1: such a
 * batch cannot be run. */
static int64_t embed(const lb_row_batch *b, const launch *how, const char *base, const lb_invariance_row *row,
                     int64_t from, const lb_invariance_size *size)
{
    int64_t differing = 0, elements = 0;
    const int64_t each = row->elements / row->embedded, rows = size->rows;
    const size_t element = lb_dtype_bits(b->program->values[b->y].dtype) / 8;
    for (int64_t seen = 0; seen < row->embedded; seen += rows) {
        const int64_t first = (from + seen) % b->shape.rows;
        char *bits = lb_row_batch_run(b, how->run, size->launch, first, rows, &elements);
        const bool ran = bits && elements == each;
        for (int64_t i = 0; ran && i < rows && seen + i < row->embedded; i++)
            differing += count_differing(base + (size_t)(((first + i) % b->shape.rows) * each) * element,
                                         bits + (size_t)(i * each) * element, each, element);
        free(bits);
        if (!ran) return -1;
    }
    return differing;
}

static int64_t largest_batch(const lb_row_batch *b)
{
    const lb_launch_shape *s = &b->shape;
    int64_t rows = LARGEST;
    while (b->of == LB_LAUNCH_ATTENTION && rows > 1 && rows * s->heads * s->queries * s->keys * s->size > most_work)
        rows /= 2;
    return rows;
}

static void describe(const lb_row_batch *b, const launch *how, lb_invariance_row *row)
{
    const lb_op *op = &b->program->ops[b->op];
    *row =
        (lb_invariance_row){.step = b->program->step, .rank = b->program->rank, .op = b->op, .recorded = b->shape.rows};
    snprintf(row->layer, sizeof row->layer, "%s", lb_op_layer(b->program, op));
    snprintf(row->name, sizeof row->name, "%s",
             b->composite ? lb_composite_kind_name(b->composite->kind) : lb_op_name(b->program, op));
    if (how->rule && how->rule->looks_at_multiprocessors)
        snprintf(row->kernel, sizeof row->kernel, "%s,sms:%lld", how->rule->name, (long long)b->shape.multiprocessors);
    else
        snprintf(row->kernel, sizeof row->kernel, "%s", how->rule ? how->rule->name : how->name);
    row->sequences = b->of == LB_LAUNCH_ATTENTION;
}

static lb_status try_launch(const lb_row_batch *b, const launch *how, int64_t wanted, lb_invariance *out, lb_err *err)
{
    lb_invariance_row row;
    const int64_t from = wanted < 0 ? 0 : wanted, largest = largest_batch(b);
    describe(b, how, &row);
    row.embedded = wanted >= 0 ? 1 : b->shape.rows < SOME_ROWS ? b->shape.rows : SOME_ROWS;
    if (!launch_text(how, &b->shape, b->shape.rows, row.launch)) return LB_OK;
    char *base = lb_row_batch_run(b, how->run, row.launch, 0, b->shape.rows, &row.elements);
    if (!base) return LB_OK;
    row.elements *= row.embedded;
    for (int64_t rows = 1; rows <= largest; rows *= 2) {
        lb_invariance_size *size = &row.sizes[row.n_sizes];
        size->rows = rows;
        if (!launch_text(how, &b->shape, rows, size->launch)) continue;
        size->differing = embed(b, how, base, &row, from, size);
        if (size->differing < 0) continue;
        row.varies |= size->differing > 0, row.n_sizes++;
    }
    free(base);
    if (!row.n_sizes) return LB_OK; /* nothing is known of other batches */
    lb_invariance_row *grown = lb_array_grow(out->rows, out->n_rows, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    out->rows = grown, out->rows[out->n_rows++] = row;
    return LB_OK;
}

/* ---- one batch --------------------------------------------------------------------------------------------------- */

/* The kernels that replay itself has for an op. */
static lb_status try_kernels(const lb_row_batch *b, const lb_invariance_options *options, lb_invariance *out,
                             lb_err *err)
{
    const launch own = {NULL, LB_ROW_RUN_KERNEL, "", "own"},
                 openblas = {NULL, LB_ROW_RUN_KERNEL, "openblas", "openblas"};
    lb_op_form form;
    const char *kernels = lb_op_find(lb_op_name(b->program, &b->program->ops[b->op]), &form)->kernels;
    if (is_asked(options, "own")) LB_TRY(try_launch(b, &own, options->row, out, err));
    if (is_asked(options, "openblas") && kernels && !strncmp(kernels, "openblas", 8) && lb_openblas_load(NULL) == LB_OK)
        LB_TRY(try_launch(b, &openblas, options->row, out, err));
    return LB_OK;
}

static lb_status try_batch(lb_row_batch *b, const lb_invariance_options *options, lb_invariance *out, lb_err *err)
{
    const lb_row_run run = b->composite ? LB_ROW_RUN_KERNEL : LB_ROW_RUN_ORDER;
    b->shape.multiprocessors = options->multiprocessors > 0 ? options->multiprocessors : 132;
    if (b->shape.rows <= options->row) return LB_OK;
    if (!b->composite) LB_TRY(try_kernels(b, options, out, err));
    for (const lb_launch_rule *rule = lb_launch_rules(); rule->name; rule++) {
        const launch how = {rule, run, NULL, NULL};
        if (rule->of == b->of && is_asked(options, rule->name)) LB_TRY(try_launch(b, &how, options->row, out, err));
    }
    for (uint32_t i = 0; i < options->n_launches; i++) {
        const char *text = options->launches[i];
        const launch how = {NULL, run, text, text};
        if (!rule_named(text) && (b->composite ? is_kernel_of(b->composite->kind, text) : is_order(text)))
            LB_TRY(try_launch(b, &how, options->row, out, err));
    }
    return LB_OK;
}

/* ---- a program --------------------------------------------------------------------------------------------------- */

typedef struct search {
    const lb_program *p;
    const lb_invariance_options *options;
    lb_regenerated bytes;
    lb_composites composites;
    uint8_t *marks; /* per op: selected */
    lb_invariance *out;
} search;

static bool is_selected(const search *search, const lb_composite *c)
{
    bool selected = false;
    for (uint32_t k = 0; k < c->n_ops; k++) selected |= search->marks[c->ops[k]] != 0;
    return selected;
}

static void want_value(void *context, uint32_t value)
{
    lb_regenerated_want(context, value);
}

static lb_status read_bytes(search *search, lb_err *err)
{
    for (uint32_t i = 0; i < search->p->n_ops; i++)
        if (search->marks[i] && lb_op_computes(search->p, &search->p->ops[i]))
            lb_op_each_input(search->p, &search->p->ops[i], want_value, &search->bytes);
    for (uint32_t i = 0; i < search->composites.n; i++)
        for (int k = 0; is_selected(search, &search->composites.rows[i]) && k < LB_COMPOSITE_INPUTS; k++)
            lb_regenerated_want(&search->bytes, search->composites.rows[i].inputs[k]);
    return lb_regenerated_run(&search->bytes, err);
}

/* Attention as one op has rows of its own kind only: a query's row is nothing without its sequence. */
static bool is_attention(const search *search, uint32_t op)
{
    for (uint32_t i = 0; i < search->composites.n; i++) {
        const lb_composite *c = &search->composites.rows[i];
        if (c->kind == LB_COMPOSITE_ATTENTION && c->n_ops == 1 && c->ops[0] == op) return true;
    }
    return false;
}

static lb_status try_all(search *search, lb_err *err)
{
    lb_row_batch batch;
    lb_status status = LB_OK;
    for (uint32_t i = 0; status == LB_OK && i < search->p->n_ops; i++) {
        if (!search->marks[i] || !lb_op_computes(search->p, &search->p->ops[i]) || is_attention(search, i)) continue;
        if (!lb_row_batch_of_op(search->p, &search->bytes, i, &batch)) continue;
        status = try_batch(&batch, search->options, search->out, err);
        lb_row_batch_release(&batch);
    }
    for (uint32_t i = 0; status == LB_OK && i < search->composites.n; i++) {
        if (!is_selected(search, &search->composites.rows[i]) ||
            !lb_row_batch_of_composite(&search->composites.rows[i], &search->bytes, &batch))
            continue;
        status = try_batch(&batch, search->options, search->out, err);
        lb_row_batch_release(&batch);
    }
    return status;
}

static lb_status try_program(const lb_program_view *side, const lb_selector *selector,
                             const lb_invariance_options *options, lb_invariance *out, lb_err *err)
{
    search s = {.p = side->program, .options = options, .marks = calloc(side->program->n_ops + 1, 1), .out = out};
    lb_status status = s.marks ? lb_regenerated_init(side, &s.bytes, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = lb_selector_mark(selector, s.p, NULL, NULL, s.marks, 1, NULL, err);
    if (status == LB_OK) status = lb_composites_find(s.p, &s.composites, err);
    if (status == LB_OK) status = read_bytes(&s, err);
    if (status == LB_OK) status = try_all(&s, err);
    lb_composites_release(&s.composites);
    if (s.bytes.program) lb_regenerated_release(&s.bytes);
    free(s.marks);
    return status;
}

lb_status lb_invariance_run(lb_capture *capture, const lb_invariance_options *options, lb_invariance *out, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    lb_selector *selector = NULL;
    *out = (lb_invariance){0};
    for (uint32_t i = 0; i < options->n_launches; i++) LB_TRY(check_launch(options->launches[i], err));
    lb_status status = lb_selector_new(options->select ? options->select : "", &selector, err);
    for (uint32_t i = 0; i < n_ranks && status == LB_OK; i++)
        for (uint32_t k = 0; k < n_steps && status == LB_OK; k++) {
            const lb_program *p;
            lb_program_view side = {0};
            if (steps[k] < options->first_step || steps[k] > options->last_step) continue;
            if (lb_capture_program(capture, ranks[i], steps[k], &p, NULL) != LB_OK) continue;
            status = lb_program_view_init(capture, &p, 1, &side, err);
            if (status == LB_OK) status = try_program(&side, selector, options, out, err);
            lb_program_view_release(&side);
        }
    lb_selector_free(selector);
    if (status == LB_OK) status = lb_capture_refusal(capture, err);
    if (status == LB_OK && !out->n_rows)
        status = lb_fail(err, LB_ERR_NOT_FOUND,
                         "explain --invariance %s: no op there has rows (a product, a sum, a norm, a softmax, "
                         "attention) whose "
                         "bytes were kept, and is launched so",
                         options->select ? options->select : "");
    if (status != LB_OK) lb_invariance_release(out);
    return status;
}

void lb_invariance_release(lb_invariance *invariance)
{
    free(invariance->rows);
    *invariance = (lb_invariance){0};
}
