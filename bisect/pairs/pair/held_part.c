/* Parts of named tensors: see held_part.h. */
#include "pair/held_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const lb_extent *extents_of(const lb_held_part *part, uint32_t *n)
{
    const lb_program *program = part->side->program;
    *n = part->shard ? part->shard->extents : (uint32_t)program->values[part->value].layout.ndim;
    return part->shard ? program->extents + part->shard->first_extent : part->own;
}

lb_layout lb_held_part_whole(const lb_held_part *part)
{
    if (part->shard) return lb_shard_whole(part->side->program, part->shard);
    return part->side->program->values[part->value].layout;
}

/* ---- runs ---- */

typedef struct passage {
    lb_held_run *run;
    void *context;
    int64_t done;
} passage;

static void pass_run(passage *passage, int64_t whole, int64_t n)
{
    if (n) passage->run(passage->context, whole, passage->done, n);
    passage->done += n;
}

/* Ranges of one dimension, and those of the dimensions behind it. */
static void pass_extents(passage *passage, const lb_extent *extent, uint32_t n, int64_t base)
{
    uint32_t own = 1, behind;
    int64_t inner = 1;
    bool all = true;
    if (!n) {
        pass_run(passage, base, 1);
        return;
    }
    while (own < n && extent[own].dim == extent[0].dim) own++;
    for (behind = own; behind < n; behind++) {
        if (behind == own || extent[behind].dim != extent[behind - 1].dim) inner *= extent[behind].whole;
        all &= extent[behind].size == extent[behind].whole;
    }
    for (uint32_t i = 0; i < own; i++) {
        if (all) pass_run(passage, base + extent[i].from * inner, extent[i].size * inner);
        for (int64_t k = 0; !all && k < extent[i].size; k++)
            pass_extents(passage, extent + own, n - own, base + (extent[i].from + k) * inner);
    }
}

static void each_run(const lb_held_part *part, lb_held_run *run, void *context)
{
    uint32_t n;
    const lb_extent *extents = extents_of(part, &n);
    passage passage = {.run = run, .context = context};
    if (!lb_shard_extents_are_flat(extents, n)) {
        pass_extents(&passage, extents, n, 0);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (extents[i].dim == LB_EXTENT_FLAT) pass_run(&passage, extents[i].from, extents[i].size);
}

/* ---- bytes and text ---- */

uint8_t *lb_held_part_bytes(const lb_held_part *part, size_t element)
{
    lb_tensor t;
    if (lb_program_view_value(part->side, part->value, &t, NULL) != LB_OK) return NULL;
    const int64_t all = lb_layout_numel(&t.layout);
    if (lb_dtype_bits(t.dtype) != 8 * element || part->at > all || part->elements > all - part->at) return NULL;
    const bool dense = lb_layout_is_contiguous(&t.layout);
    if (dense)
        t.layout = lb_layout_contiguous(1, &part->elements), t.data = (uint8_t *)t.data + (size_t)part->at * element;
    uint8_t *bytes = malloc((size_t)(dense ? part->elements : all) * element + 1);
    if (!bytes || lb_tensor_gather(&t, bytes, NULL) != LB_OK) {
        free(bytes);
        return NULL;
    }
    if (!dense && part->at) memmove(bytes, bytes + (size_t)part->at * element, (size_t)part->elements * element);
    return bytes;
}

void lb_held_part_shape_text(const lb_layout *layout, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < layout->ndim && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? ", " : "", (long long)layout->shape[d]);
    if (used < size) snprintf(text + used, size - used, "]");
}

void lb_held_part_text(const lb_held_part *part, char *text, size_t size)
{
    char all[400];
    if (part->shard) {
        lb_shard_text(part->side->program, part->shard, all, sizeof all);
        const char *range = strstr(all, "elements [");
        if (!range) range = strchr(all, '[');
        const lb_layout *layout = &part->side->program->values[part->value].layout;
        const bool more =
            lb_shard_is_flat(part->side->program, part->shard) && lb_layout_numel(layout) > part->elements;
        const int used = snprintf(text, size, "%.110s", range ? range : all);
        if (more) snprintf(text + used, size - (size_t)used, ", flat among %lld", (long long)lb_layout_numel(layout));
        return;
    }
    lb_held_part_shape_text(&part->side->program->values[part->value].layout, text, size);
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
    drawing *drawing = context;
    const size_t size = drawing->image->element;
    for (int64_t i = 0; i < n; i++) {
        if (drawing->image->there[whole + i]) continue;
        memcpy(drawing->image->bytes + (size_t)(whole + i) * size, drawing->from + (size_t)(at + i) * size, size);
        drawing->image->there[whole + i] = 1;
    }
}

static void cut_run(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *drawing = context;
    const size_t size = drawing->image->element;
    for (int64_t i = 0; i < n; i++)
        if (drawing->image->there[whole + i])
            memcpy(drawing->to + (size_t)(at + i) * size, drawing->image->bytes + (size_t)(whole + i) * size, size);
}

static void seek_gap(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *drawing = context;
    (void)at;
    drawing->found |= memchr(drawing->image->there + whole, 0, (size_t)n) != NULL;
}

static void seek_other(void *context, int64_t whole, int64_t at, int64_t n)
{
    drawing *drawing = context;
    const size_t size = drawing->image->element;
    if (drawing->found ||
        !memcmp(drawing->image->bytes + (size_t)whole * size, drawing->from + (size_t)at * size, (size_t)n * size))
        return;
    for (int64_t i = 0; i < n && !drawing->found; i++)
        drawing->found = drawing->image->there[whole + i] && memcmp(drawing->image->bytes + (size_t)(whole + i) * size,
                                                                    drawing->from + (size_t)(at + i) * size, size);
}

void lb_held_image_draw(lb_held_image *image, const lb_held_part *part, const uint8_t *bytes)
{
    each_run(part, draw_run, &(drawing){.image = image, .from = bytes});
}

void lb_held_image_cut(const lb_held_image *image, const lb_held_part *part, uint8_t *bytes)
{
    each_run(part, cut_run, &(drawing){.image = image, .to = bytes});
}

bool lb_held_image_lacks(const lb_held_image *image, const lb_held_part *part)
{
    drawing drawing = {.image = image};
    each_run(part, seek_gap, &drawing);
    return drawing.found;
}

bool lb_held_image_differs(const lb_held_image *image, const lb_held_part *part, const uint8_t *bytes)
{
    drawing drawing = {.image = image, .from = bytes};
    each_run(part, seek_other, &drawing);
    return drawing.found;
}
