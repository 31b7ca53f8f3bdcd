/* Taking a sample: see sample.h. */
#include "explain/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, COLUMNS = 32, BATCHES = 2, LEAST_PRODUCTS = 1 << 20 };

/* Operands of a product by argument: -1, it has none. */
typedef struct form {
    const char *name;
    int bias, left, right;
} form;
static const form forms[] = {{"aten::mm", -1, 0, 1}, {"aten::bmm", -1, 0, 1}, {"aten::addmm", 0, 1, 2}};

/* Evenly spread indices along one dimension; all: n is its size. */
typedef struct picks {
    int64_t list[COLUMNS], n;
    bool all;
} picks;

static picks spread(int64_t size, int64_t most)
{
    picks p = {.n = size < most ? size : most};
    for (int64_t i = 0; i < p.n; i++) p.list[i] = (2 * i + 1) * size / (2 * p.n);
    return p;
}

static picks whole(int64_t size)
{
    return (picks){.n = size, .all = true};
}

static int64_t picked(const picks *picks, int64_t i)
{
    return picks->all ? i : picks->list[i];
}

/* The elements at the picks of every dimension, row-major; data malloc'ed, NULL: out of memory. */
static lb_tensor gather(const lb_tensor *from, const picks *dims)
{
    const size_t bytes = lb_dtype_bytes(from->dtype, 1);
    const int ndim = from->layout.ndim;
    int64_t shape[3] = {1, 1, 1}, stride[3] = {0}, at[3];
    picks full[3] = {whole(1), whole(1), whole(1)};
    for (int d = 0; d < ndim; d++)
        full[3 - ndim + d] = dims[d], shape[3 - ndim + d] = dims[d].n, stride[3 - ndim + d] = from->layout.stride[d];
    lb_tensor to = {malloc((size_t)(shape[0] * shape[1] * shape[2]) * bytes + 1), from->dtype,
                    lb_layout_contiguous(ndim, shape + 3 - ndim)};
    char *out = to.data;
    for (at[0] = 0; out && at[0] < shape[0]; at[0]++)
        for (at[1] = 0; at[1] < shape[1]; at[1]++)
            for (at[2] = 0; at[2] < shape[2]; at[2]++, out += bytes) {
                int64_t offset = 0;
                for (int d = 0; d < 3; d++) offset += picked(&full[d], at[d]) * stride[d];
                memcpy(out, (const char *)from->data + offset * (int64_t)bytes, bytes);
            }
    return to;
}

/* Which leaf an argument is; LB_NONE: none, or one that another argument is too. */
static uint32_t leaf_of(const lb_match_site *site, int runner, const lb_arg *args, uint32_t n_args, uint32_t arg)
{
    const lb_matched_region_side *side = &site->region->sides[runner];
    if (arg >= n_args || args[arg].tag != LB_ARG_VALUE) return LB_NONE;
    for (uint32_t i = 0; i < n_args; i++)
        if (i != arg && args[i].tag == LB_ARG_VALUE && args[i].u.value == args[arg].u.value) return LB_NONE;
    for (uint32_t i = 0; i < side->n_leaves; i++)
        if (lb_matched_region_recorded(site->source, runner, side->leaves[i]) == args[arg].u.value) return i;
    return LB_NONE;
}

typedef struct cut {
    const form *form;
    uint32_t leaves[3]; /* bias, left, right */
    picks dims[4][3];   /* of the same, then of the output */
} cut;

