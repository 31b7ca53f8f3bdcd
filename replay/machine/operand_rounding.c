/* Copies of operands, rounded: see operand_rounding.h. */
#include "machine/operand_rounding.h"

#include "machine/rebase.h"
#include "kernel/frame.h"
#include "precision/quantiser.h"
#include "program/operand_role.h"
#include "precision/scale_history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct lb_operand_rounding {
    lb_scale_book *book;
    lb_roles *roles;
    bool begun;
};

lb_operand_rounding *lb_operand_rounding_new(void)
{
    lb_operand_rounding *rounding = calloc(1, sizeof *rounding);
    if (rounding) rounding->book = lb_scale_book_new();
    if (rounding && rounding->book) return rounding;
    free(rounding);
    return NULL;
}

void lb_operand_rounding_free(lb_operand_rounding *rounding)
{
    if (!rounding) return;
    lb_roles_free(rounding->roles);
    lb_scale_book_free(rounding->book);
    free(rounding);
}

lb_status lb_operand_rounding_step(lb_operand_rounding *rounding, const lb_prepared *prepared, lb_err *err)
{
    lb_roles_free(rounding->roles);
    rounding->roles = NULL;
    if (rounding->begun) lb_scale_book_step(rounding->book);
    rounding->begun = true;
    return lb_roles_new(prepared, &rounding->roles, err);
}

/* ---- keys of random numbers -------------------------------------------------------------------------------------- */

static uint64_t key_of(const lb_machine *machine, uint64_t seed, uint32_t place)
{
    const lb_prepared *prepared = machine->prepared;
    const uint32_t row = prepared->origin ? prepared->origin[machine->next] : machine->next;
    /* Ops that a pass made have no row in the recording: theirs are numbered from the other end. */
    const uint64_t op = row == LB_NONE ? UINT32_MAX - machine->next : row;
    uint32_t words[4];
    lb_philox(seed, (uint64_t)prepared->program->step << 32 | op, (uint64_t)(uint32_t)machine->rank << 32 | place,
              words);
    return (uint64_t)words[1] << 32 | words[0];
}

enum { PLACE_RESULTS = 1 << 24 }; /* operands: their position, and within a list 256 times the item */

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

typedef struct site {
    lb_machine *machine;
    const lb_recipe *recipe;        /* NULL: operands keep their values */
    bool wide;                      /* copies are f64 */
    const lb_product_site *product; /* NULL: the op is none */
    uint32_t operand, place;        /* place: for keys */
    lb_precision_role role;
    const lb_factor *factor; /* NULL: the operand is no factor */
} site;

/* Every value of `dtype` is one of `grid`. */
static bool is_subset(lb_dtype dtype, lb_dtype grid)
{
    return lb_dtype_precision(dtype) <= lb_dtype_precision(grid) &&
           lb_dtype_max_finite(dtype) <= lb_dtype_max_finite(grid) &&
           lb_dtype_min_subnormal(dtype) >= lb_dtype_min_subnormal(grid) && grid != LB_E8M0 && grid != LB_E2M1;
}

static lb_tensor *copy_of(lb_machine *machine, const lb_tensor *tensor, lb_dtype dtype, lb_tensor *copy)
{
    *copy = (lb_tensor){NULL, dtype, lb_layout_contiguous(tensor->layout.ndim, tensor->layout.shape)};
    copy->data = lb_machine_scratch(machine, lb_dtype_bytes(dtype, (size_t)lb_layout_numel(&tensor->layout)));
    if (!copy->data) return NULL;
    lb_memory_tensor_copy(copy, tensor, NULL);
    return copy;
}

/* Elements of the copy run along the dimension that is summed over. */
static bool copy_along(lb_machine *machine, const lb_tensor *tensor, int dim, lb_tensor *copy)
{
    const lb_tensor moved = lb_frame_dim_last(tensor, dim);
    lb_tensor rows;
    if (!copy_of(machine, &moved, LB_F32, &rows)) return false;
    *copy = (lb_tensor){rows.data, LB_F32, tensor->layout};
    copy->layout.offset = 0;
    int64_t stride = tensor->layout.shape[dim];
    for (int d = tensor->layout.ndim - 1; d >= 0; d--) {
        if (d == dim) continue;
        copy->layout.stride[d] = stride;
        stride *= tensor->layout.shape[d];
    }
    copy->layout.stride[dim] = 1;
    return true;
}

static const char *layer_of(const lb_machine *machine)
{
    const lb_program *program = machine->prepared->program;
    return lb_op_layer(program, &program->ops[machine->next]);
}

static void tell(const site *site, const lb_precision_loss *loss)
{
    const lb_machine *machine = site->machine;
    const lb_observer *observer = machine->run->observer;
    const lb_prepared *prepared = machine->prepared;
    char format[48];
    lb_recipe_format(site->recipe, site->role, format, sizeof format);
    const uint32_t origin = prepared->origin ? prepared->origin[machine->next] : machine->next;
    const lb_quantisation quantisation = {
        prepared->recorded, origin, site->operand, prepared->program->step, machine->rank, layer_of(machine),
        site->role,         format, loss};
    observer->quantised(observer->context, &quantisation);
}

