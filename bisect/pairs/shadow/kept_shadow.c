/* Keeping shadows: see kept_shadow.h. */
#include "shadow/kept_shadow.h"

#include "shadow/block_sums.h"
#include "shadow/shadow_numbers.h"

#include <stdlib.h>

int64_t lb_kept_shadow_elements(const lb_event *event, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (event->values[k] == event->values[i]) return -1;
    return event->shadow[i].data ? lb_layout_numel(&event->shadow[i].layout) : -1;
}

/* ---- of an op ---- */

/* Below that an op's numbers are kept as they are. */
enum { MANY = 1 << 14 };

static bool has_many(const lb_event *event)
{
    int64_t elements = 0;
    for (uint32_t i = 0; i < event->n_results; i++) {
        const int64_t n = lb_kept_shadow_elements(event, i);
        elements += n > 0 ? n : 0;
    }
    return elements > MANY;
}

static bool list_results(lb_kept_shadow *k, const lb_event *event)
{
    const size_t n = event->n_results + (size_t)1;
    int64_t at = 0;
    k->n_results = event->n_results;
    k->elements = calloc(2 * n, sizeof *k->elements), k->noise = calloc(2 * n, sizeof *k->noise);
    if (!k->elements || !k->noise) return false;
    k->starts = k->elements + n, k->largest = k->noise + n;
    for (uint32_t i = 0; i < k->n_results; i++) {
        const int64_t elements = k->elements[i] = lb_kept_shadow_elements(event, i);
        k->starts[i] = at;
        if (elements > 0) at += k->summed ? lb_block_sums_count(elements) : elements;
    }
    k->starts[k->n_results] = at;
    return true;
}

int64_t lb_kept_shadow_total(const lb_kept_shadow *k)
{
    return k->elements ? k->starts[k->n_results] : 0;
}

bool lb_kept_shadow_take(lb_kept_shadow *k, const lb_event *event, bool whole, uint64_t *room)
{
    if (k->elements) return true;
    k->summed = !whole && has_many(event);
    if (list_results(k, event)) {
        const uint64_t bytes = (uint64_t)lb_kept_shadow_total(k) * sizeof(double);
        if (bytes <= *room) k->numbers = malloc(bytes ? bytes : 1);
        if (k->numbers) *room -= bytes;
    }
    if (!k->numbers) {
        free(k->elements), free(k->noise);
        *k = (lb_kept_shadow){0};
        return false;
    }
    for (uint32_t i = 0; i < k->n_results; i++) {
        if (k->elements[i] < 0) continue;
        if (k->summed)
            lb_block_sums_of(&event->shadow[i], k->numbers + k->starts[i], &k->largest[i], NULL);
        else
            lb_shadow_numbers(&event->shadow[i], k->numbers + k->starts[i]);
    }
    return true;
}

void lb_kept_shadow_release(lb_kept_shadow *k, uint64_t *room)
{
    *room += (uint64_t)lb_kept_shadow_total(k) * sizeof(double);
    free(k->numbers), free(k->elements), free(k->noise);
    *k = (lb_kept_shadow){0};
}

void lb_kept_shadow_measure(lb_kept_shadow *k, const lb_event *disturbed)
{
    if (!k->numbers || k->n_results != disturbed->n_results) return;
    for (uint32_t i = 0; i < k->n_results; i++) {
        const int64_t n = k->elements[i];
        if (n < 0 || lb_kept_shadow_elements(disturbed, i) != n) continue;
        if (!k->summed) {
            k->noise[i] = lb_shadow_noise_of(k->numbers + k->starts[i], &disturbed->shadow[i]);
            continue;
        }
        const int64_t count = lb_block_sums_count(n);
        double *x = malloc((size_t)(count + 1) * sizeof *x);
        if (x) {
            lb_block_sums_of(&disturbed->shadow[i], x, NULL, NULL);
            k->noise[i] = lb_block_sums_noise(k->numbers + k->starts[i], x, count);
        }
        free(x);
    }
}

/* ---- of a value ---- */

void lb_kept_value_take(lb_kept_value *v, const lb_tensor *shadow)
{
    free(v->numbers);
    *v = (lb_kept_value){.numbers = lb_shadow_numbers_copy(shadow), .elements = lb_layout_numel(&shadow->layout)};
}

void lb_kept_value_measure(lb_kept_value *v, const lb_tensor *disturbed)
{
    if (!v->numbers || v->elements != lb_layout_numel(&disturbed->layout)) return;
    v->noise = lb_shadow_noise_of(v->numbers, disturbed);
}

void lb_kept_values_free(lb_kept_value *list, uint32_t n)
{
    for (uint32_t i = 0; list && i < n; i++) free(list[i].numbers);
    free(list);
}
