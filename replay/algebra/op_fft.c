/* Fourier transforms, of real and of complex numbers, over one dimension or several.
 *
 * Everything is computed in f64 and rounded once: Cooley and Tukey's algorithm, decimation in time, over the prime
 * factors of a length (4 before 2), largest last; lengths with a prime factor above 64 by Bluestein's convolution with
 * a chirp. Libraries choose other algorithms by length and processor, so that no bits are the right ones. Of any of
 * them holds
 *
 *      |ŷ - y|_2 ≤ c log2(N) u |y|_2,   |y|_2 = √N |x|_2
 *
 * (Higham, Accuracy and Stability of Numerical Algorithms, theorem 24.2; Bluestein's is three transforms of at most 4
 * N), which bounds every element. Nothing is said of a transform that has a number among its inputs which is not
 * finite. */
#include "functions/elementary.h"
#include "kernel/frame.h"
#include "kernel/value_memory.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct point {
    double re, im;
} point;

static inline point times(point a, point b)
{
    return (point){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
static inline point plus(point a, point b)
{
    return (point){a.re + b.re, a.im + b.im};
}
static inline point minus(point a, point b)
{
    return (point){a.re - b.re, a.im - b.im};
}

#define PI 3.14159265358979323846

/* e^(2πi k / n), 0 ≤ k < n: the angle is brought into an eighth of the circle by integer arithmetic, so that equal
 * magnitudes have equal bits. */
static point on_circle(int64_t k, int64_t n)
{
    int64_t eighths = 8 * k; /* of 1 / n of the circle */
    const bool below = eighths > 4 * n;
    if (below) eighths = 8 * n - eighths;
    const bool left = eighths > 2 * n;
    if (left) eighths = 4 * n - eighths;
    const bool steep = eighths > n;
    if (steep) eighths = 2 * n - eighths;
    const double angle = PI / 4 * (double)eighths / (double)n, c = lb_cos(angle), s = lb_sin(angle);
    const double re = steep ? s : c, im = steep ? c : s;
    return (point){left ? -re : re, below ? -im : im};
}

enum { MOST_FACTORS = 64, LARGEST_FACTOR = 64 };

/* How lines of one length are transformed. */
typedef struct transform {
    int64_t n;
    int factors[MOST_FACTORS], n_factors;
    point *circle;            /* the n roots of unity, in the direction of the transform */
    struct transform *spread; /* Bluestein: of a power of two; NULL: by factors */
    point *chirp, *filter;    /* e^(∓πi k² / n); the transformed chirp that is convolved with */
    point *line, *other;      /* room for one line each; of Bluestein for spread->n */
} transform;

static void transform_free(transform *transform)
{
    if (!transform) return;
    transform_free(transform->spread);
    free(transform->circle), free(transform->chirp), free(transform->filter), free(transform->line),
        free(transform->other);
    free(transform);
}

/* 4 as often as it goes, then primes in ascending order. False: a prime factor is too large. */
static bool factorise(transform *transform)
{
    int64_t rest = transform->n;
    for (int p = 4; rest > 1; p = p == 4 ? 2 : p == 2 ? 3 : p + 2) {
        if (p > LARGEST_FACTOR) return false;
        for (; rest % p == 0; rest /= p) transform->factors[transform->n_factors++] = p;
    }
    return true;
}

/* y = the transform of every `stride`-th of x, of length n, by the factors from `factor` on. y and x do not overlap. */
static void by_factors(const transform *transform, point *y, const point *x, int64_t n, int64_t stride, int factor)
{
    if (n == 1) {
        y[0] = x[0];
        return;
    }
    const int p = transform->factors[factor];
    const int64_t m = n / p, step = transform->n / n, turn = transform->n / p;
    for (int q = 0; q < p; q++) by_factors(transform, y + q * m, x + q * stride, m, stride * p, factor + 1);
    for (int64_t k = 0; k < m; k++) {
        point part[LARGEST_FACTOR];
        for (int q = 0; q < p; q++) part[q] = q ? times(y[q * m + k], transform->circle[q * k * step]) : y[k];
        if (p == 2) {
            y[k] = plus(part[0], part[1]), y[m + k] = minus(part[0], part[1]);
            continue;
        }
        for (int r = 0; r < p; r++) {
            point sum = part[0];
            for (int q = 1; q < p; q++) sum = plus(sum, times(part[q], transform->circle[(int64_t)(q * r % p) * turn]));
            y[r * m + k] = sum;
        }
    }
}

static void run_line(transform *t, point *y, const point *x);

/* y[k] = c[k] Σ (x[j] c[j]) conj(c[k - j]), since 2 j k = j² + k² - (k - j)². The convolution goes by transforms of a
 * power of two. */
static void by_chirp(transform *t, point *y, const point *x)
{
    transform *s = t->spread;
    const int64_t m = s->n;
    memset(t->line, 0, (size_t)m * sizeof *t->line);
    for (int64_t j = 0; j < t->n; j++) t->line[j] = times(x[j], t->chirp[j]);
    by_factors(s, t->other, t->line, m, 1, 0);
    for (int64_t k = 0; k < m; k++) { /* real and imaginary part exchanged: the transform in the other direction */
        const point z = times(t->other[k], t->filter[k]);
        t->line[k] = (point){z.im, z.re};
    }
    by_factors(s, t->other, t->line, m, 1, 0);
    for (int64_t k = 0; k < t->n; k++)
        y[k] = times(t->chirp[k], (point){t->other[k].im / (double)m, t->other[k].re / (double)m});
}

static void run_line(transform *transform, point *y, const point *x)
{
    if (transform->spread)
        by_chirp(transform, y, x);
    else
        by_factors(transform, y, x, transform->n, 1, 0);
}

static transform *transform_new(int64_t n, int sign);

static bool prepare_chirp(transform *transform, int sign)
{
    int64_t m = 1;
    while (m < 2 * transform->n - 1) m *= 2;
    transform->spread = transform_new(m, -1);
    transform->chirp = calloc((size_t)transform->n, sizeof *transform->chirp);
    transform->filter = calloc((size_t)m, sizeof *transform->filter);
    transform->line = calloc((size_t)m, sizeof *transform->line);
    transform->other = calloc((size_t)m, sizeof *transform->other);
    if (!transform->spread || !transform->chirp || !transform->filter || !transform->line || !transform->other)
        return false;
    int64_t square = 0; /* k² modulo 2 n */
    for (int64_t k = 0; k < transform->n; k++) {
        const point c = on_circle(square, 2 * transform->n);
        transform->chirp[k] = (point){c.re, sign * c.im};
        transform->line[k] = (point){c.re, -sign * c.im};
        if (k) transform->line[m - k] = transform->line[k];
        square = (square + 2 * k + 1) % (2 * transform->n);
    }
    by_factors(transform->spread, transform->filter, transform->line, m, 1, 0);
    return true;
}

/* sign -1: e^(-2πi jk/n), forward; 1: the other way. NULL: out of memory. */
static transform *transform_new(int64_t n, int sign)
{
    transform *transform = calloc(1, sizeof *transform);
    if (!transform) return NULL;
    transform->n = n;
    bool done = true;
    if (factorise(transform)) {
        transform->circle = calloc((size_t)n, sizeof *transform->circle);
        done = transform->circle != NULL;
        for (int64_t k = 0; done && k < n; k++) {
            const point c = on_circle(k, n);
            transform->circle[k] = (point){c.re, sign * c.im};
        }
    } else {
        done = prepare_chirp(transform, sign);
    }
    if (done) return transform;
    transform_free(transform);
    return NULL;
}

/* ---- the ops ----------------------------------------------------------------------------------------------------- */

/* One call: samples of `shape` complex numbers, the transformed dimensions last. */
typedef struct fourier {
    lb_call *call;
    int dims[LB_MAX_DIMS], n_dims; /* that are transformed, as the op names them; what is halved stands last */
    int order[LB_MAX_DIMS];        /* of all dimensions: those that are not transformed first */
    int64_t batch;
    double scale;
    bool to_half,
        from_half; /* the last dimension of the result, or of the input, is half of one with conjugate symmetry */
    int sign;
} fourier;

static lb_status refuse(const lb_call *call, const char *why)
{
    return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: %s", call->row->name, why);
}

/* The dimensions of `t` in the order of `fourier`, those of complex numbers in units of their parts; part 1 is the
 * imaginary one. */
static lb_tensor arranged(const fourier *fourier, const lb_tensor *t, int part)
{
    lb_tensor a = {t->data, lb_dtype_part(t->dtype), t->layout};
    const int units = lb_dtype_is_complex(t->dtype) ? 2 : 1;
    for (int d = 0; d < t->layout.ndim; d++) {
        a.layout.shape[d] = t->layout.shape[fourier->order[d]];
        a.layout.stride[d] = units * t->layout.stride[fourier->order[d]];
    }
    a.layout.offset = 0;
    if (part) a.data = (char *)a.data + lb_dtype_bits(a.dtype) / 8;
    return a;
}

/* The real or imaginary numbers of dense points in the shape of `like`. */
static lb_tensor parts_of(point *point, const lb_layout *like, int part)
{
    lb_tensor tensor = {(double *)point + part, LB_F64, lb_layout_contiguous(like->ndim, like->shape)};
    for (int d = 0; d < like->ndim; d++) tensor.layout.stride[d] *= 2;
    return tensor;
}

static bool read_dims(fourier *fourier, const lb_tensor *x)
{
    int64_t dims[LB_MAX_DIMS];
    bool is_taken[LB_MAX_DIMS] = {false};
    fourier->n_dims = lb_frame_arg_ints(fourier->call, 1, dims, LB_MAX_DIMS);
    for (int i = 0; i < fourier->n_dims; i++) {
        fourier->dims[i] = lb_frame_wrap_dim(dims[i], x->layout.ndim);
        if (fourier->dims[i] < 0 || is_taken[fourier->dims[i]]) return false;
        is_taken[fourier->dims[i]] = true;
    }
    int n = 0;
    fourier->batch = 1;
    for (int d = 0; d < x->layout.ndim; d++)
        if (!is_taken[d]) fourier->order[n++] = d, fourier->batch *= x->layout.shape[d];
    for (int i = 0; i < fourier->n_dims; i++) fourier->order[n++] = fourier->dims[i];
    return true;
}

/* All lines along dimension `d` of `sample` (its shape is `shape`), in place. */
static bool along(point *sample, const int64_t *shape, int n_dims, int d, int sign)
{
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < d; i++) outer *= shape[i];
    for (int i = d + 1; i < n_dims; i++) inner *= shape[i];
    const int64_t n = shape[d];
    transform *transform = transform_new(n, sign);
    point *line = malloc((size_t)n * sizeof *line), *result = malloc((size_t)n * sizeof *result);
    const bool room = transform && line && result;
    for (int64_t o = 0; room && o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            point *at = sample + o * n * inner + i;
            for (int64_t k = 0; k < n; k++) line[k] = at[k * inner];
            run_line(transform, result, line);
            for (int64_t k = 0; k < n; k++) at[k * inner] = result[k];
        }
    transform_free(transform);
    free(line), free(result);
    return room;
}

/* Lines of `half` numbers become whole ones of n by conjugate symmetry. The imaginary parts that symmetry makes 0 are
 * not read. */
static void complete(point *whole, const point *half, int64_t lines, int64_t n_half, int64_t n)
{
    for (int64_t l = 0; l < lines; l++) {
        const point *from = half + l * n_half;
        point *to = whole + l * n;
        for (int64_t k = 0; k < n; k++) {
            const bool mirrored = k > n / 2;
            const point z = from[mirrored ? n - k : k];
            to[k] = (point){z.re, k == 0 || 2 * k == n ? 0 : mirrored ? -z.im : z.im};
        }
    }
}

/* What bounds every element of one sample, both parts alike: √N |x|_2 log2(4 N); not finite: DBL_MAX, of which nothing
 * is said. */
static double size_of(const point *point, int64_t n)
{
    double largest = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(point[i].re) || !isfinite(point[i].im)) return DBL_MAX;
        largest = fmax(largest, fmax(fabs(point[i].re), fabs(point[i].im)));
    }
    if (largest == 0) return 0;
    for (int64_t i = 0; i < n; i++) {
        const double re = point[i].re / largest, im = point[i].im / largest;
        sum += re * re + im * im;
    }
    int bits = 2;
    for (int64_t m = 1; m < n; m *= 2) bits++;
    const double size = largest * __builtin_sqrt(sum) * __builtin_sqrt((double)n) * bits;
    return isfinite(size) ? size : DBL_MAX;
}