static bool is_told(const lb_machine *machine)
{
    const lb_observer *observer = machine->run->observer;
    return observer && observer->quantised && !machine->is_shadow;
}

/* The scale of delayed scaling; the tensor's amax joins its history. */
static lb_status take_scale(const site *site, const lb_tensor *rows, float *scale)
{
    lb_machine *machine = site->machine;
    const uint32_t slot = site->factor ? site->factor->slot : 0;
    lb_scale_history *entry =
        lb_scale_book_find(machine->rounding->book, site->recipe, layer_of(machine), site->role, slot);
    if (!entry) return lb_fail(machine->err, LB_ERR_NOMEM, "out of memory for the scales of %s", layer_of(machine));
    *scale = lb_scale_history_take(entry, lb_quantiser_amax(rows->data, lb_layout_numel(&rows->layout)));
    return LB_OK;
}

static lb_status quantise_factor(const site *site, lb_tensor *tensor)
{
    const lb_layout *layout = &tensor->layout;
    const lb_factor *other = &site->product->factors[site->factor == &site->product->factors[0]];
    const bool weight_gradient =
        site->role != LB_ROLE_WEIGHT && other->role != LB_ROLE_WEIGHT && site->role != other->role;
    const int dim = layout->ndim - site->factor->dimension;
    const int64_t numel = lb_layout_numel(layout);
    if (dim < 0 || !numel) return LB_OK;
    lb_tensor copy;
    if (!copy_along(site->machine, tensor, dim, &copy)) return LB_ERR_LIMIT;
    lb_quantiser quantiser = lb_quantiser_of(site->recipe, site->role, weight_gradient);
    quantiser.own = tensor->dtype;
    quantiser.k = layout->shape[dim];
    quantiser.rows = numel / quantiser.k;
    /* The other dimension of the matrix; what stands before it is a batch. */
    quantiser.matrix_rows = layout->ndim > 2
                                ? layout->shape[site->factor->dimension == 1 ? layout->ndim - 2 : layout->ndim - 1]
                                : quantiser.rows;
    if (quantiser.cast.rounding == LB_STOCHASTIC)
        quantiser.cast.seed = key_of(site->machine, quantiser.cast.seed, site->place);
    if (quantiser.scaling == LB_SCALING_DELAYED) LB_TRY(take_scale(site, &copy, &quantiser.scale));
    lb_precision_loss loss = {0};
    LB_TRY(lb_quantise(&quantiser, copy.data, is_told(site->machine) ? &loss : NULL, site->machine->err));
    if (is_told(site->machine)) tell(site, &loss);
    *tensor = copy;
    return LB_OK;
}

static lb_status widen(const site *site, lb_tensor *tensor)
{
    lb_tensor copy;
    if (!site->wide || tensor->dtype == LB_F64) return LB_OK;
    if (!copy_of(site->machine, tensor, LB_F64, &copy)) return LB_ERR_LIMIT;
    *tensor = copy;
    return LB_OK;
}

/* A cast without scales. It is told of even where it changes nothing. */
static lb_status round_operand(const site *site, lb_tensor *tensor)
{
    const lb_recipe *recipe = site->recipe;
    const lb_dtype grid = recipe->compute ? recipe->compute : recipe->short_form;
    const bool told = is_told(site->machine),
               unchanged = is_subset(tensor->dtype, grid) && !recipe->cast.flush_subnormals;
    if (unchanged && (!told || tensor->dtype == LB_F64)) return LB_OK;
    lb_tensor copy, typed;
    if (!copy_of(site->machine, tensor, LB_F32, &copy)) return LB_ERR_LIMIT;
    lb_quantiser quantiser = {
        .scaling = LB_SCALING_NONE, .element = grid, .own = tensor->dtype, .cast = recipe->cast, .scale = 1};
    quantiser.rows = 1, quantiser.k = lb_layout_numel(&copy.layout);
    if (quantiser.cast.rounding == LB_STOCHASTIC)
        quantiser.cast.seed = key_of(site->machine, quantiser.cast.seed, site->place);
    lb_precision_loss loss = {0};
    LB_TRY(lb_quantise(&quantiser, copy.data, told ? &loss : NULL, site->machine->err));
    if (told) tell(site, &loss);
    if (unchanged || recipe->short_form) return LB_OK; /* of a type alone kernels take care themselves */
    const bool holds = is_subset(grid, tensor->dtype) && tensor->dtype != LB_F64;
    if (!copy_of(site->machine, &copy, holds ? tensor->dtype : LB_F32, &typed)) return LB_ERR_LIMIT;
    *tensor = typed;
    return LB_OK;
}

