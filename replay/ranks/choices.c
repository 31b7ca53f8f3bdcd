/* Swaps -> what each op is asked: see choices.h. */
#include "ranks/choices.h"

#include "orders/collective_sum.h"
#include "orders/matmul.h"
#include "kernel/openblas.h"
#include "precision/recipe.h"
#include "program/operand_role.h"
#include "orders/schedule.h"
#include "program/selector.h"
#include "machine/substitute.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CHOICES = 255, UNMADE = 255 };

typedef struct parsed_swap {
    lb_swap swap;
    lb_selector *selector;
    lb_recipe recipe;
    lb_dtype accumulate;
    lb_cast cast;
    lb_schedule schedule;
    bool is_schedule, is_order;
    lb_contribution contribution;
    lb_choice source; /* its contents */
    uint8_t routing;
    uint32_t given;   /* its place in the plan */
    uint64_t touched; /* ops, over all programs */
} parsed_swap;

struct lb_choices {
    parsed_swap *swaps;
    uint32_t n_swaps, n_rows;
    lb_choice rows[MAX_CHOICES];
};

/* ---- parsing ---------------------------------------------------------------------------------------------------- */

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && !strncmp(p, word, n)) return true;
    return false;
}

/* The op's own kernel, with 0 for what it gives that is not finite: any op has it. */
static bool is_finite_kernel(const char *name)
{
    return !strcmp(name, "finite");
}
/* PyTorch in the child process: any op that is no more than a call. */
static bool is_torch_kernel(const char *name)
{
    return !strcmp(name, "torch");
}

static lb_status parse_kernel(const parsed_swap *parsed_swap, lb_err *err)
{
    if (is_finite_kernel(parsed_swap->swap.argument) || is_torch_kernel(parsed_swap->swap.argument)) return LB_OK;
    const lb_op_row *const *rows;
    const char *longest = "";
    const uint32_t n = lb_op_rows(&rows);
    for (uint32_t i = 0; i < n; i++) {
        if (!rows[i]->kernels) continue;
        if (has_word(rows[i]->kernels, parsed_swap->swap.argument))
            return strcmp(parsed_swap->swap.argument, "openblas") ? LB_OK : lb_openblas_load(err);
        if (strlen(rows[i]->kernels) > strlen(longest)) longest = rows[i]->kernels;
    }
    return lb_fail(err, LB_ERR_INVALID, "--kernel: no op has a kernel \"%s\"; there are: finite torch %s",
                   parsed_swap->swap.argument, longest);
}

static lb_status parse_order(parsed_swap *parsed_swap, lb_err *err)
{
    lb_collective_order order;
    parsed_swap->is_schedule = lb_schedule_parse(parsed_swap->swap.argument, &parsed_swap->schedule, NULL) == LB_OK;
    parsed_swap->is_order = lb_collective_order_parse(parsed_swap->swap.argument, &order, NULL) == LB_OK;
    if (parsed_swap->is_schedule || parsed_swap->is_order) return LB_OK;
    lb_err schedules = LB_ERR_INIT, orders = LB_ERR_INIT;
    lb_schedule_parse(parsed_swap->swap.argument, &parsed_swap->schedule, &schedules);
    lb_collective_order_parse(parsed_swap->swap.argument, &order, &orders);
    if (schedules.status != LB_ERR_INVALID) /* a file that cannot be read, or is no tree */
        return lb_fail(err, schedules.status, "--order: %s", schedules.message);
    return lb_fail(err, LB_ERR_INVALID, "--order: %s; and %s", schedules.message, orders.message);
}

static lb_status parse_contribution(parsed_swap *parsed_swap, lb_err *err)
{
    static const char *const names[] = {"own", "zero", "mean", "exclude"};
    for (int i = 1; i < 4; i++)
        if (!strcmp(parsed_swap->swap.argument, names[i])) {
            parsed_swap->contribution = (lb_contribution)i;
            return LB_OK;
        }
    return lb_fail(err, LB_ERR_INVALID, "a rank's contribution can be swapped for zero, mean or exclude, not \"%s\"",
                   parsed_swap->swap.argument);
}

static lb_status parse_accumulate(parsed_swap *parsed_swap, lb_err *err)
{
    parsed_swap->accumulate = lb_dtype_grid_parse(parsed_swap->swap.argument);
    if (parsed_swap->accumulate) return LB_OK;
    return lb_fail(err, LB_ERR_INVALID,
                   "--accumulate %s=%s: sums can be rounded to f32, tf32, bf16, f16, e4m3fn, e5m2, …",
                   parsed_swap->swap.selector, parsed_swap->swap.argument);
}

