/* Blocks, scales and the rounding between them: see quantiser.h. Bands of rows that share blocks are the unit of work;
 * their losses are gathered per band range and added in order, so that threads change nothing. */
#include "precision/quantiser.h"

#include "functions/real_bits.h"

#include <lastbit/processor.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 16, RANGE_ELEMENTS = 32768 };

enum { WITH_NAN = 0x7fffffff, WITHOUT_NAN = 0x7f800000 };

/* Magnitudes order like their bits, NaN above infinity. Those above `limit` are passed over. */
LB_INLINE void amax_body(const float *x, int64_t n, uint32_t limit, uint32_t *most)
{
    uint32_t lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            uint32_t u;
            memcpy(&u, x + i + l, sizeof u);
            u &= 0x7fffffffu;
            u = u > limit ? 0 : u;
            lane[l] = u > lane[l] ? u : lane[l];
        }
    for (; i < n; i++) {
        const uint32_t u = float_bits(x[i]) & 0x7fffffffu;
        lane[0] = u <= limit && u > lane[0] ? u : lane[0];
    }
    for (int l = 0; l < LANES; l++) *most = lane[l] > *most ? lane[l] : *most;
}
LB_PER_ISA(amax_run, amax_body, (const float *x, int64_t n, uint32_t limit, uint32_t *most), (x, n, limit, most))

float lb_quantiser_amax(const float *x, int64_t n)
{
    uint32_t most = 0;
    amax_run(x, n, WITHOUT_NAN, &most);
    return float_of(most);
}

lb_quantiser lb_quantiser_of(const lb_recipe *recipe, lb_precision_role role, bool weight_gradient)
{
    lb_quantiser quantiser = {
        .scaling = recipe->scaling, .rule = recipe->rule, .element = recipe->element[role], .own = LB_F32, .scale = 1};
    quantiser.cast = role == LB_ROLE_GRADIENT ? recipe->gradient_cast : recipe->cast;
    quantiser.square = role == LB_ROLE_WEIGHT && (quantiser.scaling == LB_SCALING_BLOCK ||
                                                  (quantiser.scaling == LB_SCALING_NV && !recipe->flat_weights));
    quantiser.rotate =
        quantiser.scaling == LB_SCALING_NV && recipe->hadamard && weight_gradient && role != LB_ROLE_WEIGHT;
    return quantiser;
}

/* ---- scales ----------------------------------------------------------------------------------------------------- */

/* `up` of per-tensor scaling: see the table. `largest`: of the tensor's own type. */
static float scale_of_amax(float amax, float max, bool pow2, float largest)
{
    if (!(amax > 0) || isinf(amax)) return 1;
    float scale = max / amax;
    if (isinf(scale)) scale = largest;
    return pow2 ? float_of(float_bits(scale) & 0xff800000u) : scale;
}

/* What the scales of all blocks of one tensor have in common. */
typedef struct scaler {
    const lb_quantiser *quantiser;
    float max, largest; /* of the element type; of the tensor's own */
    float up, down, rest;
    float global, global_inverse; /* nvfp4: g and 1/g */
    int64_t width, height;        /* of a block */
} scaler;

static int mx_exponent(const lb_quantiser *quantiser, float max, float amax)
{
    uint32_t bits = float_bits(amax);
    const int fraction = lb_dtype_precision(quantiser->element) - 1;
    if (quantiser->rule == LB_SCALE_RCEIL) {
        bits = float_bits(amax * (1.0f / max));
        const uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffffu;
        if (exponent >= 254) return 254;
        return (int)exponent + (exponent ? mantissa != 0 : mantissa > 0x400000u);
    }
    if (quantiser->rule == LB_SCALE_EVEN && bits <= 0x7f800000u)
        bits = (bits + (1u << (23 - fraction - 1))) & 0xff800000u;
    if (bits >= 0x7f800000u) return 255;
    int exponent = (int)(bits >> 23) - 127 - ilogbf(max);
    if (quantiser->rule == LB_SCALE_CEIL) exponent += (bits & 0x7fffffu) != 0;
    return (exponent < -127 ? -127 : exponent > 127 ? 127 : exponent) + 127;
}

