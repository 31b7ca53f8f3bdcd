/* Parts of named tensors: see held_part.h. */
#include "pair/held_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lb_extent *extents_of(const lb_held_part *h, uint32_t *n)
{
    const lb_program *p = h->side->program;
    *n = h->shard ? h->shard->extents : (uint32_t)p->values[h->value].layout.ndim;
    return h->shard ? p->extents + h->shard->first_extent : h->own;
}

lb_layout lb_held_part_whole(const lb_held_part *h)
{
    if (h->shard) return lb_shard_whole(h->side->program, h->shard);
    return h->side->program->values[h->value].layout;
}

/* ---- runs ---- */

typedef struct passage {
    lb_held_run *run;
    void *context;
    int64_t done;
} passage;

static void pass_run(passage *p, int64_t whole, int64_t n)
{
    if (n) p->run(p->context, whole, p->done, n);
    p->done += n;
}

/* Ranges of one dimension, and those of the dimensions behind it. */
static void pass_extents(passage *p, const lb_extent *e, uint32_t n, int64_t base)
{
    uint32_t own = 1, behind;
    int64_t inner = 1;
    bool all = true;
    if (!n) {
        pass_run(p, base, 1);
        return;
    }
    while (own < n && e[own].dim == e[0].dim) own++;
    for (behind = own; behind < n; behind++) {
        if (behind == own || e[behind].dim != e[behind - 1].dim) inner *= e[behind].whole;
        all &= e[behind].size == e[behind].whole;
    }
    for (uint32_t i = 0; i < own; i++) {
        if (all) pass_run(p, base + e[i].from * inner, e[i].size * inner);
        for (int64_t k = 0; !all && k < e[i].size; k++)
            pass_extents(p, e + own, n - own, base + (e[i].from + k) * inner);
    }
}

void lb_held_part_runs(const lb_held_part *h, lb_held_run *run, void *context)
{
    uint32_t n;
    const lb_extent *extents = extents_of(h, &n);
    passage p = {.run = run, .context = context};
    if (!lb_shard_extents_are_flat(extents, n)) {
        pass_extents(&p, extents, n, 0);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (extents[i].dim == LB_EXTENT_FLAT) pass_run(&p, extents[i].from, extents[i].size);
}

/* ---- bytes and text ---- */

uint8_t *lb_held_part_bytes(const lb_held_part *h, size_t element)
{
    lb_tensor t;
    if (lb_program_view_value(h->side, h->value, &t, NULL) != LB_OK) return NULL;
    const int64_t all = lb_layout_numel(&t.layout);
    if (lb_dtype_bits(t.dtype) != 8 * element || h->at > all || h->elements > all - h->at) return NULL;
    const bool dense = lb_layout_is_contiguous(&t.layout);
    if (dense) t.layout = lb_layout_contiguous(1, &h->elements), t.data = (uint8_t *)t.data + (size_t)h->at * element;
    uint8_t *bytes = malloc((size_t)(dense ? h->elements : all) * element + 1);
    if (!bytes || lb_tensor_gather(&t, bytes, NULL) != LB_OK) {
        free(bytes);
        return NULL;
    }
    if (!dense && h->at) memmove(bytes, bytes + (size_t)h->at * element, (size_t)h->elements * element);
    return bytes;
}

void lb_held_part_shape_text(const lb_layout *l, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < l->ndim && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? ", " : "", (long long)l->shape[d]);
    if (used < size) snprintf(text + used, size - used, "]");
}

void lb_held_part_text(const lb_held_part *h, char *text, size_t size)
{
    char all[400];
    if (h->shard) {
        lb_shard_text(h->side->program, h->shard, all, sizeof all);
        const char *range = strstr(all, "elements [");
        if (!range) range = strchr(all, '[');
        const lb_layout *l = &h->side->program->values[h->value].layout;
        const bool more = lb_shard_is_flat(h->side->program, h->shard) && lb_layout_numel(l) > h->elements;
        const int used = snprintf(text, size, "%.110s", range ? range : all);
        if (more) snprintf(text + used, size - (size_t)used, ", flat among %lld", (long long)lb_layout_numel(l));
        return;
    }
    lb_held_part_shape_text(&h->side->program->values[h->value].layout, text, size);
}

/* ---- images ---- */

bool lb_held_image_open(lb_held_image *image, const lb_layout *whole, size_t element)
{
    const size_t n = (size_t)lb_layout_numel(whole);
    *image = (lb_held_image){calloc(n + 1, element), calloc(n + 1, 1), element};
    return image->bytes && image->there;
}

void lb_held_image_release(lb_held_image *image)
{
    free(image->bytes), free(image->there);
    *image = (lb_held_image){0};
}

/* One way through a part's runs. */
typedef struct drawing {
    const lb_held_image *image;
    const uint8_t *from;
    uint8_t *to;
    bool found;
} drawing;

static void draw_run(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *d = context;
    const size_t size = d->image->element;
    for (int64_t i = 0; i < n; i++) {
        if (d->image->there[whole + i]) continue;
        memcpy(d->image->bytes + (size_t)(whole + i) * size, d->from + (size_t)(at + i) * size, size);
        d->image->there[whole + i] = 1;
    }
}

static void cut_run(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *d = context;
    const size_t size = d->image->element;
    for (int64_t i = 0; i < n; i++)
        if (d->image->there[whole + i])
            memcpy(d->to + (size_t)(at + i) * size, d->image->bytes + (size_t)(whole + i) * size, size);
}

static void seek_gap(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *d = context;
    (void)at;
    d->found |= memchr(d->image->there + whole, 0, (size_t)n) != NULL;
}

static void seek_other(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *d = context;
    const size_t size = d->image->element;
    if (d->found || !memcmp(d->image->bytes + (size_t)whole * size, d->from + (size_t)at * size, (size_t)n * size))
        return;
    for (int64_t i = 0; i < n && !d->found; i++)
        d->found = d->image->there[whole + i] &&
                   memcmp(d->image->bytes + (size_t)(whole + i) * size, d->from + (size_t)(at + i) * size, size);
}

void lb_held_image_draw(lb_held_image *image, const lb_held_part *part, const uint8_t *bytes)
{
    lb_held_part_runs(part, draw_run, &(drawing){.image = image, .from = bytes});
}

void lb_held_image_cut(const lb_held_image *image, const lb_held_part *part, uint8_t *bytes)
{
    lb_held_part_runs(part, cut_run, &(drawing){.image = image, .to = bytes});
}

bool lb_held_image_lacks(const lb_held_image *image, const lb_held_part *part)
{
    drawing d = {.image = image};
    lb_held_part_runs(part, seek_gap, &d);
    return d.found;
}

bool lb_held_image_differs(const lb_held_image *image, const lb_held_part *part, const uint8_t *bytes)
{
    drawing d = {.image = image, .from = bytes};
    lb_held_part_runs(part, seek_other, &d);
    return d.found;
}
