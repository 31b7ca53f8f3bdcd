/* What differs as a window begins, in classes: see apart_sources.h. */
#include "sources/apart_sources.h"

#include "base/array.h"
#include "program/state_name.h"
#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIKE 10.0

/* ---- measured ---- */

static bool is_compared(const lb_step_sources *b, const lb_contents *contents, uint32_t row)
{
    const lb_content *c = &contents->list[row];
    const lb_tensor *t = &b->tensors[row].tensor;
    if (!t->data || !lb_dtype_is_float(t->dtype) || lb_layout_numel(&t->layout) < 2 || !c->n || c->cast) return false;
    return c->relation != LB_CONTENT_MOVED &&
           (b->list[row].learnt || b->list[row].kept || b->list[row].kind == LB_SOURCE_CARRIED);
}

static bool is_state(const lb_step_source *s)
{
    return !s->learnt || lb_step_source_is_state(s);
}

/* False when out of memory. */
static bool measure(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents, uint32_t row,
                    lb_apart_sources *out)
{
    const lb_tensor *t = &b->tensors[row].tensor;
    const char *name = b->list[row].name, *other_name = a->list[contents->runs[contents->list[row].first].tensor].name;
    double *other = lb_step_sources_taken(a, b, contents, row), *own = other ? lb_shadow_numbers_copy(t) : NULL;
    double sizes[2] = {0}, apart = 0; /* squared */
    for (int64_t i = 0; own && i < lb_layout_numel(&t->layout); i++) {
        sizes[0] += other[i] * other[i], sizes[1] += own[i] * own[i];
        apart += (own[i] - other[i]) * (own[i] - other[i]);
    }
    const bool room = !other || own;
    free(other), free(own);
    if (!room || !(apart > 0)) return room;
    lb_apart_source *more = lb_array_grow(out->list, out->n, sizeof *more);
    if (!more) return false;
    out->list = more;
    out->list[out->n++] = (lb_apart_source){row, *name ? name : other_name, is_state(&b->list[row]),
                                            sizes[0] > 0 ? sqrt(apart / sizes[0]) : INFINITY,
                                            sizes[0] == 0   ? 1
                                            : sizes[1] == 0 ? 2
                                                            : 0};
    return true;
}

lb_status lb_apart_sources_measure(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents,
                                   lb_apart_sources *out, lb_err *err)
{
    bool room = true;
    for (uint32_t i = 0; i < b->n && room; i++) {
        if (!is_compared(b, contents, i)) continue;
        out->of[is_state(&b->list[i])]++;
        room = measure(a, b, contents, i, out);
    }
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for what a window begins with");
}

void lb_apart_sources_release(lb_apart_sources *apart)
{
    free(apart->list);
    *apart = (lb_apart_sources){0};
}

/* ---- in words ---- */

typedef struct speaker {
    const lb_apart_sources *apart;
    void *context;
    void (*say)(void *context, const char *text);
} speaker;

/* Of all that were compared, those that are equal too; NaN when out of memory. */
static double median_of(const lb_apart_sources *all, bool state)
{
    double *list = calloc(all->of[state] + 1u, sizeof *list);
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n && list; i++)
        if (all->list[i].state == state) list[n++] = all->list[i].distance;
    if (list) qsort(list, all->of[state], sizeof *list, lb_by_f64);
    const double median = list ? list[all->of[state] / 2] : NAN;
    free(list);
    return median;
}

/* How many letters of a name stand before what lies in its layer: "h.1" of "h.1.down.weight"; 0: it is of no layer. */
static size_t layer_length(const char *name)
{
    const lb_step_source_number number = lb_step_source_number_in(name);
    return number.at + number.digits;
}

static const char *parameter_of(const lb_apart_source *one)
{
    return lb_state_name_parameter(one->name);
}

/* Those that lie beyond the rest: of one layer, of one tensor, or of several. */
typedef struct beyond {
    uint32_t n;
    const char *name; /* the first one's parameter */
    bool one_layer, one_tensor;
    const lb_apart_source *largest;
} beyond;

static beyond list_beyond(const speaker *speaker, bool state, double limit)
{
    beyond found = {.one_layer = true, .one_tensor = true};
    for (uint32_t i = 0; i < speaker->apart->n; i++) {
        const lb_apart_source *one = &speaker->apart->list[i];
        if (one->state != state || !(one->distance > limit)) continue;
        const char *name = parameter_of(one);
        if (!found.n++) found.name = name;
        const size_t length = layer_length(found.name);
        found.one_tensor &= *name && !strcmp(name, found.name);
        found.one_layer &= length && layer_length(name) == length && !strncmp(name, found.name, length);
        if (!found.largest || one->distance > found.largest->distance) found.largest = one;
    }
    return found;
}

static void say_beyond(const speaker *speaker, bool state, const beyond *found)
{
    char text[500], which[220];
    const char *kind = state ? "states" : "weights";
    if (found->one_tensor || found->n == 1)
        snprintf(which, sizeof which, "%s%.160s alone", state ? "the states of " : "",
                 *found->name ? found->name : "one tensor without a name");
    else if (found->one_layer)
        snprintf(which, sizeof which, "the %s of layer %.*s alone (%u tensors)", kind, (int)layer_length(found->name),
                 found->name, found->n);
    else
        snprintf(which, sizeof which, "the %s of %u of %u tensors", kind, found->n, speaker->apart->of[state]);
    snprintf(text, sizeof text, "%s, by up to %.1g of their size (%.160s)", which, found->largest->distance,
             *found->largest->name ? found->largest->name : "without a name");
    speaker->say(speaker->context, text);
}

/* All states that one side has are zeros: they were not loaded. */
static bool say_lost(const speaker *speaker)
{
    uint32_t zero[3] = {0}, n = 0;
    char text[200];
    for (uint32_t i = 0; i < speaker->apart->n; i++)
        if (speaker->apart->list[i].state) zero[speaker->apart->list[i].zero]++, n++;
    for (int k = 1; k < 3; k++) {
        if (2 * zero[k] <= n || 2 * zero[k] <= speaker->apart->of[1]) continue;
        snprintf(text, sizeof text, "%u states of the optimizer, which are all zero on the %s side", zero[k],
                 k == 1 ? "first" : "second");
        speaker->say(speaker->context, text);
        return true;
    }
    return false;
}

static void say_kind(const speaker *speaker, bool state)
{
    const double median = median_of(speaker->apart, state);
    uint32_t alike = 0;
    char text[200];
    for (uint32_t i = 0; i < speaker->apart->n; i++)
        alike += speaker->apart->list[i].state == state && speaker->apart->list[i].distance <= ALIKE * median;
    const beyond found = list_beyond(speaker, state, ALIKE * median);
    if (found.n) say_beyond(speaker, state, &found);
    if (!alike) return;
    snprintf(text, sizeof text, "the %s of %u of %u tensors alike, by about %.1g of their size",
             state ? "states" : "weights", alike, speaker->apart->of[state], median);
    speaker->say(speaker->context, text);
}

void lb_apart_sources_text(const lb_apart_sources *apart, void *context, void (*say)(void *context, const char *text))
{
    const speaker s = {apart, context, say};
    if (!apart->n) return;
    say_kind(&s, false);
    if (!say_lost(&s)) say_kind(&s, true);
}