static float power_of_e8m0(int code)
{
    return float_of(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : (uint32_t)code << 23);
}

static void block_scale(const scaler *scaler, float amax, float *up, float *down)
{
    const lb_quantiser *quantiser = scaler->quantiser;
    switch (quantiser->scaling) {
    case LB_SCALING_BLOCK:
        *up = scale_of_amax(amax, scaler->max, quantiser->rule == LB_SCALE_POW2, scaler->largest);
        *down = 1.0f / *up;
        return;
    case LB_SCALING_MX: {
        const int code = mx_exponent(quantiser, scaler->max, amax);
        *up = power_of_e8m0(code == 255 ? 255 : 254 - code);
        *down = power_of_e8m0(code);
        return;
    }
    case LB_SCALING_NV: {
        float scale = amax * (scaler->global * (1.0f / 6.0f));
        if (scale > 448.0f) scale = 448.0f;
        lb_round_to_grid_f32(&scale, 1, LB_E4M3FN, NULL);
        *up = 1.0f / (scale * scaler->global_inverse);
        if (*up > FLT_MAX) *up = FLT_MAX;
        *down = scale;
        return;
    }
    default: *up = scaler->up, *down = scaler->down;
    }
}

static scaler scaler_of(const lb_quantiser *quantiser, const float *x)
{
    scaler scaler = {.quantiser = quantiser, .up = 1, .down = 1, .rest = 1, .width = quantiser->k, .height = 1};
    scaler.max = (float)lb_dtype_max_finite(quantiser->element);
    scaler.largest = (float)fmin(lb_dtype_max_finite(quantiser->own), FLT_MAX);
    switch (quantiser->scaling) {
    case LB_SCALING_NONE: break;
    case LB_SCALING_CURRENT:
        scaler.up = scale_of_amax(lb_quantiser_amax(x, quantiser->rows * quantiser->k), scaler.max,
                                  quantiser->rule == LB_SCALE_POW2, scaler.largest);
        break;
    case LB_SCALING_DELAYED: scaler.up = quantiser->scale; break;
    case LB_SCALING_BLOCK: scaler.width = 128; break;
    case LB_SCALING_MX: scaler.width = 32; break;
    case LB_SCALING_NV: {
        const float amax = lb_quantiser_amax(x, quantiser->rows * quantiser->k);
        scaler.width = 16;
        scaler.global = 448.0f * 6.0f / amax;
        if (scaler.global > FLT_MAX) scaler.global = FLT_MAX;
        if (scaler.global == 0 || amax == 0) scaler.global = 1;
        scaler.global_inverse = 1.0f / scaler.global;
        scaler.rest = amax / (6.0f * 448.0f);
        break;
    }
    }
    scaler.down = 1.0f / scaler.up;
    if (quantiser->square) scaler.height = scaler.width;
    return scaler;
}

/* ---- rotation --------------------------------------------------------------------------------------------------- */

