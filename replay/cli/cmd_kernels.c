/* Listing kernels: see cmd_kernels.h. */
#include "cli/cmd_kernels.h"

#include "command/command_line.h"

#include "base/array.h"
#include <lastbit/composite.h>

#include <lastbit/json_text.h>
#include <lastbit/text_stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kernels that any op has, if it is no more than a call: its own without NaN and infinities, and PyTorch's. */
#define ANY_OP "finite torch"

typedef struct tally {
    const char *name; /* of an op; in the program that had it first */
    uint64_t count;
} tally;

typedef struct listing {
    struct kind {
        uint64_t count;
        json_t *layers;  /* path: how often */
        json_t *written; /* names of ops, joined: how often */
        json_t *likely;  /* candidates of the first one */
    } kinds[LB_COMPOSITE_KIND_COUNT];
    tally *ops;
    uint32_t n_ops;
} listing;

static void count_in(json_t *object, const char *key)
{
    json_object_set_new(object, key, json_integer(json_integer_value(json_object_get(object, key)) + 1));
}

/* "_to_copy pow.Tensor_Scalar mean.dim x2 …" */
static char *names_of(const lb_composite *composite)
{
    char *text = NULL;
    size_t size;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    for (uint32_t k = 0, run; k < composite->n_ops; k += run) {
        const char *name = lb_op_name(composite->program, &composite->program->ops[composite->ops[k]]);
        for (run = 1; k + run < composite->n_ops &&
                      !strcmp(lb_op_name(composite->program, &composite->program->ops[composite->ops[k + run]]), name);
             run++) {
        }
        fprintf(out, k ? " %s" : "%s", strncmp(name, "aten::", 6) ? name : name + 6);
        if (run > 1) fprintf(out, " x%u", run);
    }
    fclose(out);
    return text;
}

static void add_composite(listing *listing, const lb_composite *composite)
{
    struct kind *kind = &listing->kinds[composite->kind];
    if (!kind->count++) {
        enum { MOST = 12 };
        char texts[MOST][LB_COMPOSITE_TEXT];
        kind->layers = json_object(), kind->written = json_object(), kind->likely = json_array();
        const uint32_t n = lb_composite_candidates(composite, texts, MOST);
        for (uint32_t i = 0; i < n && i < MOST; i++) json_array_append_new(kind->likely, json_string(texts[i]));
    }
    char *names = names_of(composite);
    count_in(kind->layers, lb_program_text(composite->program, composite->program->scopes[composite->scope].path));
    if (names) count_in(kind->written, names);
    free(names);
}

static lb_status add_op(listing *listing, const char *name, lb_err *err)
{
    for (uint32_t i = 0; i < listing->n_ops; i++)
        if (!strcmp(listing->ops[i].name, name)) {
            listing->ops[i].count++;
            return LB_OK;
        }
    tally *more = lb_array_grow(listing->ops, listing->n_ops, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    listing->ops = more;
    listing->ops[listing->n_ops++] = (tally){name, 1};
    return LB_OK;
}

static lb_status add_program(listing *listing, const lb_program *program, lb_err *err)
{
    lb_composites found;
    LB_TRY(lb_composites_find(program, &found, err));
    for (uint32_t i = 0; i < found.n; i++) add_composite(listing, &found.rows[i]);
    lb_composites_release(&found);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        char kernels[8], orders[8];
        const char *name = lb_op_name(program, &program->ops[i]);
        if (lb_replay_kernels(name, kernels, sizeof kernels, orders, sizeof orders)) LB_TRY(add_op(listing, name, err));
    }
    return LB_OK;
}

