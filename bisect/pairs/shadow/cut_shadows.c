/* The end of a step for tensors that the sides cut differently: see cut_shadows.h. */
#include "shadow/cut_shadows.h"

#include "shadow/final_image.h"
#include "shadow/shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

static const lb_value *source_of(const lb_program *p, const lb_cut_sheet *sheet)
{
    return &p->values[lb_op_results(p, &p->ops[sheet->op])[0]];
}

static const lb_cut_sheet *sheet_at(const lb_cut_shadows *shadows, int run, uint32_t op)
{
    for (uint32_t i = 0; i < shadows->n[run]; i++)
        if (shadows->sheets[run][i].op == op)
            return shadows->sheets[run][i].numbers && !shadows->sheets[run][i].broken ? &shadows->sheets[run][i] : NULL;
    return NULL;
}

static const uint8_t *bytes_in(const lb_cut_sheet *sheet, const lb_held_part *part)
{
    return (const uint8_t *)(sheet->numbers + part->at);
}

/* Of A, of A disturbed or of B; false where some part of it is not known. */
static bool draw_all(const lb_cut_shadows *shadows, int run, const lb_cut_tensor *cut, lb_held_image *image)
{
    const int side = run == LB_CUT_RUNS - 1;
    if (!lb_held_image_open(image, &cut->whole, sizeof(double))) return false;
    for (uint32_t i = 0; i < cut->n_rows[side]; i++) {
        const lb_held_part *part = &shadows->cuts->parts[side][cut->rows[side][i]];
        const lb_cut_sheet *sheet = sheet_at(shadows, run, part->op);
        if (!sheet) return false;
        lb_held_image_draw(image, part, bytes_in(sheet, part));
    }
    return true;
}

/* ---- what the step begins with ---- */

static void read_sheet(const lb_program_view *side, lb_cut_sheet *sheet)
{
    lb_tensor t;
    const uint32_t v = lb_op_results(side->program, &side->program->ops[sheet->op])[0];
    if (lb_program_view_value(side, v, &t, NULL) != LB_OK) return;
    sheet->numbers = malloc((size_t)lb_layout_numel(&t.layout) * sizeof *sheet->numbers + 1);
    if (sheet->numbers) lb_shadow_numbers(&t, sheet->numbers);
}

/* B begins with A's numbers. */
static void take_over(lb_cut_shadows *shadows, const lb_cut_tensor *cut)
{
    lb_held_image whole;
    const bool drawn = draw_all(shadows, 0, cut, &whole);
    for (uint32_t i = 0; i < cut->n_rows[1]; i++) {
        const lb_held_part *part = &shadows->cuts->parts[1][cut->rows[1][i]];
        const lb_cut_sheet *sheet = sheet_at(shadows, LB_CUT_RUNS - 1, part->op);
        if (sheet && drawn) lb_held_image_cut(&whole, part, (uint8_t *)(sheet->numbers + part->at));
    }
    lb_held_image_release(&whole);
}

lb_status lb_cut_shadows_open(const lb_program_view *a, const lb_program_view *b, const lb_cut_tensors *cuts,
                              lb_cut_shadows *out, lb_err *err)
{
    *out = (lb_cut_shadows){.cuts = cuts && cuts->n > cuts->unknown ? cuts : NULL, .sides = {a, b}};
    for (int run = 0; out->cuts && run < LB_CUT_RUNS; run++) {
        const int side = run == LB_CUT_RUNS - 1;
        const uint32_t n = out->sides[side]->program->n_ops;
        out->sheets[run] = calloc(cuts->n_parts[side] + 1, sizeof *out->sheets[run]);
        if (!out->sheets[run]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parts of tensors");
        for (uint32_t i = 0; i < n; i++)
            if (cuts->held[side][i] == LB_HELD_KNOWN) {
                lb_cut_sheet *sheet = &out->sheets[run][out->n[run]++];
                sheet->op = i;
                read_sheet(out->sides[side], sheet);
            }
    }
    for (uint32_t i = 0; out->cuts && i < cuts->n; i++)
        if (cuts->list[i].known) take_over(out, &cuts->list[i]);
    return LB_OK;
}

void lb_cut_shadows_close(lb_cut_shadows *shadows)
{
    for (int run = 0; run < LB_CUT_RUNS; run++) {
        for (uint32_t i = 0; i < shadows->n[run]; i++) free(shadows->sheets[run][i].numbers);
        free(shadows->sheets[run]);
    }
    *shadows = (lb_cut_shadows){0};
}

/* ---- painting ---- */

static lb_cut_sheet *sheet_of(lb_cut_shadows *shadows, int run, const lb_program *p, int64_t storage)
{
    for (uint32_t i = 0; i < shadows->n[run]; i++)
        if (source_of(p, &shadows->sheets[run][i])->storage == storage) return &shadows->sheets[run][i];
    return NULL;
}

static bool same_place(const lb_layout *a, const lb_layout *b)
{
    return a->offset == b->offset && lb_layout_same_shape(a, b) &&
           !memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride);
}