static lb_status round_tensor(site *site, lb_tensor *tensor, uint32_t value)
{
    if (!tensor->data || !lb_dtype_is_float(tensor->dtype) || lb_dtype_bits(tensor->dtype) < 8) return LB_OK;
    if (!lb_layout_numel(&tensor->layout)) return LB_OK;
    site->role = site->factor             ? (lb_precision_role)site->factor->role
                 : is_told(site->machine) ? lb_roles_of(site->machine->rounding->roles, site->machine->next, value)
                                          : LB_ROLE_INPUT;
    if (site->recipe && site->recipe->scaling && site->factor) LB_TRY(quantise_factor(site, tensor));
    if (site->recipe && !site->recipe->scaling) LB_TRY(round_operand(site, tensor));
    return widen(site, tensor);
}

/* ---- all operands ------------------------------------------------------------------------------------------------ */

static lb_status round_list(site *site, const lb_arg *arg, lb_operand *operand)
{
    const lb_program *program = site->machine->prepared->program;
    lb_tensor *tensors = lb_machine_take(site->machine, (operand->count + 1) * sizeof *tensors);
    if (!tensors) return LB_ERR_NOMEM;
    memcpy(tensors, operand->tensors, operand->count * sizeof *tensors);
    for (uint32_t i = 0; i < operand->count; i++) {
        const lb_arg *item = &program->args[arg->u.first + i];
        site->place = site->operand + 256 * (i + 1);
        if (item->tag == LB_ARG_VALUE) LB_TRY(round_tensor(site, &tensors[i], item->u.value));
    }
    operand->tensors = tensors;
    return LB_OK;
}

lb_status lb_round_operands(lb_machine *machine, const lb_op *op, lb_execution *execution)
{
    const lb_choice *choice = lb_machine_choice(machine);
    const bool wide = choice->wide_compute || choice->wide_accumulate;
    if ((!choice->recipe && !wide) || !machine->rounding || machine->is_shadow) return LB_OK;
    site site = {machine, choice->recipe, wide, lb_roles_product(machine->rounding->roles, machine->next)};
    if (site.recipe && site.recipe->short_form && !is_told(machine)) site.recipe = NULL;
    if (site.recipe && site.recipe->scaling && (!site.product || (!site.product->linear && !site.recipe->all_products)))
        site.recipe = NULL;
    if (!site.recipe && !site.wide) return LB_OK;
    for (uint32_t i = 0; i < execution->n_args; i++) {
        const lb_arg *arg = &lb_op_args(machine->prepared->program, op)[i];
        site.operand = site.place = i;
        site.factor = NULL;
        for (int f = 0; site.product && f < 2; f++)
            if (site.product->factors[f].operand == i) site.factor = &site.product->factors[f];
        if (execution->args[i].tag == LB_OPERAND_TENSOR && arg->tag == LB_ARG_VALUE)
            LB_TRY(round_tensor(&site, &execution->args[i].tensor, arg->u.value));
        else if (execution->args[i].tag == LB_OPERAND_TENSORS && arg->tag == LB_ARG_LIST)
            LB_TRY(round_list(&site, arg, &execution->args[i]));
    }
    return LB_OK;
}

static lb_status make_finite(lb_machine *machine, lb_execution *execution)
{
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        lb_tensor *window = &execution->outputs.tensors[i], copy;
        if (!window->data || !lb_dtype_is_float(window->dtype) || lb_dtype_bits(window->dtype) < 8) continue;
        const size_t n = (size_t)lb_layout_numel(&window->layout), size = lb_dtype_bits(window->dtype) / 8;
        if (!n) continue;
        if (!copy_of(machine, window, window->dtype, &copy)) return LB_ERR_LIMIT;
        for (char *element = copy.data, *end = element + n * size; element < end; element += size)
            if (!isfinite(lb_to_f64(window->dtype, element))) memset(element, 0, size);
        lb_memory_tensor_copy(window, &copy, NULL);
    }
    return LB_OK;
}

lb_status lb_round_results(lb_machine *machine, lb_execution *execution)
{
    const lb_recipe *recipe = lb_machine_choice(machine)->storage;
    if (lb_machine_choice(machine)->finite && !machine->is_shadow) LB_TRY(make_finite(machine, execution));
    if (!recipe || machine->is_shadow) return LB_OK;
    const lb_dtype grid = recipe->storage;
    for (uint32_t i = 0; i < execution->outputs.n; i++) {
        lb_tensor *window = &execution->outputs.tensors[i], copy;
        if (!window->data || window->dtype != LB_F32 || !lb_layout_numel(&window->layout)) continue;
        if (!copy_of(machine, window, LB_F32, &copy)) return LB_ERR_LIMIT;
        lb_cast cast = recipe->cast;
        if (cast.rounding == LB_STOCHASTIC) cast.seed = key_of(machine, cast.seed, PLACE_RESULTS + i);
        lb_round_to_grid_f32(copy.data, (size_t)lb_layout_numel(&copy.layout), grid, &cast);
        lb_memory_tensor_copy(window, &copy, NULL);
    }
    return LB_OK;
}
