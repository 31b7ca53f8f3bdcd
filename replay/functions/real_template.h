/* Includes a template (a file *_real.h) twice: over f32 and over f64.
 *
 *      #define REAL_TEMPLATE "ops/softmax_real.h"
 *      #include "functions/real_template.h"
 *
 * What a template may use of the type it is included for:
 *      REAL        the type
 *      NAME(x)     x_f32, x_f64: names of what the template defines, and of functions that there are for both
 *      FMA         a fused multiply-add
 *      ROUND       lb_round_to_grid_f32, _f64
 * All of them are gone behind it, so that the next template may follow. */
#define REAL float
#define NAME(x) x##_f32
#define FMA __builtin_fmaf
#define ROUND lb_round_to_grid_f32
#include REAL_TEMPLATE
#undef REAL
#undef NAME
#undef FMA
#undef ROUND

#define REAL double
#define NAME(x) x##_f64
#define FMA __builtin_fma
#define ROUND lb_round_to_grid_f64
#include REAL_TEMPLATE
#undef REAL
#undef NAME
#undef FMA
#undef ROUND
#undef REAL_TEMPLATE
