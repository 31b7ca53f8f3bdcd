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

static uint32_t find_name(const lb_step_sources *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (strcmp(s->list[i].name, name) == 0) return i;
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

static bool is_matrix(const lb_content_tensor *t)
{
    return t->tensor.data && t->tensor.layout.ndim == 2 && lb_dtype_is_float(t->tensor.dtype);
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

static void release(matrices *m)
{
    free(m->base), free(m->down), free(m->up), free(m->whole), free(m->product), free(m->most);
}

static void multiply(matrices *m)
{
    for (int64_t i = 0; i < m->out; i++)
        for (int64_t j = 0; j < m->in; j++) {
            const int64_t at = m->turned ? j * m->out + i : i * m->in + j;
            double sum = 0, most = 0;
            for (int64_t k = 0; k < m->rank; k++) {
                const double term = m->up[i * m->rank + k] * m->down[k * m->in + j];
                sum += term, most += fabs(term);
            }
            m->product[at] = sum, m->most[at] = most;
        }
}

/* W - W0 = s B A to within what rounding each of W0, A B, s (A B) and W can do; and s is no chance: ten times its own
 * error. */
static bool is_sum(const matrices *m, double unit, double *scale)
{
    const int64_t n = m->out * m->in;
    double dp = 0, pp = 0, left = 0;
    for (int64_t i = 0; i < n; i++)
        dp += (m->whole[i] - m->base[i]) * m->product[i], pp += m->product[i] * m->product[i];
    if (!(pp > 0)) return false;
    *scale = dp / pp;
    for (int64_t i = 0; i < n; i++) {
        const double far = fabs(m->whole[i] - m->base[i] - *scale * m->product[i]);
        const double room = fabs(m->whole[i]) + fabs(m->base[i]) + 2 * fabs(*scale) * m->most[i];
        if (!(far <= 2 * unit * room)) return false;
        left += far * far;
    }
    return *scale != 0 && *scale * *scale * pp >= 100 * left / (double)n;
}

static bool load(const lb_step_sources *online, const lb_step_sources *merged, const lb_merged_adapter *x, matrices *m)
{
    const lb_layout *w = &online->tensors[x->base].tensor.layout, *a = &online->tensors[x->down].tensor.layout,
                    *b = &online->tensors[x->up].tensor.layout;
    m->rank = a->shape[0], m->in = a->shape[1], m->out = b->shape[0];
    m->turned = !(w->shape[0] == m->out && w->shape[1] == m->in);
    const size_t bytes = (size_t)(m->out * m->in) * sizeof *m->product;
    m->base = lb_shadow_numbers_copy(&online->tensors[x->base].tensor);
    m->down = lb_shadow_numbers_copy(&online->tensors[x->down].tensor);
    m->up = lb_shadow_numbers_copy(&online->tensors[x->up].tensor);
    m->whole = lb_shadow_numbers_copy(&merged->tensors[x->whole].tensor);
    m->product = malloc(bytes), m->most = malloc(bytes);
    return m->base && m->down && m->up && m->whole && m->product && m->most;
}

static bool fits(const lb_step_sources *online, const lb_step_sources *merged, const lb_merged_adapter *x)
{
    const lb_content_tensor *w0 = &online->tensors[x->base], *a = &online->tensors[x->down],
                            *b = &online->tensors[x->up], *w = &merged->tensors[x->whole];
    if (!is_matrix(w0) || !is_matrix(a) || !is_matrix(b) || !is_matrix(w)) return false;
    const int64_t out = b->tensor.layout.shape[0], in = a->tensor.layout.shape[1];
    const int64_t *s = w0->tensor.layout.shape;
    return a->tensor.layout.shape[0] == b->tensor.layout.shape[1] &&
           lb_layout_same_shape(&w0->tensor.layout, &w->tensor.layout) &&
           ((s[0] == out && s[1] == in) || (s[0] == in && s[1] == out));
}

static lb_status check(const lb_step_sources *online, const lb_step_sources *merged, lb_merged_adapter *x, bool *holds,
                       lb_err *err)
{
    matrices m = {0};
    double unit = unit_of(merged->tensors[x->whole].tensor.dtype);
    unit = fmax(unit, unit_of(online->tensors[x->base].tensor.dtype));
    const bool room = load(online, merged, x, &m);
    if (room) multiply(&m);
    *holds = room && is_sum(&m, unit, &x->scale);
    if (room && !*holds && m.in == m.out) { /* a square matrix may be turned, too */
        m.turned = !m.turned;
        multiply(&m);
        *holds = is_sum(&m, unit, &x->scale);
    }
    release(&m);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for an adapter");
}

/* ---- all of them ---- */

/* The adapter whose A is `row`; false where its B or its base is not there. */
static bool adapter_at(const lb_step_sources *online, uint32_t row, lb_merged_adapter *x, size_t *stem)
{
    const char *name = online->list[row].name, *behind = "";
    char other[600];
    *stem = stem_of(name, &behind);
    if (!*stem || *stem > 400 || strlen(behind) > 100) return false;
    x->down = row;
    snprintf(other, sizeof other, "%.*s.lora_B%s", (int)*stem, name, behind);
    x->up = find_name(online, other);
    snprintf(other, sizeof other, "%.*s.base_layer.weight", (int)*stem, name);
    x->base = find_name(online, other);
    return x->up != LB_NONE && x->base != LB_NONE;
}

static lb_status find_side(const lb_step_sources *online, const lb_step_sources *merged, int side, uint32_t most,
                           lb_merged_adapter **list, uint32_t *n, lb_err *err)
{
    for (uint32_t i = 0; i < online->n && *n < most; i++) {
        lb_merged_adapter x = {.online = side};
        size_t stem;
        if (!adapter_at(online, i, &x, &stem)) continue;
        for (x.whole = 0; x.whole < merged->n; x.whole++) {
            const char *name = merged->list[x.whole].name;
            size_t length = without_end(name, strlen(name), ".weight");
            length = without_end(name, length, ".base_layer");
            bool holds = false;
            if (!same_place(name, length, online->list[i].name, stem) || !fits(online, merged, &x)) continue;
            LB_TRY(check(online, merged, &x, &holds, err));
            lb_merged_adapter *more = holds ? lb_array_grow(*list, *n, sizeof *more) : NULL;
            if (!holds) continue;
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory for adapters");
            *list = more, more[(*n)++] = x;
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
