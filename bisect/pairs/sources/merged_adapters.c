/* See merged_adapters.h. */
#include "sources/merged_adapters.h"

#include "shadow/shadow_numbers.h"

#include "base/array.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* "X.lora_A.default.weight": the length of X, and what stands behind lora_A; 0: it is no such name. */
static size_t stem_of(const char *name, const char **behind)
{
    const char *at = strstr(name, ".lora_A");
    if (!at || (at[7] != '.' && at[7] != '\0')) return 0;
    *behind = at + 7;
    return (size_t)(at - name);
}

static uint32_t find_name(const lb_step_sources *sources, const char *name)
{
    for (uint32_t i = 0; i < sources->n; i++)
        if (strcmp(sources->list[i].name, name) == 0) return i;
    return LB_NONE;
}

/* One of two paths is the end of the other: a wrapper puts words before it. */
static bool same_place(const char *x, size_t n, const char *y, size_t m)
{
    const size_t least = n < m ? n : m;
    if (!least || strncmp(x + n - least, y + m - least, least) != 0) return false;
    return n == m || (n > m ? x[n - m - 1] : y[m - n - 1]) == '.';
}

static size_t without_end(const char *name, size_t n, const char *end)
{
    const size_t m = strlen(end);
    return n > m && strncmp(name + n - m, end, m) == 0 ? n - m : n;
}

/* ---- numbers ---- */

static bool is_matrix(const lb_content_tensor *tensor)
{
    return tensor->tensor.data && tensor->tensor.layout.ndim == 2 && lb_dtype_is_float(tensor->tensor.dtype);
}

static double unit_of(lb_dtype dtype)
{
    return dtype == LB_BF16 ? 0x1p-8 : dtype == LB_F16 ? 0x1p-11 : dtype == LB_F64 ? 0x1p-53 : 0x1p-24;
}

typedef struct matrices {
    /* `most`: the sum of |B| |A|, which bounds the rounding of their sum */
    double *base, *down, *up, *whole, *product, *most;
    int64_t out, in, rank;
    bool turned; /* W0 is (in, out), as in GPT-2's Conv1D */
} matrices;

static void release(matrices *matrices)
{
    free(matrices->base), free(matrices->down), free(matrices->up), free(matrices->whole), free(matrices->product),
        free(matrices->most);
}

static void multiply(matrices *matrices)
{
    for (int64_t i = 0; i < matrices->out; i++)
        for (int64_t j = 0; j < matrices->in; j++) {
            const int64_t at = matrices->turned ? j * matrices->out + i : i * matrices->in + j;
            double sum = 0, most = 0;
            for (int64_t k = 0; k < matrices->rank; k++) {
                const double term = matrices->up[i * matrices->rank + k] * matrices->down[k * matrices->in + j];
                sum += term, most += fabs(term);
            }
            matrices->product[at] = sum, matrices->most[at] = most;
        }
}

/* W - W0 = s B A to within what rounding each of W0, A B, s (A B) and W can do; and s is no chance: ten times its own
 * error. */
static bool is_sum(const matrices *matrices, double unit, double *scale)
{
    const int64_t n = matrices->out * matrices->in;
    double dp = 0, pp = 0, left = 0;
    for (int64_t i = 0; i < n; i++)
        dp += (matrices->whole[i] - matrices->base[i]) * matrices->product[i],
            pp += matrices->product[i] * matrices->product[i];
    if (!(pp > 0)) return false;
    *scale = dp / pp;
    for (int64_t i = 0; i < n; i++) {
        const double far = fabs(matrices->whole[i] - matrices->base[i] - *scale * matrices->product[i]);
        const double room = fabs(matrices->whole[i]) + fabs(matrices->base[i]) + 2 * fabs(*scale) * matrices->most[i];
        if (!(far <= 2 * unit * room)) return false;
        left += far * far;
    }
    return *scale != 0 && *scale * *scale * pp >= 100 * left / (double)n;
}

static bool load(const lb_step_sources *online, const lb_step_sources *merged, const lb_merged_adapter *adapter,
                 matrices *matrices)
{
    const lb_layout *w = &online->tensors[adapter->base].tensor.layout,
                    *a = &online->tensors[adapter->down].tensor.layout,
                    *b = &online->tensors[adapter->up].tensor.layout;
    matrices->rank = a->shape[0], matrices->in = a->shape[1], matrices->out = b->shape[0];
    matrices->turned = !(w->shape[0] == matrices->out && w->shape[1] == matrices->in);
    const size_t bytes = (size_t)(matrices->out * matrices->in) * sizeof *matrices->product;
    matrices->base = lb_shadow_numbers_copy(&online->tensors[adapter->base].tensor);
    matrices->down = lb_shadow_numbers_copy(&online->tensors[adapter->down].tensor);
    matrices->up = lb_shadow_numbers_copy(&online->tensors[adapter->up].tensor);
    matrices->whole = lb_shadow_numbers_copy(&merged->tensors[adapter->whole].tensor);
    matrices->product = malloc(bytes), matrices->most = malloc(bytes);
    return matrices->base && matrices->down && matrices->up && matrices->whole && matrices->product && matrices->most;
}

