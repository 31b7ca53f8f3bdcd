/* What the step leaves, in exact arithmetic: parameters (whole, as slices, or painted part by part), and values that
 * leave by other ways. Each is kept of A, disturbed to know its noise, and met by B's. */
#include "shadow/shadow_run.h"

#include "kernel/complex_rows.h"
#include "shadow/final_image.h"
#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

/* Of A: kept, and disturbed once more to know its noise. */
static void keep_value(const lb_shadow_run *run, lb_kept_value *v, const lb_tensor *shadow)
{
    if (run->kind == LB_SHADOW_RUN_DISTURBED)
        lb_kept_value_measure(v, shadow);
    else
        lb_kept_value_take(v, shadow);
}

/* ---- finals ---- */

/* Elements of `whole` that part `k` stands for, row-major; NULL: its shapes do not fit. malloc'ed. */
static double *slice_of(const lb_shadow_run *run, const lb_shadow_final *final, uint32_t k, const lb_kept_value *whole,
                        const lb_layout *part)
{
    const lb_value *value = &run->other->program->values[final->whole.value];
    const lb_layout all = lb_complex_layout_parts(&value->layout, value->dtype);
    const int64_t n = lb_layout_numel(part);
    if (final->dim < 0 && n != whole->elements) return NULL;
    double *slice = malloc((size_t)(n > 0 ? n : 1) * sizeof *slice);
    if (slice && final->dim < 0) memcpy(slice, whole->numbers, (size_t)n * sizeof *slice);
    if (!slice || final->dim < 0) return slice;
    uint32_t *values = malloc((final->parts + 1) * sizeof *values), n_pieces;
    for (uint32_t i = 0; values && i < final->parts; i++) values[i] = run->out->final_parts[final->first + i].value;
    lb_reassembly_piece *pieces =
        values ? lb_reassembly_pieces(NULL, &value->layout, final->dim, run->side, values, final->parts, &n_pieces)
               : NULL;
    if (pieces)
        lb_reassembly_cut(&all, final->dim, pieces, n_pieces, k, part, sizeof *slice, whole->numbers, slice);
    else
        free(slice), slice = NULL;
    free(values), free(pieces);
    return slice;
}

static void meet_final(lb_shadow_run *run, uint32_t number, uint32_t k, const lb_event *event, uint32_t i)
{
    lb_shadow_final *final = &run->out->finals[number];
    const lb_kept_value *whole = &run->finals[number];
    const int64_t n = lb_layout_numel(&event->shadow[i].layout);
    if (!whole->numbers) return;
    double *slice = slice_of(run, final, k, whole, &event->shadow[i].layout);
    double *x = slice ? lb_shadow_numbers_copy(&event->shadow[i]) : NULL;
    if (x) {
        final->seen++;
        if (!lb_shadow_numbers_agree(slice, x, n, whole->noise))
            final->agreement = LB_SHADOW_DISAGREES;
        else if (final->agreement == LB_SHADOW_UNKNOWN && final->seen == final->parts)
            final->agreement = LB_SHADOW_AGREES;
    }
    free(slice), free(x);
}

/* Made of what the source held when nothing was painted yet; NULL when that is not known. Both sides begin with A's. */
static lb_kept_value *image_of(lb_shadow_run *run, uint32_t number)
{
    const lb_program_view *a = run->which ? run->other : run->side;
    const uint32_t source = lb_op_results(a->program, &a->program->ops[run->out->finals[number].sources[0]])[0];
    lb_kept_value *image = &run->images[number];
    lb_tensor recorded, t;
    if (image->numbers) return image;
    if (lb_program_view_value(a, source, &recorded, NULL) != LB_OK || !lb_complex_tensor_parts(&recorded, &t))
        return NULL;
    image->elements = lb_layout_numel(&t.layout);
    image->numbers = malloc((size_t)image->elements * sizeof *image->numbers + 1);
    if (image->numbers) lb_shadow_numbers(&t, image->numbers);
    return image->numbers ? image : NULL;
}

/* Of a flat buffer only what the source is a window on: each of a thousand parameters would copy all of it. */
static void clip(const lb_layout *source, lb_layout *part, lb_tensor *shadow)
{
    const int64_t n = lb_layout_numel(part), begin = source->offset, end = begin + lb_layout_numel(source);
    const int64_t first = part->offset < begin ? begin : part->offset,
                  last = part->offset + n > end ? end : part->offset + n;
    if (shadow->dtype != LB_F64 || !lb_layout_is_contiguous(part) || !lb_layout_is_contiguous(&shadow->layout) ||
        lb_layout_numel(&shadow->layout) != n || first >= last || last - first == n)
        return;
    const int64_t count = last - first;
    shadow->data = (double *)shadow->data + (first - part->offset);
    shadow->layout = lb_layout_contiguous(1, &count);
    *part = shadow->layout, part->offset = first;
}

static void paint_final(lb_shadow_run *run, uint32_t number, const lb_event *event)
{
    const lb_program *p = run->side->program;
    const lb_value *source = &p->values[lb_op_results(p, &p->ops[run->out->finals[number].sources[run->which]])[0]];
    for (uint32_t i = 0; i < event->n_results; i++) {
        const uint32_t value = lb_program_view_value_of(run->side, event->program, event->values[i]);
        const lb_value *v = value == LB_NONE ? source : &p->values[value];
        if (v == source || v->dtype != source->dtype || !event->shadow[i].data || !lb_image_overlaps(source, v))
            continue;
        lb_kept_value *image = image_of(run, number);
        const lb_layout whole = lb_complex_layout_parts(&source->layout, source->dtype);
        lb_layout part = lb_complex_layout_parts(&v->layout, v->dtype);
        lb_tensor shadow = event->shadow[i];
        clip(&whole, &part, &shadow);
        double *x = image ? lb_shadow_numbers_copy(&shadow) : NULL;
        if (x) lb_image_paint(image->numbers, &whole, &part, sizeof *x, x);
        free(x);
    }
}