/* All of the source, or a window of it. */
static void paint(lb_cut_sheet *sheet, const lb_value *source, const lb_value *value, const lb_tensor *shadow)
{
    double *x = malloc((size_t)lb_layout_numel(&shadow->layout) * sizeof *x + 1);
    const bool all = same_place(&source->layout, &value->layout);
    sheet->broken |= !x || !sheet->numbers || (!all && !lb_layout_is_contiguous(&source->layout));
    if (x && !sheet->broken) {
        lb_shadow_numbers(shadow, x);
        if (all)
            memcpy(sheet->numbers, x, (size_t)lb_layout_numel(&source->layout) * sizeof *x);
        else
            lb_image_paint(sheet->numbers, &source->layout, &value->layout, sizeof *x, x);
    }
    free(x);
}

void lb_cut_shadows_note(lb_cut_shadows *shadows, int run, const lb_event *event)
{
    const lb_program_view *side = shadows->sides[run == LB_CUT_RUNS - 1];
    for (uint32_t i = 0; shadows->cuts && i < event->n_results; i++) {
        const uint32_t value = lb_program_view_value_of(side, event->program, event->values[i]);
        if (value == LB_NONE || !event->shadow[i].data) continue;
        const lb_program *p = side->program;
        lb_cut_sheet *sheet = sheet_of(shadows, run, p, p->values[value].storage);
        if (sheet) paint(sheet, source_of(p, sheet), &p->values[value], &event->shadow[i]);
    }
}

/* ---- comparing ---- */

/* A part of either side against A's whole. */
static bool agrees(const lb_held_image *whole, const lb_held_part *part, const lb_cut_sheet *sheet, double noise)
{
    double *should = calloc((size_t)part->elements + 1, sizeof *should);
    const double *has = (const double *)bytes_in(sheet, part);
    if (!should) return true;
    memcpy(should, has, (size_t)part->elements * sizeof *should);
    lb_held_image_cut(whole, part, (uint8_t *)should);
    const bool same = lb_shadow_numbers_agree(should, has, part->elements, noise);
    free(should);
    return same;
}

static void judge(const lb_cut_shadows *shadows, const lb_held_image images[2], lb_shadow_final *final,
                  lb_shadow_pair *out)
{
    const lb_cut_tensor *cut = &shadows->cuts->list[final->cut];
    const double noise =
        lb_shadow_noise((const double *)images[0].bytes, (const double *)images[1].bytes, lb_layout_numel(&cut->whole));
    final->agreement = LB_SHADOW_AGREES;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < cut->n_rows[side] && final->agreement == LB_SHADOW_AGREES; i++) {
            const lb_held_part *part = &shadows->cuts->parts[side][cut->rows[side][i]];
            const lb_cut_sheet *sheet = sheet_at(shadows, side ? LB_CUT_RUNS - 1 : 0, part->op);
            if (!sheet) final->agreement = LB_SHADOW_UNKNOWN;
            if (!sheet || agrees(&images[0], part, sheet, noise)) continue;
            final->agreement = LB_SHADOW_DISAGREES;
            if (side)
                out->final_parts[final->first] = lb_shadow_part_left(part), final->sources[1] = part->op;
            else
                final->whole = lb_shadow_part_left(part), final->sources[0] = part->op;
        }
}

void lb_cut_shadows_judge(const lb_cut_shadows *shadows, lb_shadow_pair *out)
{
    for (uint32_t f = 0; shadows->cuts && f < out->n_finals; f++) {
        lb_shadow_final *final = &out->finals[f];
        lb_held_image images[2] = {{0}};
        if (final->cut == LB_NONE) continue;
        if (draw_all(shadows, 0, &shadows->cuts->list[final->cut], &images[0]) &&
            draw_all(shadows, 1, &shadows->cuts->list[final->cut], &images[1]))
            judge(shadows, images, final, out);
        lb_held_image_release(&images[0]), lb_held_image_release(&images[1]);
    }
}