/* One sample, whole on entry; the result lies in it whole. */
static bool transform_sample(const fourier *fourier, point *x, const int64_t *shape, int64_t n, bool twin)
{
    if (twin) {
        const double size = size_of(x, n) * (size_of(x, n) < DBL_MAX ? fourier->scale : 1);
        for (int64_t i = 0; i < n; i++) x[i] = (point){size, size};
        return true;
    }
    for (int i = 0; i < fourier->n_dims; i++)
        if (!along(x, shape, fourier->n_dims, i, fourier->sign)) return false;
    for (int64_t i = 0; i < n; i++) x[i].re *= fourier->scale, x[i].im *= fourier->scale;
    return true;
}

/* A real transform of one dimension has no imaginary part at frequency 0 and at the highest one. */
static void make_real(point *point, int64_t n)
{
    point[0].im = 0;
    if (n % 2 == 0) point[n / 2].im = 0;
}

/* Where a half is read, dimensions before the last are transformed first: of what then has no symmetry the last
 * transform reads a half. */
static bool run_sample(const fourier *fourier, point *in, const int64_t *in_shape, point *x, const int64_t *shape,
                       int64_t n, bool twin)
{
    const int last = fourier->n_dims - 1;
    const int64_t lines = shape[last] ? n / shape[last] : 0;
    if (!fourier->from_half) return transform_sample(fourier, x, shape, n, twin);
    for (int i = 0; !twin && i < last; i++)
        if (!along(in, in_shape, fourier->n_dims, i, fourier->sign)) return false;
    complete(x, in, lines, in_shape[last], shape[last]);
    if (twin) return transform_sample(fourier, x, shape, n, true);
    if (!along(x, shape, fourier->n_dims, last, fourier->sign)) return false;
    for (int64_t i = 0; i < n; i++) x[i].re *= fourier->scale;
    return true;
}