void lb_shadow_run_judge_images(lb_shadow_run sides[2], const lb_kept_value *disturbed)
{
    lb_shadow_pair *out = sides[0].out;
    for (uint32_t number = 0; number < out->n_finals; number++) {
        if (!out->finals[number].pieces) continue;
        const lb_kept_value *a = image_of(&sides[0], number), *b = image_of(&sides[1], number), *d = &disturbed[number];
        if (!a || !b || a->elements != b->elements) continue;
        const double noise =
            d->numbers && d->elements == a->elements ? lb_shadow_noise(a->numbers, d->numbers, a->elements) : 0;
        out->finals[number].agreement = lb_shadow_numbers_agree(a->numbers, b->numbers, a->elements, noise)
                                            ? LB_SHADOW_AGREES
                                            : LB_SHADOW_DISAGREES;
    }
}

void lb_shadow_run_note_finals(lb_shadow_run *run, uint32_t op, const lb_event *event)
{
    for (uint32_t number = 0; number < run->out->n_finals; number++) {
        const lb_shadow_final *final = &run->out->finals[number];
        if (final->cut != LB_NONE) continue;
        if (final->pieces) {
            paint_final(run, number, event);
            continue;
        }
        const lb_shadow_part *list = run->which == 0 ? &final->whole : &run->out->final_parts[final->first];
        for (uint32_t k = 0, i; k < (run->which == 0 ? 1 : final->parts); k++) {
            if (list[k].op != op) continue;
            for (i = 0; i < event->n_results; i++)
                if (lb_program_view_value_of(run->side, event->program, event->values[i]) == list[k].value) break;
            if (i == event->n_results || !event->shadow[i].data) continue;
            if (run->which == 0)
                keep_value(run, &run->finals[number], &event->shadow[i]);
            else
                meet_final(run, number, k, event, i);
        }
    }
}

/* ---- exits ---- */

/* `n` runs of `count` elements, `step` apart, are those of the shorter side: do they agree? */
typedef struct row_window {
    const double *more, *few;
    int64_t outer, inner, all, count; /* dimensions before the rows, elements of one, rows of either */
    double noise;
} row_window;

static bool window_agrees(const row_window *w, int64_t first, double *scratch)
{
    const size_t bytes = (size_t)(w->count * w->inner) * sizeof *scratch;
    for (int64_t o = 0; o < w->outer; o++)
        memcpy(scratch + o * w->count * w->inner, w->more + (o * w->all + first) * w->inner, bytes);
    return lb_shadow_numbers_agree(w->few, scratch, w->outer * w->count * w->inner, w->noise);
}

/* Are all rows of the shorter result rows of the longer, one behind the other? `x`: B's numbers. */
static bool rows_agree(const lb_shadow_run *run, const lb_step_output *exit, const lb_kept_value *a, const double *x)
{
    const lb_layout *la = &run->other->program->values[exit->value[0]].layout,
                    *lb = &run->side->program->values[exit->value[1]].layout;
    const bool more_in_a = la->shape[exit->rows] > lb->shape[exit->rows];
    const lb_layout *more = more_in_a ? la : lb, *few = more_in_a ? lb : la;
    row_window window = {.more = more_in_a ? a->numbers : x,
                         .few = more_in_a ? x : a->numbers,
                         .outer = 1,
                         .inner = 1,
                         .all = more->shape[exit->rows],
                         .count = few->shape[exit->rows],
                         .noise = a->noise};
    for (int d = 0; d < exit->rows; d++) window.outer *= few->shape[d];
    window.inner = a->elements / (window.outer * la->shape[exit->rows]); /* a complex number is two */
    double *scratch = malloc((size_t)(window.outer * window.count * window.inner) * sizeof *scratch + 1);
    bool found = false;
    for (int64_t first = window.all - window.count; scratch && !found && first >= 0; first--)
        found = window_agrees(&window, first, scratch);
    free(scratch);
    return found;
}

static void meet_exit(lb_shadow_run *run, uint32_t number, const lb_tensor *shadow)
{
    const lb_kept_value *a = &run->results[number];
    lb_step_output *exit = &run->exits->list[number];
    if (exit->other_shape) {
        double *rows = a->numbers ? lb_shadow_numbers_copy(shadow) : NULL;
        if (rows) exit->agreement = rows_agree(run, exit, a, rows) ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
        free(rows);
        return;
    }
    const int64_t n = lb_layout_numel(&shadow->layout);
    double *x = a->numbers && a->elements == n ? lb_shadow_numbers_copy(shadow) : NULL;
    if (x)
        exit->agreement = lb_shadow_numbers_agree(a->numbers, x, n, a->noise) ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
    free(x);
}

/* A result may be a view of what its op gave: the window is read right after the op that wrote its storage last. */
void lb_shadow_run_note_exits(lb_shadow_run *run, uint32_t op, const lb_event *event)
{
    for (uint32_t number = 0; number < run->exits->n; number++) {
        lb_step_output *exit = &run->exits->list[number];
        lb_tensor window, numbers;
        uint32_t row;
        if (exit->op[run->which] != op || (exit->other_shape ? exit->rows < 0 : !exit->differs)) continue;
        if (lb_program_view_recorded(run->side, exit->value[run->which], &row) != event->program) continue;
        if (!lb_event_exact(event, row, &window) || !lb_complex_tensor_parts(&window, &numbers)) continue;
        if (run->which == 0)
            keep_value(run, &run->results[number], &numbers);
        else
            meet_exit(run, number, &numbers);
    }
}