static bool plan_cut(const lb_match_site *site, int runner, int bits, cut *cut)
{
    const lb_matched_region_side *side = &site->region->sides[runner];
    const lb_program *program = lb_matched_region_program(site->source, runner);
    if (side->n_ops != 1 || site->region->n_outputs != 1 || !lb_match_site_can(site, runner, bits)) return false;
    const lb_op *op = &program->ops[side->ops[0]];
    const lb_arg *args = lb_op_args(program, op);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(lb_op_name(program, op), forms[i].name)) cut->form = &forms[i];
    if (!cut->form) return false;
    const int operands[] = {cut->form->bias, cut->form->left, cut->form->right};
    for (int i = 0; i < 3; i++) {
        cut->leaves[i] = operands[i] < 0 ? LB_NONE : leaf_of(site, runner, args, op->args, (uint32_t)operands[i]);
        if (operands[i] >= 0 && cut->leaves[i] == LB_NONE) return false;
    }
    if (side->n_leaves != 2u + (cut->form->bias >= 0)) return false;
    const lb_layout *left = &site->inputs[runner][bits][cut->leaves[1]].layout,
                    *right = &site->inputs[runner][bits][cut->leaves[2]].layout, *out = &site->targets[bits][0].layout;
    const int n = out->ndim;
    if (n < 2 || n > 3 || left->ndim != n || right->ndim != n) return false;
    const int64_t rows = out->shape[n - 2], columns = out->shape[n - 1], batches = n == 3 ? out->shape[0] : 1;
    const int64_t terms = left->shape[n - 1];
    if (terms < 1 || rows < 1 || columns < 1 || batches < 1 || rows * columns * batches < LEAST_PRODUCTS / terms ||
        rows * columns * batches < 8 * ROWS * COLUMNS * BATCHES)
        return false;
    const picks row = spread(rows, ROWS), column = spread(columns, COLUMNS), batch = spread(batches, BATCHES);
    const picks of_left[] = {row, whole(terms)}, of_right[] = {whole(terms), column}, of_out[] = {row, column};
    const picks *two[] = {NULL, of_left, of_right, of_out};
    for (int i = 1; i < 4; i++) {
        cut->dims[i][0] = batch;
        memcpy(&cut->dims[i][n - 2], two[i], 2 * sizeof(picks));
    }
    if (cut->form->bias < 0) return true;
    const lb_layout *bias = &site->inputs[runner][bits][cut->leaves[0]].layout;
    for (int d = 0; d < bias->ndim && d < 3; d++) {
        const int axis = n - bias->ndim + d;
        if (axis < 0) return false;
        cut->dims[0][d] = bias->shape[d] == out->shape[axis] ? cut->dims[3][axis] : whole(bias->shape[d]);
    }
    return bias->ndim <= n;
}

lb_status lb_sample_take(const lb_match_site *site, int runner, int bits, lb_sample *sample, lb_err *err)
{
    const lb_matched_region_side *side = &site->region->sides[runner];
    lb_layout leaf_layouts[3], output_layout;
    uint32_t leaves[3];
    cut cut = {0};
    *sample = (lb_sample){.bits = bits};
    if (!plan_cut(site, runner, bits, &cut)) return LB_OK;
    lb_match_site *small = &sample->site;
    *small = (lb_match_site){.region = site->region, .source = site->source};
    lb_tensor *inputs = small->inputs[runner][bits] = calloc(side->n_leaves + 1, sizeof *inputs);
    void **owned = small->owned[runner][bits] = calloc(side->n_leaves + 1, sizeof *owned);
    lb_tensor *targets = small->targets[bits] = calloc(2, sizeof *targets);
    bool room = inputs && owned && targets;
    for (int i = 0; room && i < 3; i++) {
        const uint32_t leaf = cut.leaves[i];
        if (leaf == LB_NONE) continue;
        inputs[leaf] = gather(&site->inputs[runner][bits][leaf], cut.dims[i]);
        owned[leaf] = inputs[leaf].data, leaf_layouts[leaf] = inputs[leaf].layout;
        room = inputs[leaf].data != NULL;
    }
    if (room) targets[0] = gather(&site->targets[bits][0], cut.dims[3]);
    room = room && targets[0].data;
    for (uint32_t i = 0; i < side->n_leaves && i < 3; i++)
        leaves[i] = lb_matched_region_recorded(site->source, runner, side->leaves[i]);
    const uint32_t output = lb_matched_region_recorded(site->source, runner, side->outputs[0]);
    output_layout = room ? targets[0].layout : (lb_layout){0};
    const lb_subprogram_parts parts = {.program = lb_matched_region_program(site->source, runner),
                                       .ops = side->ops,
                                       .n_ops = side->n_ops,
                                       .leaves = leaves,
                                       .n_leaves = side->n_leaves,
                                       .outputs = &output,
                                       .n_outputs = 1,
                                       .leaf_layouts = leaf_layouts,
                                       .output_layouts = &output_layout};
    lb_status status = room ? lb_subprogram_new(&parts, &small->subprograms[runner], err)
                            : lb_fail(err, LB_ERR_NOMEM, "out of memory for a sample");
    sample->taken = status == LB_OK;
    if (status != LB_OK) lb_sample_release(sample);
    return status == LB_ERR_NOMEM ? status : LB_OK;
}

double lb_sample_share(const lb_sample *sample, const lb_match_site *whole)
{
    return (double)lb_layout_numel(&sample->site.targets[sample->bits][0].layout) /
           fmax(1, (double)lb_layout_numel(&whole->targets[sample->bits][0].layout));
}

void lb_sample_release(lb_sample *sample)
{
    if (!sample->site.region) return;
    if (sample->site.targets[sample->bits]) free(sample->site.targets[sample->bits][0].data);
    lb_match_site_release(&sample->site);
    *sample = (lb_sample){0};
}