/* The first `kept` numbers of every line of n. */
static void halve(point *point, int64_t lines, int64_t n, int64_t kept)
{
    for (int64_t l = 0; l < lines; l++) memmove(point + l * kept, point + l * n, (size_t)kept * sizeof *point);
}

static int64_t product_of(const int64_t *shape, int n)
{
    int64_t product = 1;
    for (int i = 0; i < n; i++) product *= shape[i];
    return product;
}

static bool shapes_fit(const fourier *fourier, const lb_tensor *in, const lb_tensor *out, const int64_t *shape)
{
    for (int d = 0; d < in->layout.ndim; d++)
        if (d != fourier->dims[fourier->n_dims - 1] && in->layout.shape[d] != out->layout.shape[d]) return false;
    const int64_t n = shape[fourier->n_dims - 1], a = in->layout.shape[fourier->dims[fourier->n_dims - 1]],
                  b = out->layout.shape[fourier->dims[fourier->n_dims - 1]];
    return a == (fourier->from_half ? n / 2 + 1 : n) && b == (fourier->to_half ? n / 2 + 1 : n);
}

static lb_status run_all(const fourier *fourier, const lb_tensor *in, lb_tensor *out, const int64_t *shape, bool twin)
{
    const lb_tensor in_re = arranged(fourier, in, 0), out_re = arranged(fourier, out, 0);
    const int first = in->layout.ndim - fourier->n_dims, last = fourier->n_dims - 1;
    const int64_t *in_shape = in_re.layout.shape + first, n_in = product_of(in_shape, fourier->n_dims),
                  n = product_of(shape, fourier->n_dims), lines = shape[last] ? n / shape[last] : 0,
                  kept = out_re.layout.shape[in->layout.ndim - 1];
    point *given = calloc((size_t)(fourier->batch * n_in) + 1, sizeof *given), *x = calloc((size_t)n + 1, sizeof *x),
          *result = calloc((size_t)(fourier->batch * lines * kept) + 1, sizeof *result);
    bool room = given && x && result;
    for (int part = 0; room && part < (lb_dtype_is_complex(in->dtype) ? 2 : 1); part++) {
        const lb_tensor from = arranged(fourier, in, part), to = parts_of(given, &from.layout, part);
        lb_memory_tensor_copy(&to, &from, NULL);
    }
    for (int64_t b = 0; room && b < fourier->batch && n; b++) {
        point *sample = given + b * n_in;
        if (!fourier->from_half) memcpy(x, sample, (size_t)n * sizeof *x);
        room = run_sample(fourier, sample, in_shape, x, shape, n, twin);
        /* Exactly so on a CPU; cuFFT rounds it like any other number, and the bound allows for that. */
        if (!lb_dtype_is_complex(in->dtype) && fourier->n_dims == 1 && !(twin && fourier->call->cuda)) make_real(x, n);
        halve(x, lines, shape[last], kept);
        memcpy(result + b * lines * kept, x, (size_t)(lines * kept) * sizeof *x);
    }
    for (int part = 0; room && part < (lb_dtype_is_complex(out->dtype) ? 2 : 1); part++) {
        lb_tensor to = arranged(fourier, out, part), from = parts_of(result, &to.layout, part);
        lb_memory_tensor_copy(&to, &from, fourier->call->method.cast);
    }
    free(given), free(x), free(result);
    return room ? LB_OK : lb_fail(fourier->call->err, LB_ERR_NOMEM, "out of memory for a Fourier transform");
}