static lb_status parse_routing(parsed_swap *parsed_swap, lb_err *err)
{
    static const char *const names[] = {"recompute", "ids", "ids+weights", "ids+weights+slots"};
    for (uint8_t i = 0; i < 4; i++)
        if (!strcmp(parsed_swap->swap.argument, names[i])) {
            parsed_swap->routing = i;
            return LB_OK;
        }
    return lb_fail(err, LB_ERR_INVALID, "--routing can be recompute, ids, ids+weights or ids+weights+slots, not \"%s\"",
                   parsed_swap->swap.argument);
}

static lb_status parse_swap(parsed_swap *parsed_swap, lb_err *err)
{
    LB_TRY(lb_selector_new(parsed_swap->swap.selector ? parsed_swap->swap.selector : "", &parsed_swap->selector, err));
    switch (parsed_swap->swap.kind) {
    case LB_SWAP_PRECISION: return lb_recipe_parse(parsed_swap->swap.argument, &parsed_swap->recipe, err);
    case LB_SWAP_ORDER: return parse_order(parsed_swap, err);
    case LB_SWAP_KERNEL: return parse_kernel(parsed_swap, err);
    case LB_SWAP_RANK: return parse_contribution(parsed_swap, err);
    case LB_SWAP_SOURCE:
        if (lb_substitute_parse(parsed_swap->swap.argument, &parsed_swap->source)) return LB_OK;
        return lb_fail(err, LB_ERR_INVALID, "--source %s=%s: a source can take its own, finite or step:N",
                       parsed_swap->swap.selector, parsed_swap->swap.argument);
    case LB_SWAP_ROUTING: return parse_routing(parsed_swap, err);
    case LB_SWAP_ACCUMULATE: return parse_accumulate(parsed_swap, err);
    case LB_SWAP_ROUNDING:
        if (lb_dtype_cast_parse(parsed_swap->swap.argument, &parsed_swap->cast)) return LB_OK;
        return lb_fail(err, LB_ERR_INVALID, "--rounding %s=%s: roundings are rne, rz, rna, stochastic:SEED",
                       parsed_swap->swap.selector, parsed_swap->swap.argument);
    default: return LB_OK;
    }
}

lb_status lb_choices_new(const lb_swap *swaps, uint32_t n, lb_choices **out, lb_err *err)
{
    *out = NULL;
    lb_choices *choices = calloc(1, sizeof *choices);
    if (choices) choices->swaps = calloc(n + 1, sizeof *choices->swaps);
    if (!choices || !choices->swaps) {
        free(choices);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    choices->n_rows = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (lb_swap_is_structural(swaps[i].kind)) continue;
        parsed_swap *parsed_swap = &choices->swaps[choices->n_swaps++];
        parsed_swap->swap = swaps[i];
        parsed_swap->given = i;
        lb_status status = parse_swap(parsed_swap, err);
        if (status == LB_OK) continue;
        lb_choices_free(choices);
        return status;
    }
    *out = choices;
    return LB_OK;
}

void lb_choices_free(lb_choices *choices)
{
    if (!choices) return;
    for (uint32_t i = 0; i < choices->n_swaps; i++) {
        lb_selector_free(choices->swaps[i].selector);
        lb_schedule_release(&choices->swaps[i].schedule);
    }
    free(choices->swaps);
    free(choices);
}

const lb_choice *lb_choices_rows(const lb_choices *choices)
{
    return choices->rows;
}

bool lb_choices_want_blocks(const lb_choices *choices)
{
    for (uint32_t i = 0; i < choices->n_swaps; i++)
        if (lb_selector_wants_blocks(choices->swaps[i].selector)) return true;
    return false;
}

void lb_choices_touched(const lb_choices *choices, uint64_t *touched)
{
    for (uint32_t i = 0; i < choices->n_swaps; i++) touched[choices->swaps[i].given] = choices->swaps[i].touched;
}

bool lb_choices_want_torch(const lb_choices *choices)
{
    for (uint32_t i = 0; i < choices->n_swaps; i++)
        if (choices->swaps[i].swap.kind == LB_SWAP_KERNEL && is_torch_kernel(choices->swaps[i].swap.argument))
            return true;
    return false;
}

bool lb_choices_round_operands(const lb_choices *choices, bool told)
{
    for (uint32_t i = 0; i < choices->n_swaps; i++) {
        const parsed_swap *parsed_swap = &choices->swaps[i];
        if (parsed_swap->swap.kind == LB_SWAP_PRECISION &&
            (told || parsed_swap->recipe.casts_operands || parsed_swap->recipe.accumulate == LB_F64))
            return true;
    }
    return false;
}

/* ---- applying --------------------------------------------------------------------------------------------------- */

static bool concerns_precision(const lb_recipe *recipe, const lb_op_row *row)
{
    if (!recipe->products_only) return true;
    if (recipe->scaling) return lb_operand_is_product(row);
    return row && row->flags & (LB_ROW_MATMUL | LB_ROW_CONVOLUTION);
}

