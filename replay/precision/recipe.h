/* Recipes: what the argument of a precision swap asks of the ops it selects.
 *
 *   ARGUMENT = WORD | [WORD ","] KEY:VALUE {"," KEY:VALUE}
 *
 *   bf16                                        hold and compute in bf16 (f64, f32, f16, e4m3fn, e5m2, ...); f32 and
 *                                               f64 never narrow
 *   tf32, tf32:rz, tf32:rna, tf32:rne           products and convolutions read their operands as tf32; rna is what
 *                                               libraries round by beforehand (cvt.rna.tf32), rz what an instruction
 *                                               makes of an f32
 *   compute:bf16,accumulate:f32,storage:f16     each by itself; what is not named stays as recorded
 *   fp8-current | fp8-delayed | fp8-block | mxfp8 | mxfp4 | nvfp4
 *                                               operands of the products of linear layers are quantised, see
 *                                               quantiser.h
 *   e4m3fn:current                              the same with that element type everywhere: current, delayed, block,
 *                                               mx, nv
 *
 *   KEY          VALUE
 *   compute      grid that float operands are rounded to before the arithmetic; f64: the arithmetic is f64's
 *   accumulate   grid that every addition is rounded to, to nearest even (matrix products, sums); f64: the arithmetic
 *                is f64's
 *   storage      grid that float results are rounded to and held in
 *   round        rne, rz, rna, stochastic:SEED (of operands with compute or a recipe, of results with storage);
 *                rna by default for tf32 operands, rne for everything else
 *   overflow     saturate, ieee (infinity, or NaN where there is none), torch (per type); recipes saturate by default
 *   subnormals   keep, flush
 *   products     linear (default of recipes), all
 *   forward, backward    element types of recipes (backward: of gradients)
 *   scale        f32, pow2 (fp8-current, fp8-block); floor, ceil, even, rceil (mx)
 *   margin, history, interval, algorithm (max, most_recent), start (cold, calibrated)      of fp8-delayed
 *   hadamard on|off, weights 1d|2d, gradients rne|stochastic:SEED                          of nvfp4
 *
 * A grid is f64 f32 tf32 bf16 f16 e4m3fn e5m2 e4m3fnuz e5m2fnuz e2m1 e8m0.
 */
#ifndef LB_REPLAY_RECIPE_H
#define LB_REPLAY_RECIPE_H

#include <lastbit/precision.h>

typedef enum lb_scaling {
    LB_SCALING_NONE,    /* a cast */
    LB_SCALING_CURRENT, /* one scale per tensor, from its own amax */
    LB_SCALING_DELAYED, /* one scale per tensor, from the amaxes of the steps before */
    LB_SCALING_BLOCK,   /* one scale per 1 x 128 of inputs and gradients and per 128 x 128 of weights */
    LB_SCALING_MX,      /* a power of two per 32 */
    LB_SCALING_NV       /* an e4m3 scale per 16 (16 x 16 of weights), and an f32 scale per tensor */
} lb_scaling;

typedef enum lb_scale_rule {
    LB_SCALE_F32,
    LB_SCALE_POW2,
    LB_SCALE_FLOOR,
    LB_SCALE_CEIL,
    LB_SCALE_EVEN,
    LB_SCALE_RCEIL
} lb_scale_rule;

typedef struct lb_recipe {
    lb_dtype short_form; /* WORD was a type: a region, or for tf32 what products read; kernels do all of it */
    lb_dtype compute, accumulate, storage; /* 0: as recorded */
    bool products_only; /* ops other than matrix products (and convolutions, for casts) are left alone */
    bool all_products;  /* recipes: also those without a weight, as in attention */
    lb_cast cast;
    bool casts_operands, casts_results; /* which of them `cast` is for */
    lb_scaling scaling;
    lb_scale_rule rule;
    lb_dtype element[LB_ROLES]; /* by role; equal to `compute` in a recipe without scaling */
    int64_t history, interval;
    double margin;
    bool most_recent, calibrated;
    bool hadamard, flat_weights; /* flat: weights in 1 x 16 too */
    lb_cast gradient_cast;       /* of nvfp4: `cast` but for its rounding */
} lb_recipe;

/* A grid that no tensor is held in: its values lie in f32. */
static inline bool lb_grid_is_held_as_f32(lb_dtype grid)
{
    return grid == LB_TF32 || grid == LB_E2M1 || grid == LB_E8M0;
}

/* LB_ERR_INVALID names what is wrong and what is expected. */
lb_status lb_recipe_parse(const char *argument, lb_recipe *recipe, lb_err *err);
/* "e4m3fn", "mxfp8 e4m3fn", ...: what a table calls it. */
void lb_recipe_format(const lb_recipe *recipe, lb_precision_role role, char *text, size_t size);

#endif