/* 0: none, 1: by √N, 2: by N. Source: torch's aten/src/ATen/native/SpectralOpsUtils.h. */
static double scale_of(int64_t normalization, int64_t n)
{
    return normalization == 1 ? 1 / __builtin_sqrt((double)n) : normalization == 2 ? 1 / (double)n : 1;
}

static lb_status fourier_run(fourier *fourier, int64_t last_size, bool twin)
{
    const lb_tensor *in = lb_frame_arg_tensor(fourier->call, 0);
    lb_tensor *out = &fourier->call->results[0];
    int64_t shape[LB_MAX_DIMS];
    if (fourier->call->method.kernel || fourier->call->method.compute)
        return refuse(fourier->call, "computed in f64 alone");
    if (!out->data) return LB_OK;
    if (out->layout.ndim != in->layout.ndim || !read_dims(fourier, in))
        return refuse(fourier->call, "dimensions that it does not have");
    if (!fourier->n_dims) return refuse(fourier->call, "no dimension is transformed");
    for (int i = 0; i < fourier->n_dims; i++) shape[i] = in->layout.shape[fourier->dims[i]];
    if (fourier->from_half) shape[fourier->n_dims - 1] = last_size;
    if (!shapes_fit(fourier, in, out, shape)) return refuse(fourier->call, "shapes that do not fit");
    fourier->scale = scale_of(lb_frame_arg_int(fourier->call, 2, 0), product_of(shape, fourier->n_dims));
    return run_all(fourier, in, out, shape, twin);
}

