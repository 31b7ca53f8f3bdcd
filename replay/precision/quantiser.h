/* Quantising one tensor as a recipe says, and back: what a product of low precision really multiplies.
 *
 * The tensor comes as dense rows that run along the contraction, `rows` x `k`; blocks are cut along those rows, so that
 * a tensor used in two products is quantised twice, each time from its high precision values (as Transformer Engine
 * does).
 * Every element becomes  x' = (round(x * up) * down) * rest,  in f32: `up` and `down` belong to its block, `rest` to
 *                        the tensor.
 *
 *   scaling   block        up, down, rest                                                          read in
 *   none                   1, 1, 1
 *   current   tensor       max / amax, 1 / up, 1. amax 0, infinite or NaN: 1; up infinite: the     [TE]
 *             recipe_common.cuh delayed: up from the scale state (scale_history.h)    largest of x's type; pow2:
 *             compute_scale_from_amax
 *                          up cut to a power of two
 *   block     1 x 128, weights 128 x 128: as current, of the block's amax                          [TE]
 *             Float8BlockScaling
 *   mx        1 x 32       1/s, s, 1 with s = 2^(e-127), e by                                      [AO] mx_tensor.py
 *             to_mx,
 *                            floor  exponent(amax) - exponent(max)                                  [OCP] MX v1.0 6.3
 *                            ceil   the same, one more unless amax is a power of two
 *                            even   floor of amax rounded to the element's fraction bits
 *                          amax infinite or NaN: e = 255, all NaN;
 *                            rceil  exponent of amax * (1/max), rounded up; amax infinite: 254        [TE] ptx.cuh
 *                                   float_to_e8m0
 *                          within [0, 254]
 *   nvfp4     1 x 16, weights 16 x 16:  S = e4m3(amax_block * (g * (1/6))), g = 448 * 6 / amax;    [TE]
 *             quantization_ref_nvfp4.py
 *                          up = 1 / (S * (1/g)), down = S, rest = amax / (6 * 448)
 *                          With `rotate`, 16 elements at a time are first replaced by (s o x) H / 4 (H: Sylvester's
 *                          Hadamard
 *                          matrix, s: the fixed signs of TE), summed in f64 and rounded to f32 and, where x has 16
 *                          bits, to
 *                          its type. The other factor of the product is rotated alike, so the product stays.
 * [TE] NVIDIA/TransformerEngine, transformer_engine/common/recipe and pytorch/custom_recipes; [AO] pytorch/ao,
 * torchao/prototype/mx_formats. A last block may be shorter.
 *
 * What is not finite: [TE]'s kernels take amax by fmaxf, which passes NaN over. One NaN stays one NaN there (in e2m1,
 * which has none, the largest value: PTX, cvt.satfinite), and one infinity makes the scale of its block so large that
 * everything small beside it becomes 0. In [AO], whose amax is torch's, either spoils its block. lb_precision_loss
 * counts both.
 *
 * Stochastic rounding numbers the elements of the rows as they lie. Results do not depend on threads.
 */
#ifndef LB_REPLAY_QUANTISER_H
#define LB_REPLAY_QUANTISER_H

#include "precision/recipe.h"

typedef struct lb_quantiser {
    lb_scaling scaling;
    lb_scale_rule rule;
    lb_dtype element;
    lb_dtype own; /* the tensor's type before it was widened to f32 */
    lb_cast cast;
    bool square; /* blocks as high as wide: weights of block and nvfp4 */
    bool rotate;
    float scale; /* LB_SCALING_DELAYED: up */
    int64_t rows, k;
    int64_t matrix_rows; /* square blocks do not reach over multiples of it; rows when 0 */
} lb_quantiser;

/* What a recipe does to a tensor of that role: all but own, scale and the shape. `weight_gradient`: the product's other
 * factor is an activation or a gradient too, and the sum runs over tokens. */
lb_quantiser lb_quantiser_of(const lb_recipe *recipe, lb_precision_role role, bool weight_gradient);
/* `x` in place. `loss` is added to (may be NULL). LB_ERR_NOMEM leaves x undefined. */
lb_status lb_quantise(const lb_quantiser *quantiser, float *x, lb_precision_loss *loss, lb_err *err);

/* Largest magnitude; NaN is passed over. */
float lb_quantiser_amax(const float *x, int64_t n);

#endif