/* A swap that means nothing to this op leaves it alone: a kernel it doesn't have, a ring for a sum. */
static bool concerns(const parsed_swap *parsed_swap, const lb_op *recorded, const lb_prepared_op *op)
{
    bool collective = op->action == LB_ACT_COLLECTIVE,
         computes = op->action != LB_ACT_NOTHING && op->action != LB_ACT_SOURCE;
    switch (parsed_swap->swap.kind) {
    case LB_SWAP_KERNEL:
        if (is_finite_kernel(parsed_swap->swap.argument)) return computes && !collective;
        if (is_torch_kernel(parsed_swap->swap.argument)) return lb_prepared_is_call(recorded, op);
        return op->row && has_word(op->row->kernels, parsed_swap->swap.argument);
    case LB_SWAP_ORDER:
        if (collective) return parsed_swap->is_order;
        if (!parsed_swap->is_schedule || !op->row) return false;
        if (lb_schedule_of_products(&parsed_swap->schedule)) return op->row->flags & LB_ROW_MATMUL;
        return op->row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL);
    case LB_SWAP_RANK: return collective;
    case LB_SWAP_SOURCE: return op->action == LB_ACT_SOURCE;
    case LB_SWAP_ACCUMULATE: return op->row && op->row->flags & (LB_ROW_REDUCTION | LB_ROW_MATMUL);
    case LB_SWAP_PRECISION: return computes && concerns_precision(&parsed_swap->recipe, op->row);
    case LB_SWAP_ROUTING: return computes;
    default: return computes;
    }
}

static void apply_storage(const lb_recipe *recipe, lb_choice *choice)
{
    choice->region = lb_grid_is_held_as_f32(recipe->storage) ? LB_F32 : recipe->storage;
    choice->widen_only = false;
    choice->storage = lb_grid_is_held_as_f32(recipe->storage) ? recipe : NULL;
    choice->method.cast = (struct lb_cast *)&recipe->cast;
    choice->rounds_wide = recipe->storage == LB_F32 && recipe->cast.rounding != LB_RNE;
}

/* A type alone: kernels do all of it, by method.compute or method.tf32; the recipe is for who wants to hear of it. */
static void apply_type(const lb_recipe *recipe, lb_choice *choice)
{
    choice->recipe = recipe;
    if (recipe->short_form == LB_TF32) {
        const lb_rounding rounding = recipe->cast.rounding;
        choice->method.tf32 = rounding == LB_RZ ? LB_TF32_RZ : rounding == LB_RNE ? LB_TF32_RNE : LB_TF32_RNA;
        return;
    }
    choice->region = recipe->short_form;
    choice->widen_only = recipe->short_form == LB_F64 || recipe->short_form == LB_F32;
    choice->method.compute = choice->widen_only ? LB_NO_DTYPE : recipe->short_form;
    choice->method.tf32 = LB_TF32_NONE;
    choice->storage = NULL;
    if (choice->widen_only) choice->recipe = NULL;
}

/* What it names; the rest stays as an earlier swap left it. */
static void apply_precision(const lb_recipe *recipe, lb_choice *choice)
{
    if (recipe->short_form) {
        apply_type(recipe, choice);
        return;
    }
    if (recipe->storage) apply_storage(recipe, choice);
    if (recipe->casts_operands) {
        choice->recipe = recipe;
        choice->method.compute = LB_NO_DTYPE;
        choice->method.tf32 = LB_TF32_NONE;
    }
    if (recipe->compute) choice->wide_compute = recipe->compute == LB_F64;
    if (recipe->accumulate) choice->wide_accumulate = recipe->accumulate == LB_F64;
    if (!recipe->accumulate) return;
    /* Arithmetic is f32's as soon as no operand is f64, and f64's when one is: rounding to it again would only cost. */
    const bool own = recipe->accumulate == LB_F64 || (recipe->accumulate == LB_F32 && recipe->compute != LB_F64);
    choice->method.accumulate = own ? LB_NO_DTYPE : recipe->accumulate;
}