static lb_status gather(listing *listing, lb_capture *capture, const lb_plan *plan, lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    for (uint32_t r = 0; r < n_ranks; r++) {
        bool wanted = !plan->ranks;
        for (uint32_t k = 0; plan->ranks && k < plan->n_ranks; k++) wanted |= plan->ranks[k] == ranks[r];
        for (uint32_t s = 0; wanted && s < n_steps; s++) {
            const lb_program *program;
            if (steps[s] < plan->first_step || steps[s] > plan->last_step) continue;
            lb_status status = lb_capture_program(capture, ranks[r], steps[s], &program, err);
            if (status == LB_ERR_NOT_FOUND)
                lb_err_clear(err);
            else if (status != LB_OK)
                return status;
            else
                LB_TRY(add_program(listing, program, err));
        }
    }
    return LB_OK;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static json_t *kernels_json(lb_composite_kind kind)
{
    json_t *kernels = json_array();
    for (const lb_composite_kernel *kernel = lb_composite_kernels(kind); kernel->name; kernel++)
        json_array_append_new(kernels, json_pack("{s:s, s:s, s:s}", "name", kernel->name, "written", kernel->parameters,
                                                 "about", kernel->about));
    return kernels;
}

static json_t *as_json(const listing *listing)
{
    json_t *composites = json_array(), *ops = json_array();
    for (int k = 0; k < LB_COMPOSITE_KIND_COUNT; k++) {
        const struct kind *kind = &listing->kinds[k];
        if (!kind->count) continue;
        json_array_append_new(composites,
                              json_pack("{s:s, s:s, s:I, s:O, s:O, s:o, s:s, s:O}", "kind", lb_composite_kind_name(k),
                                        "about", lb_composite_kind_about(k), "count", (json_int_t)kind->count, "layers",
                                        kind->layers, "ops", kind->written, "kernels", kernels_json(k), "options",
                                        lb_composite_options(k), "likely", kind->likely));
    }
    for (uint32_t i = 0; i < listing->n_ops; i++) {
        char kernels[160], orders[320];
        lb_replay_kernels(listing->ops[i].name, kernels, sizeof kernels, orders, sizeof orders);
        json_array_append_new(ops, json_pack("{s:s, s:I, s:s, s:s}", "op", listing->ops[i].name, "count",
                                             (json_int_t)listing->ops[i].count, "kernels", kernels, "orders", orders));
    }
    return json_pack("{s:o, s:o, s:s}", "composites", composites, "ops", ops, "any", ANY_OP);
}

static void print_counts(const char *title, const json_t *counts, uint32_t most)
{
    const char *key;
    json_t *count;
    uint32_t n = 0;
    json_object_foreach((json_t *)counts, key, count)
    {
        if (n++ == most) {
            printf("%s… %zu more\n", title, json_object_size(counts) - most);
            return;
        }
        printf("%s%s", title, *key ? key : "(outside)");
        if (json_integer_value(count) > 1) printf(", %lld times", (long long)json_integer_value(count));
        printf("\n");
    }
}

static void print_text(const listing *listing)
{
    uint32_t found = 0;
    for (int k = 0; k < LB_COMPOSITE_KIND_COUNT; k++) {
        const struct kind *kind = &listing->kinds[k];
        if (!kind->count) continue;
        printf(found++ ? "\n%s: %llu\n  %s\n" : "%s: %llu\n  %s\n", lb_composite_kind_name(k),
               (unsigned long long)kind->count, lb_composite_kind_about(k));
        print_counts("  written as ", kind->written, 4);
        print_counts("  in ", kind->layers, 6);
        printf("  --fuse %s=\n", lb_composite_kind_name(k));
        for (const lb_composite_kernel *one = lb_composite_kernels(k); one->name; one++)
            printf("    %-38s %s\n", one->parameters, one->about);
        if (*lb_composite_options(k)) printf("    options: %s\n", lb_composite_options(k));
    }
    if (!found) printf("no composites in these steps\n");
    printf("\n%-44s %7s  --kernel / --order\n%-44s %7s  %s / -\n", "op", "times", "(any)", "", ANY_OP);
    for (uint32_t i = 0; i < listing->n_ops; i++) {
        char kernels[160], orders[320];
        lb_replay_kernels(listing->ops[i].name, kernels, sizeof kernels, orders, sizeof orders);
        printf("%-44s %7llu  %s / %s\n", listing->ops[i].name, (unsigned long long)listing->ops[i].count,
               *kernels ? kernels : "-", *orders ? orders : "-");
    }
}

lb_status lb_kernels_print(lb_capture *capture, const lb_plan *plan, bool json, lb_err *err)
{
    listing listing = {0};
    lb_status status = gather(&listing, capture, plan, err);
    if (status == LB_OK && json)
        lb_command_print_json("replay", as_json(&listing));
    else if (status == LB_OK)
        print_text(&listing);
    for (int k = 0; k < LB_COMPOSITE_KIND_COUNT; k++)
        json_decref(listing.kinds[k].layers), json_decref(listing.kinds[k].written),
            json_decref(listing.kinds[k].likely);
    free(listing.ops);
    return status;
}