static bool fits(const lb_step_sources *online, const lb_step_sources *merged, const lb_merged_adapter *adapter)
{
    const lb_content_tensor *w0 = &online->tensors[adapter->base], *a = &online->tensors[adapter->down],
                            *b = &online->tensors[adapter->up], *w = &merged->tensors[adapter->whole];
    if (!is_matrix(w0) || !is_matrix(a) || !is_matrix(b) || !is_matrix(w)) return false;
    const int64_t out = b->tensor.layout.shape[0], in = a->tensor.layout.shape[1];
    const int64_t *s = w0->tensor.layout.shape;
    return a->tensor.layout.shape[0] == b->tensor.layout.shape[1] &&
           lb_layout_same_shape(&w0->tensor.layout, &w->tensor.layout) &&
           ((s[0] == out && s[1] == in) || (s[0] == in && s[1] == out));
}

static lb_status check(const lb_step_sources *online, const lb_step_sources *merged, lb_merged_adapter *adapter,
                       bool *holds, lb_err *err)
{
    matrices matrices = {0};
    double unit = unit_of(merged->tensors[adapter->whole].tensor.dtype);
    unit = fmax(unit, unit_of(online->tensors[adapter->base].tensor.dtype));
    const bool room = load(online, merged, adapter, &matrices);
    if (room) multiply(&matrices);
    *holds = room && is_sum(&matrices, unit, &adapter->scale);
    if (room && !*holds && matrices.in == matrices.out) { /* a square matrix may be turned, too */
        matrices.turned = !matrices.turned;
        multiply(&matrices);
        *holds = is_sum(&matrices, unit, &adapter->scale);
    }
    release(&matrices);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for an adapter");
}

/* ---- all of them ---- */

/* The adapter whose A is `row`; false where its B or its base is not there. */
static bool adapter_at(const lb_step_sources *online, uint32_t row, lb_merged_adapter *adapter, size_t *stem)
{
    const char *name = online->list[row].name, *behind = "";
    char other[600];
    *stem = stem_of(name, &behind);
    if (!*stem || *stem > 400 || strlen(behind) > 100) return false;
    adapter->down = row;
    snprintf(other, sizeof other, "%.*s.lora_B%s", (int)*stem, name, behind);
    adapter->up = find_name(online, other);
    snprintf(other, sizeof other, "%.*s.base_layer.weight", (int)*stem, name);
    adapter->base = find_name(online, other);
    return adapter->up != LB_NONE && adapter->base != LB_NONE;
}

static lb_status find_side(const lb_step_sources *online, const lb_step_sources *merged, int side, uint32_t most,
                           lb_merged_adapter **list, uint32_t *n, lb_err *err)
{
    for (uint32_t i = 0; i < online->n && *n < most; i++) {
        lb_merged_adapter adapter = {.online = side};
        size_t stem;
        if (!adapter_at(online, i, &adapter, &stem)) continue;
        for (adapter.whole = 0; adapter.whole < merged->n; adapter.whole++) {
            const char *name = merged->list[adapter.whole].name;
            size_t length = without_end(name, strlen(name), ".weight");
            length = without_end(name, length, ".base_layer");
            bool holds = false;
            if (!same_place(name, length, online->list[i].name, stem) || !fits(online, merged, &adapter)) continue;
            LB_TRY(check(online, merged, &adapter, &holds, err));
            lb_merged_adapter *more = holds ? lb_array_grow(*list, *n, sizeof *more) : NULL;
            if (!holds) continue;
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for adapters");
            *list = more, more[(*n)++] = adapter;
            break;
        }
    }
    return LB_OK;
}

lb_status lb_merged_adapters_find(const lb_step_sources *a, const lb_step_sources *b, uint32_t most,
                                  lb_merged_adapter **list, uint32_t *n, lb_err *err)
{
    *list = NULL, *n = 0;
    lb_status status = find_side(a, b, 0, most, list, n, err);
    if (status == LB_OK) status = find_side(b, a, 1, most, list, n, err);
    if (status != LB_OK) free(*list), *list = NULL, *n = 0;
    return status;
}