static void apply(const parsed_swap *parsed_swap, lb_choice *choice)
{
    choice->swapped |= parsed_swap->swap.kind != LB_SWAP_ROUTING; /* which alone computes nothing differently */
    switch (parsed_swap->swap.kind) {
    case LB_SWAP_PRECISION: apply_precision(&parsed_swap->recipe, choice); break;
    case LB_SWAP_KERNEL:
        if (is_finite_kernel(parsed_swap->swap.argument))
            choice->finite = true;
        else
            choice->by_torch = is_torch_kernel(parsed_swap->swap.argument),
            choice->method.kernel = choice->by_torch ? NULL : parsed_swap->swap.argument;
        break;
    case LB_SWAP_ORDER:
        choice->reordered = true;
        if (parsed_swap->is_schedule) choice->method.schedule = &parsed_swap->schedule;
        if (parsed_swap->is_order) choice->order = parsed_swap->swap.argument;
        break;
    case LB_SWAP_ROUNDING: /* to nearest is what is done anyway */
        choice->rounds_wide = parsed_swap->cast.rounding != LB_RNE;
        choice->method.cast = choice->rounds_wide ? (struct lb_cast *)&parsed_swap->cast : NULL;
        break;
    case LB_SWAP_ROUTING: choice->routing = parsed_swap->routing; break;
    case LB_SWAP_ACCUMULATE: choice->method.accumulate = parsed_swap->accumulate; break;
    case LB_SWAP_RANK: choice->contribution = (uint8_t)parsed_swap->contribution; break;
    case LB_SWAP_SOURCE:
        choice->contents = parsed_swap->source.contents;
        choice->contents_step = parsed_swap->source.contents_step;
        break;
    default: break;
    }
}

static bool same_choice(const lb_choice *a, const lb_choice *b)
{
    return a->method.kernel == b->method.kernel && a->method.schedule == b->method.schedule &&
           a->method.compute == b->method.compute && a->method.accumulate == b->method.accumulate &&
           a->method.cast == b->method.cast && a->method.tf32 == b->method.tf32 && a->rounds_wide == b->rounds_wide &&
           a->routing == b->routing && a->region == b->region && a->widen_only == b->widen_only &&
           a->swapped == b->swapped && a->reordered == b->reordered && a->order == b->order &&
           a->contribution == b->contribution && a->contents == b->contents && a->contents_step == b->contents_step &&
           a->finite == b->finite && a->by_torch == b->by_torch && a->recipe == b->recipe && a->storage == b->storage &&
           a->wide_compute == b->wide_compute && a->wide_accumulate == b->wide_accumulate;
}

/* What PyTorch's kernels are not told. */
static bool is_asked_for_more(const lb_choice *c)
{
    return c->region || c->method.schedule || c->method.compute || c->method.accumulate || c->method.tf32 ||
           c->method.cast || c->rounds_wide || c->recipe || c->storage || c->wide_compute || c->wide_accumulate ||
           c->finite;
}

/* The row that says what row `old` says and the parsed swap besides. */
static lb_status derive(lb_choices *choices, const parsed_swap *parsed_swap, uint8_t old, uint8_t *row, lb_err *err)
{
    lb_choice wanted = choices->rows[old];
    apply(parsed_swap, &wanted);
    if (wanted.by_torch && is_asked_for_more(&wanted))
        return lb_fail(
            err, LB_ERR_INVALID,
            "--kernel torch: PyTorch computes ops as they were recorded, "
            "and one that it is to compute is asked for another precision, order or rounding, too: select others");
    for (uint32_t i = 0; i < choices->n_rows; i++)
        if (same_choice(&choices->rows[i], &wanted)) {
            *row = (uint8_t)i;
            return LB_OK;
        }
    if (choices->n_rows == MAX_CHOICES)
        return lb_fail(err, LB_ERR_LIMIT, "more than %d different swaps in one run", MAX_CHOICES - 1);
    *row = (uint8_t)choices->n_rows;
    choices->rows[choices->n_rows++] = wanted;
    return LB_OK;
}

static lb_status apply_swap(lb_choices *choices, parsed_swap *parsed_swap, const lb_prepared *prepared,
                            const uint8_t *marks, uint8_t *choice_of, lb_err *err)
{
    uint8_t derived[256];
    memset(derived, UNMADE, sizeof derived);
    for (uint32_t i = 0; i < prepared->program->n_ops; i++) {
        if (!marks[i] || !concerns(parsed_swap, &prepared->program->ops[i], &prepared->ops[i])) continue;
        uint8_t old = choice_of[i];
        if (derived[old] == UNMADE) LB_TRY(derive(choices, parsed_swap, old, &derived[old], err));
        choice_of[i] = derived[old];
        parsed_swap->touched++;
    }
    return LB_OK;
}

lb_status lb_choices_make(lb_choices *choices, const lb_prepared *prepared, const char *blocks, uint8_t **out,
                          lb_err *err)
{
    uint32_t n = prepared->program->n_ops;
    *out = NULL;
    if (!choices->n_swaps) return LB_OK;
    uint8_t *choice_of = calloc(n + 1, 1), *marks = malloc(n + 1);
    lb_status status = choice_of && marks ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < choices->n_swaps && status == LB_OK; s++) {
        memset(marks, 0, n + 1);
        status = lb_selector_mark(choices->swaps[s].selector, prepared->program, blocks, prepared->origin, marks, 1,
                                  NULL, err);
        if (status == LB_OK) status = apply_swap(choices, &choices->swaps[s], prepared, marks, choice_of, err);
    }
    free(marks);
    if (status == LB_OK)
        *out = choice_of;
    else
        free(choice_of);
    return status;
}