/* self, dim, normalization, onesided */
static lb_status r2c_run(lb_call *call, bool twin)
{
    fourier fourier = {.call = call, .sign = -1, .to_half = lb_frame_arg_int(call, 3, 1) != 0};
    return fourier_run(&fourier, 0, twin);
}

/* self, dim, normalization, last_dim_size */
static lb_status c2r_run(lb_call *call, bool twin)
{
    fourier fourier = {.call = call, .sign = 1, .from_half = true};
    return fourier_run(&fourier, lb_frame_arg_int(call, 3, 0), twin);
}

/* self, dim, normalization, forward */
static lb_status c2c_run(lb_call *call, bool twin)
{
    fourier fourier = {.call = call, .sign = lb_frame_arg_int(call, 3, 1) ? -1 : 1};
    return fourier_run(&fourier, 0, twin);
}

LB_WITH_TWIN(r2c, r2c_run(call, twin))
LB_WITH_TWIN(c2r, c2r_run(call, twin))
LB_WITH_TWIN(c2c, c2c_run(call, twin))

#define ROW(NAME, ARGS, ID)                                                                                            \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = 24,                                                                                                  \
     .samples = "complex_fft " #ID,                                                                                    \
     .flags = LB_ROW_COMPLEX},

/* clang-format off */
const lb_op_row lb_rows_fft[] = {
    ROW("_fft_r2c", "self! dim normalization onesided", r2c)
    ROW("_fft_c2r", "self! dim normalization last_dim_size", c2r)
    ROW("_fft_c2c", "self! dim normalization forward", c2c)
    {NULL}
};
