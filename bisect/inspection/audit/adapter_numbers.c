/* The numbers of an adapter's module: A, B, lengths and the weight, dense, as the product takes them. */
#include "audit/adapter.h"

#include "orders/matmul.h"

#include <stdlib.h>
#include <string.h>

lb_status lb_adapter_tensor(const lb_inventory *inventory, const lb_inventory_name *name, int dim, float **out,
                            lb_err *err)
{
    lb_whole whole;
    LB_TRY(lb_whole_init(inventory, name, dim, &whole, err));
    *out = lb_whole_numbers(&whole, err);
    lb_whole_release(&whole);
    return *out ? LB_OK : LB_ERR_NOMEM;
}

/* Each row of A times its number of lora_E. */
static lb_status scale_rows(const lb_adapter *adapter, const lb_adapter_module *module, float *a, lb_err *err)
{
    const lb_inventory_name *rows = lb_adapter_beside(adapter->inventory, module->a->name, "lora_E");
    float *e;
    if (!rows) return LB_OK;
    if (lb_layout_numel(&adapter->inventory->checkpoint->pieces[rows->first].whole) != module->rank)
        return lb_fail(err, LB_ERR_CORRUPT, "%s: has not one number for each of A's %lld rows", rows->name,
                       (long long)module->rank);
    LB_TRY(lb_adapter_tensor(adapter->inventory, rows, -1, &e, err));
    for (int64_t r = 0; r < module->rank; r++)
        for (int64_t i = 0; i < module->in; i++) a[r * module->in + i] *= e[r];
    free(e);
    return LB_OK;
}

/* B of a grouped convolution [out, rank / groups] as B of a matrix [out, rank]: zero where an output reads another
 * group's ranks. */
static lb_status spread_groups(const lb_adapter_module *module, float **b, lb_err *err)
{
    if (module->groups < 2) return LB_OK;
    const int64_t own = module->rank / module->groups, outputs = module->out / module->groups;
    float *wide =
        module->out % module->groups ? NULL : (float *)calloc((size_t)(module->out * module->rank), sizeof *wide);
    if (!wide)
        return lb_fail(err, module->out % module->groups ? LB_ERR_CORRUPT : LB_ERR_NOMEM,
                       "%s: %lld rows in %lld groups", module->module, (long long)module->out,
                       (long long)module->groups);
    for (int64_t o = 0; o < module->out; o++)
        memcpy(wide + o * module->rank + o / outputs * own, *b + o * own, (size_t)own * sizeof *wide);
    free(*b);
    *b = wide;
    return LB_OK;
}

lb_status lb_adapter_numbers(const lb_adapter *adapter, const lb_adapter_module *module, float **a, float **b,
                             lb_err *err)
{
    *a = *b = NULL;
    LB_TRY(
        lb_adapter_tensor(adapter->inventory, module->a, lb_adapter_cut(adapter->inventory, module->a, false), a, err));
    lb_status status = scale_rows(adapter, module, *a, err);
    if (status == LB_OK)
        status = lb_adapter_tensor(adapter->inventory, module->b, lb_adapter_cut(adapter->inventory, module->b, true),
                                   b, err);
    if (status == LB_OK) status = spread_groups(module, b, err);
    if (status != LB_OK) free(*a), free(*b), *a = *b = NULL;
    return status;
}

lb_status lb_adapter_lengths(const lb_adapter *adapter, const lb_adapter_module *module, float **lengths, lb_err *err)
{
    *lengths = NULL;
    if (!module->lengths) return LB_OK;
    return lb_adapter_tensor(adapter->inventory, module->lengths,
                             lb_adapter_cut(adapter->inventory, module->lengths, true), lengths, err);
}

lb_status lb_adapter_weight(const lb_adapter_module *module, float **w, lb_err *err)
{
    LB_TRY(lb_adapter_tensor(module->held, module->weight, -1, w, err));
    if (!module->transposed) return LB_OK;
    float *turned = (float *)malloc((size_t)(module->in * module->out) * sizeof *turned);
    for (int64_t i = 0; turned && i < module->in; i++)
        for (int64_t o = 0; o < module->out; o++) turned[o * module->in + i] = (*w)[i * module->out + o];
    free(*w);
    *w = turned;
    return turned ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

void lb_adapter_round(float *x, size_t n, lb_dtype dtype)
{
    if (dtype != LB_F32) lb_round_to_grid_f32(x, n, dtype, NULL);
}

/* c [out, in] = b [out, rank] a [rank, in]. */
lb_status lb_adapter_outer(const lb_adapter_operands *operands, const float *a, const float *b, float *c)
{
    const lb_matrix left = {b, LB_F32, (ptrdiff_t)operands->rank, 1}, right = {a, LB_F32, (ptrdiff_t)operands->in, 1};
    return lb_matmul_f32(operands->out, operands->in, operands->rank, &left, &right, c, (ptrdiff_t)operands->in, NULL);
}