/* (s o x) H / 4 of 16 elements; H by its butterflies, in f64 so that the order of additions is of no account. */
static void rotate_16(float *x)
{
    static const double signs[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
    double y[16];
    for (int i = 0; i < 16; i++) y[i] = signs[i] * x[i];
    for (int half = 1; half < 16; half *= 2)
        for (int i = 0; i < 16; i++)
            if (!(i & half)) {
                const double a = y[i], b = y[i + half];
                y[i] = a + b;
                y[i + half] = a - b;
            }
    for (int i = 0; i < 16; i++) x[i] = (float)(0.25 * y[i]);
}

static void rotate(const lb_quantiser *quantiser, float *x)
{
    for (int64_t r = 0; r < quantiser->rows; r++)
        for (int64_t i = 0; i + 16 <= quantiser->k; i += 16) rotate_16(x + r * quantiser->k + i);
    if (lb_dtype_bits(quantiser->own) == 16)
        lb_round_to_grid_f32(x, (size_t)(quantiser->rows * quantiser->k), quantiser->own, NULL);
}

/* ---- rounding --------------------------------------------------------------------------------------------------- */

/* x before, `scaled` what was rounded, `y` after. Sums run in fixed lanes. */
LB_INLINE void count_body(const float *x, const float *scaled, const float *y, int64_t n, float limit,
                          lb_precision_loss *loss)
{
    double signal[LANES] = {0}, error[LANES] = {0};
    uint32_t nonzero = 0, bad = 0, under = 0, over = 0, spoiled = 0, masked = 0;
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        const bool finite = size <= FLT_MAX, stays = fabsf(y[i]) <= FLT_MAX;
        const double d = (double)y[i] - (double)x[i];
        signal[i % LANES] += finite ? (double)x[i] * (double)x[i] : 0.0;
        error[i % LANES] += finite && stays ? d * d : 0.0;
        most = finite && size > most ? size : most;
        bad += !finite;
        spoiled += finite && !stays;
        masked += !finite && stays;
        nonzero += finite && size > 0;
        under += finite && size > 0 && y[i] == 0;
        over += finite && fabsf(scaled[i]) >= limit && y[i] != 0; /* a scale that is 0 itself makes no overflow */
    }
    for (int l = 0; l < LANES; l++) loss->signal += signal[l], loss->error += error[l];
    loss->amax = most > loss->amax ? most : loss->amax;
    loss->elements += (uint64_t)n - bad;
    loss->nonfinite += bad, loss->nonzero += nonzero, loss->underflow += under, loss->overflow += over;
    loss->spoiled += spoiled, loss->masked += masked;
}
LB_PER_ISA(count, count_body,
           (const float *x, const float *scaled, const float *y, int64_t n, float limit, lb_precision_loss *loss),
           (x, scaled, y, n, limit, loss))

/* Half a step beyond the largest value: what no nearest rounding brings back. */
static float overflow_limit(lb_dtype element)
{
    const double max = lb_dtype_max_finite(element);
    const double limit = max + ldexp(1.0, ilogb(max)) * lb_dtype_unit_roundoff(element);
    return limit > FLT_MAX ? INFINITY : (float)limit;
}

LB_INLINE void scale_body(const float *from, float *to, int64_t n, float factor, float rest)
{
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor * rest;
}
LB_PER_ISA(scale_run, scale_body, (const float *from, float *to, int64_t n, float factor, float rest),
           (from, to, n, factor, rest))

static void scale_row(const float *from, float *to, const scaler *scaler, const float *factors, float rest)
{
    const int64_t k = scaler->quantiser->k;
    for (int64_t at = 0; at < k; at += scaler->width, factors++)
        scale_run(from + at, to + at, k - at < scaler->width ? k - at : scaler->width, *factors, rest);
}

/* What the instruction that makes e2m1 of a NaN gives, which the type cannot hold. */
static void nan_to_largest(const float *scaled, float *y, int64_t n, float max)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(scaled[i])) y[i] = max;
}

/* Rows [first, first + rows) share blocks. `room`: for scales of a row and two rows of elements. */
static void quantise_band(const scaler *scaler, float *x, int64_t first, int64_t rows, float *room,
                          lb_precision_loss *loss)
{
    const lb_quantiser *quantiser = scaler->quantiser;
    const int64_t k = quantiser->k, blocks = (k + scaler->width - 1) / scaler->width;
    const uint32_t sizes =
        quantiser->scaling == LB_SCALING_MX && quantiser->rule != LB_SCALE_RCEIL ? WITH_NAN : WITHOUT_NAN;
    float *up = room, *down = up + blocks, *scaled = down + blocks, *y = scaled + k;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * scaler->width, n = k - at < scaler->width ? k - at : scaler->width;
        uint32_t most = 0;
        if (quantiser->scaling >= LB_SCALING_BLOCK)
            for (int64_t r = first; r < first + rows; r++) amax_run(x + r * k + at, n, sizes, &most);
        block_scale(scaler, float_of(most), &up[b], &down[b]);
        /* A block of zeros has no scale to speak of. */
        if (!loss || !isfinite(up[b]) || (quantiser->scaling >= LB_SCALING_BLOCK && !most)) continue;
        if (up[b] > loss->scale_high) loss->scale_high = up[b];
        if (!loss->scale_low || up[b] < loss->scale_low) loss->scale_low = up[b];
    }
    const float limit = overflow_limit(quantiser->element);
    for (int64_t r = first; r < first + rows; r++) {
        float *row = x + r * k;
        scale_row(row, scaled, scaler, up, 1.0f);
        memcpy(y, scaled, (size_t)k * sizeof *y);
        lb_cast cast = quantiser->cast;
        cast.counter += (uint64_t)(r * k);
        lb_round_to_grid_f32(y, (size_t)k, quantiser->element, &cast);
        if (quantiser->scaling && quantiser->element == LB_E2M1) nan_to_largest(scaled, y, k, scaler->max);
        scale_row(y, y, scaler, down, scaler->rest);
        if (loss) count(row, scaled, y, k, limit, loss);
        memcpy(row, y, (size_t)k * sizeof *y);
    }
}

