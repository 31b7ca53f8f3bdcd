/* Kernels for one row: see folded.h. Up to COLUMNS results are computed side by side, each by the operations that its order has. */
#include "folded.h"

#include <lastbit/processor.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { COLUMNS = 32 };

#define PER_ISA(...) LB_PER_ISA(__VA_ARGS__) /* expands NAME before the name is pasted */
#define REAL float
#define NAME(x) x##_f32
#define FMA __builtin_fmaf
#define ROUND lb_round_to_grid_f32
#include "folded_real.h"
#undef REAL
#undef NAME
#undef FMA
#undef ROUND

#define REAL double
#define NAME(x) x##_f64
#define FMA __builtin_fma
#define ROUND lb_round_to_grid_f64
#include "folded_real.h"