typedef struct bands {
    int64_t height, per_matrix, n; /* rows of a band; bands of a matrix; all bands */
    int64_t matrix_rows;
    int64_t ranges, per_range;
} bands;

static bands bands_of(const scaler *scaler)
{
    const lb_quantiser *quantiser = scaler->quantiser;
    bands b = {.height = scaler->height,
               .matrix_rows = quantiser->matrix_rows ? quantiser->matrix_rows : quantiser->rows};
    b.per_matrix = (b.matrix_rows + b.height - 1) / b.height;
    b.n = quantiser->rows / b.matrix_rows * b.per_matrix;
    b.per_range = RANGE_ELEMENTS / (b.height * quantiser->k) + 1;
    b.ranges = (b.n + b.per_range - 1) / b.per_range;
    return b;
}

static bool quantise_range(const scaler *scaler, const bands *bands, int64_t range, float *x, lb_precision_loss *loss)
{
    float *room = malloc((size_t)(4 * scaler->quantiser->k + 2) * sizeof *room);
    if (!room) return false;
    for (int64_t i = range * bands->per_range; i < bands->n && i < (range + 1) * bands->per_range; i++) {
        const int64_t matrix = i / bands->per_matrix, within = i % bands->per_matrix * bands->height;
        const int64_t rows = bands->matrix_rows - within < bands->height ? bands->matrix_rows - within : bands->height;
        quantise_band(scaler, x, matrix * bands->matrix_rows + within, rows, room, loss);
    }
    free(room);
    return true;
}

void lb_precision_loss_add(lb_precision_loss *sum, const lb_precision_loss *more)
{
    sum->elements += more->elements;
    sum->nonzero += more->nonzero;
    sum->nonfinite += more->nonfinite;
    sum->spoiled += more->spoiled;
    sum->masked += more->masked;
    sum->underflow += more->underflow;
    sum->overflow += more->overflow;
    sum->signal += more->signal;
    sum->error += more->error;
    if (more->amax > sum->amax) sum->amax = more->amax;
    if (more->scale_high > sum->scale_high) sum->scale_high = more->scale_high;
    if (more->scale_low && (!sum->scale_low || more->scale_low < sum->scale_low)) sum->scale_low = more->scale_low;
}

lb_status lb_quantise(const lb_quantiser *quantiser, float *x, lb_precision_loss *loss, lb_err *err)
{
    if (quantiser->rows <= 0 || quantiser->k <= 0) return LB_OK;
    if (quantiser->rotate) rotate(quantiser, x);
    const scaler scaler = scaler_of(quantiser, x);
    const bands bands = bands_of(&scaler);
    lb_precision_loss *losses = loss ? calloc((size_t)bands.ranges, sizeof *losses) : NULL;
    bool room = !loss || losses;
#pragma omp parallel for reduction(&& : room) if (bands.ranges > 1 && room)
    for (int64_t range = 0; range < bands.ranges; range++)
        room = room && quantise_range(&scaler, &bands, range, x, losses ? &losses[range] : NULL);
    for (int64_t range = 0; losses && range < bands.ranges; range++) lb_precision_loss_add(loss, &losses[range]);
    free(losses);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for the scales of a tensor");
}
