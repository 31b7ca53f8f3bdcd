/* Packing, blocking and threads for one real type: a template without a guard, included by matmul.c with
 *
 *      REAL, NAME(x)                 the type; name mangling
 *      LOAD_STRIDED, ROUND           from dtype.h
 *      TRANSPOSE(dst, stride, src, src_stride, width, depth)     dst[p * stride + i] = src[i * src_stride + p]
 *      KERNEL_TYPE, kernels()        the register tiles of the instruction set in use
 *
 * A goes into panels of `rows` rows, B into panels of two vectors of columns, both with the terms of one p side by side:
 *
 *      A  panel 0 │ p=0: a00 a10 a20 … │ p=1: a01 a11 a21 … │ …       B  panel 0 │ p=0: b00 b01 b02 … │ p=1: b10 … │ …
 */

typedef struct NAME(job) {
    size_t k;
    const lb_matrix *a, *b;
    REAL *c;
    ptrdiff_t ldc;
    const lb_matmul_options *options;
    const KERNEL_TYPE *kernels;
} NAME(job);

/* The elements of one operand that lie `depth` deep: `across` runs over a panel, `along` over p. */
typedef struct NAME(strip) {
    const char *data;
    lb_dtype dtype;
    ptrdiff_t across, along;
} NAME(strip);

static NAME(strip) NAME(strip_of)(const lb_matrix *x, bool columns, size_t first, size_t p)
{
    NAME(strip) s = {x->data, x->dtype, columns ? x->col_stride : x->row_stride, columns ? x->row_stride : x->col_stride};
    s.data += ((ptrdiff_t)first * s.across + (ptrdiff_t)p * s.along) * (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8);
    return s;
}

/* What the options ask of every element, on what has been packed. */
static void NAME(prepare)(REAL *x, size_t n, const lb_matmul_options *o)
{
    if (o->input) ROUND(x, n, o->input, NULL);
    if (o->tf32 && sizeof(REAL) == sizeof(float))
        lb_round_to_tf32((float *)(void *)x, n, o->tf32 == LB_TF32_RZ ? LB_RZ : o->tf32 == LB_TF32_RNA ? LB_RNA : LB_RNE);
    for (size_t i = 0; o->absolute && i < n; i++) x[i] = x[i] < 0 ? -x[i] : x[i];
}

/* `width` neighbours, `depth` deep, to dst[p * stride + i]; `scratch` holds width * depth elements. */
static void NAME(pack_panel)(REAL *dst, size_t stride, const NAME(strip) *s, size_t width, size_t depth, REAL *scratch)
{
    const ptrdiff_t bytes = (ptrdiff_t)(lb_dtype_bits(s->dtype) / 8);
    if (s->across == 1 && s->dtype == NAME(real_dtype)) {
        for (size_t p = 0; p < depth; p++)
            memcpy(dst + p * stride, s->data + (ptrdiff_t)p * s->along * bytes, width * sizeof *dst);
        return;
    }
    if (s->along == 1 && s->dtype == NAME(real_dtype) && (uintptr_t)s->data % sizeof(REAL) == 0) {
        TRANSPOSE(dst, stride, (const REAL *)(const void *)s->data, s->across, width, depth);
        return;
    }
    for (size_t i = 0; i < width; i++)
        LOAD_STRIDED(scratch + i * depth, s->dtype, s->data + (ptrdiff_t)i * s->across * bytes, s->along, depth);
    TRANSPOSE(dst, stride, scratch, (ptrdiff_t)depth, width, depth);
}

/* `extent` neighbours as panels of `width`, `stride` apart at each p. Narrow types that lie dense across the panels are
 * loaded in whole rows, so that a conversion has something to vectorise. */
static void NAME(pack)(REAL *dst, size_t width, size_t stride, const NAME(strip) *whole, size_t extent, size_t depth,
                       REAL *scratch, const lb_matmul_options *o)
{
    const ptrdiff_t bytes = (ptrdiff_t)(lb_dtype_bits(whole->dtype) / 8);
    const bool rows = whole->across == 1 && whole->dtype != NAME(real_dtype);
    for (size_t p = 0; rows && p < depth; p++)
        for (size_t at = 0; at < extent; at += SCRATCH) {
            const size_t count = extent - at < SCRATCH ? extent - at : SCRATCH;
            LOAD_STRIDED(scratch, whole->dtype, whole->data + ((ptrdiff_t)p * whole->along + (ptrdiff_t)at) * bytes, 1, count);
            for (size_t i = 0; i < count;) {
                const size_t panel = (at + i) / width, lane = (at + i) % width;
                const size_t run = width - lane < count - i ? width - lane : count - i;
                memcpy(dst + panel * stride * depth + p * stride + lane, scratch + i, run * sizeof *dst);
                i += run;
            }
        }
    for (size_t first = 0; first < extent; first += width) {
        REAL *panel = dst + first / width * stride * depth;
        NAME(strip) s = *whole;
        s.data += (ptrdiff_t)first * s.across * bytes;
        const size_t count = extent - first < width ? extent - first : width;
        if (!rows) NAME(pack_panel)(panel, stride, &s, count, depth, scratch);
        NAME(prepare)(panel, stride * depth, o);
    }
}

/* One tile; at the right edge through a copy, since kernels store whole vectors. */
static void NAME(run_tile)(const NAME(job) *job, size_t rows, size_t width, size_t depth, const REAL *a, const REAL *b,
                           ptrdiff_t ldb, REAL *c, tile_mode mode)
{
    const KERNEL_TYPE *t = job->kernels;
    const int vectors = width > (size_t)t->lanes ? 2 : 1;
    const size_t lanes = (size_t)(t->lanes * vectors);
    if (width == lanes) {
        t->tile[rows - 1][vectors - 1](depth, a, b, ldb, c, job->ldc, mode);
        return;
    }
    REAL copy[MAX_ROWS * MAX_COLUMNS];
    for (size_t r = 0; r < rows && mode != TILE_FIRST; r++)
        memcpy(copy + r * lanes, c + (ptrdiff_t)r * job->ldc, width * sizeof *c);
    t->tile[rows - 1][vectors - 1](depth, a, b, ldb, copy, (ptrdiff_t)lanes, mode);
    for (size_t r = 0; r < rows; r++) memcpy(c + (ptrdiff_t)r * job->ldc, copy + r * lanes, width * sizeof *c);
}

/* Rounding after every fma: the chains of a few rows by one panel side by side. Returns them in acc. */
LB_INLINE void NAME(rounded_tile_body)(REAL *acc, size_t rows, size_t columns, size_t depth, const REAL *a, size_t a_stride,
                                       const REAL *b, lb_dtype accumulate)
{
    for (size_t p = 0; p < depth; p++) {
        for (size_t r = 0; r < rows; r++) {
            REAL *row = acc + r * columns;
            const REAL x = a[p * a_stride + r];
            for (size_t j = 0; j < columns; j++) row[j] = FMA_SCALAR(x, b[p * columns + j], row[j]);
            if (sizeof(REAL) == sizeof(float) && accumulate == LB_BF16) round_to_bf16((float *)(void *)row, columns);
        }
        if (sizeof(REAL) != sizeof(float) || accumulate != LB_BF16) ROUND(acc, rows * columns, accumulate, NULL);
    }
}
PER_ISA(NAME(rounded_tile), NAME(rounded_tile_body),
           (REAL * acc, size_t rows, size_t columns, size_t depth, const REAL *a, size_t a_stride, const REAL *b,
            lb_dtype accumulate),
           (acc, rows, columns, depth, a, a_stride, b, accumulate))

static void NAME(run_rounded)(const NAME(job) *job, size_t rows, size_t width, size_t depth, const REAL *a, const REAL *b,
                              REAL *c, tile_mode mode)
{
    const size_t columns = (size_t)job->kernels->lanes * 2;
    const lb_dtype accumulate = job->options->accumulate;
    REAL acc[MAX_ROWS * MAX_COLUMNS] = {0};
    for (size_t r = 0; mode == TILE_CONTINUE && r < rows; r++)
        memcpy(acc + r * columns, c + (ptrdiff_t)r * job->ldc, width * sizeof *c);
    NAME(rounded_tile)(acc, rows, columns, depth, a, (size_t)job->kernels->a_stride, b, accumulate);
    for (size_t r = 0; r < rows; r++) {
        REAL *to = c + (ptrdiff_t)r * job->ldc;
        for (size_t j = 0; j < width; j++) {
            const REAL x = acc[r * columns + j], sum = mode == TILE_ADD ? to[j] + x : x;
            to[j] = sum == sum ? sum : (REAL)NAN;
        }
        if (mode == TILE_ADD) ROUND(to, width, accumulate, NULL);
    }
}

typedef struct NAME(region) {
    size_t i0, i1, j0, j1;
} NAME(region);

/* Panels of B that lie ready in memory need no copy when few rows will use them. */
static bool NAME(in_place)(const NAME(job) *job, const NAME(region) *g)
{
    const lb_matmul_options *o = job->options;
    return job->b->dtype == NAME(real_dtype) && job->b->col_stride == 1 && g->i1 - g->i0 <= 2 * (size_t)job->kernels->rows &&
           !o->input && !o->tf32 && !o->absolute && !o->accumulate && (uintptr_t)job->b->data % sizeof(REAL) == 0;
}

/* All tiles of rows [i, i + m) by columns [j, j + n), whose panels have been packed. */
static void NAME(tiles)(const NAME(job) *job, const NAME(blocks) *k, const REAL *a, const REAL *b, tile_mode mode)
{
    const size_t columns = (size_t)job->kernels->lanes * 2, a_stride = (size_t)job->kernels->a_stride;
    for (size_t j = 0; j < k->n; j += columns) {
        const size_t width = k->n - j < columns ? k->n - j : columns;
        const REAL *panel = b + j * k->depth;
        ptrdiff_t ldb = (ptrdiff_t)columns;
        if (k->in_place && width == columns) {
            ldb = job->b->row_stride;
            panel = (const REAL *)job->b->data + (ptrdiff_t)k->p * ldb + (ptrdiff_t)(k->j + j);
        }
        for (size_t i = 0; i < k->m; i += k->rows) {
            const size_t rows = k->m - i < k->rows ? k->m - i : k->rows;
            const REAL *strip = a + i / k->rows * a_stride * k->depth;
            REAL *c = job->c + (ptrdiff_t)(k->i + i) * job->ldc + (ptrdiff_t)(k->j + j);
            if (job->options->accumulate)
                NAME(run_rounded)(job, rows, width, k->depth, strip, panel, c, mode);
            else
                NAME(run_tile)(job, rows, width, k->depth, strip, panel, ldb, c, mode);
        }
    }
}

static void NAME(pack_b)(const NAME(job) *job, const NAME(blocks) *k, REAL *b, REAL *scratch)
{
    const size_t columns = (size_t)job->kernels->lanes * 2;
    /* In place, only a last panel that is not whole is copied (and so never read past its end). */
    const size_t first = k->in_place ? k->n / columns * columns : 0;
    if (first == k->n) return;
    const NAME(strip) s = NAME(strip_of)(job->b, true, k->j + first, k->p);
    NAME(pack)(b + first * k->depth, columns, columns, &s, k->n - first, k->depth, scratch, job->options);
}

/* Terms [p0, p1) of a region of C: all of them one chain, or (TILE_ADD) the chain of each `step` added to C. */
static bool NAME(chains)(const NAME(job) *job, const NAME(region) *g, size_t p0, size_t p1, size_t step, tile_mode mode)
{
    const KERNEL_TYPE *t = job->kernels;
    const size_t columns = (size_t)t->lanes * 2, m = g->i1 - g->i0, n = g->j1 - g->j0;
    NAME(blocks) k = {.in_place = NAME(in_place)(job, g)};
    const size_t panels = (m + (size_t)t->rows - 1) / (size_t)t->rows;
    k.rows = panels ? (m + panels - 1) / panels : 1; /* tiles of even height: 32 rows are 11 + 11 + 10, not 14 + 14 + 4 */
    const size_t most_m = MOST_ROWS / k.rows * k.rows, most_n = MOST_COLUMNS;
    const size_t wide_m = m < most_m ? m : most_m, wide_n = n < most_n ? n : most_n;
    const size_t deep = p1 - p0 < step ? p1 - p0 : step;
    REAL *a = buffer_get(0, (wide_m / k.rows + 1) * (size_t)t->a_stride * deep * sizeof *a);
    REAL *b = buffer_get(1, (wide_n / columns + 1) * columns * deep * sizeof *b);
    REAL *scratch = buffer_get(2, (SCRATCH + MAX_COLUMNS * deep) * sizeof *scratch);
    if (!a || !b || !scratch) return false;
    for (k.j = g->j0; k.j < g->j1; k.j += most_n) {
        k.n = g->j1 - k.j < most_n ? g->j1 - k.j : most_n;
        tile_mode now = mode;
        for (k.p = p0; k.p < p1; k.p += step) {
            k.depth = p1 - k.p < step ? p1 - k.p : step;
            NAME(pack_b)(job, &k, b, scratch);
            for (k.i = g->i0; k.i < g->i1; k.i += most_m) {
                k.m = g->i1 - k.i < most_m ? g->i1 - k.i : most_m;
                const NAME(strip) s = NAME(strip_of)(job->a, false, k.i, k.p);
                NAME(pack)(a, k.rows, (size_t)t->a_stride, &s, k.m, k.depth, scratch, job->options);
                NAME(tiles)(job, &k, a, b, now);
            }
            if (now == TILE_FIRST) now = TILE_CONTINUE;
        }
    }
    return true;
}

/* Blocks too long for one pass over packed panels: each is a chain of its own into `part`, which is then added. */
static bool NAME(long_blocks)(const NAME(job) *job, const NAME(region) *g, size_t block)
{
    const size_t m = g->i1 - g->i0, n = g->j1 - g->j0;
    REAL *part = malloc(m * n * sizeof *part);
    if (!part) return false;
    NAME(job) inner = *job;
    inner.ldc = (ptrdiff_t)n;
    inner.c = part - (ptrdiff_t)g->i0 * inner.ldc - (ptrdiff_t)g->j0;
    bool done = true;
    for (size_t p = 0; done && p < job->k; p += block) {
        done = NAME(chains)(&inner, g, p, job->k - p < block ? job->k : p + block, DEPTH, TILE_FIRST);
        for (size_t i = 0; done && i < m; i++) {
            REAL *to = job->c + (ptrdiff_t)(g->i0 + i) * job->ldc + (ptrdiff_t)g->j0;
            for (size_t j = 0; j < n; j++) {
                const REAL sum = to[j] + part[i * n + j];
                to[j] = sum == sum ? sum : (REAL)NAN;
            }
            if (job->options->accumulate) ROUND(to, n, job->options->accumulate, NULL);
        }
    }
    free(part);
    return done;
}

static bool NAME(run_region)(const NAME(job) *job, const NAME(region) *g)
{
    const lb_matmul_options *o = job->options;
    if (g->i0 == g->i1 || g->j0 == g->j1) return true;
    const bool blocked = o->block && o->block < job->k;
    if (!o->add && (blocked || !job->k))
        for (size_t i = g->i0; i < g->i1; i++)
            memset(job->c + (ptrdiff_t)i * job->ldc + (ptrdiff_t)g->j0, 0, (g->j1 - g->j0) * sizeof(REAL));
    if (!job->k) return true;
    if (!blocked && o->block && o->add) return NAME(long_blocks)(job, g, job->k);
    if (!blocked) return NAME(chains)(job, g, 0, job->k, DEPTH, o->add ? TILE_CONTINUE : TILE_FIRST);
    if (o->block <= MOST_DEPTH) return NAME(chains)(job, g, 0, job->k, o->block, TILE_ADD);
    return NAME(long_blocks)(job, g, o->block);
}

/* The rectangle of thread `t` of down * across. */
static NAME(region) NAME(share)(const NAME(job) *job, size_t m, size_t n, int t, int down, int across)
{
    const size_t row_unit = (size_t)job->kernels->rows, column_unit = (size_t)job->kernels->lanes * 2;
    const size_t rows = (m + row_unit - 1) / row_unit, columns = (n + column_unit - 1) / column_unit;
    const size_t y = (size_t)(t / across), x = (size_t)(t % across);
    NAME(region) g = {rows * y / (size_t)down * row_unit, rows * (y + 1) / (size_t)down * row_unit,
                      columns * x / (size_t)across * column_unit, columns * (x + 1) / (size_t)across * column_unit};
    g.i0 = g.i0 < m ? g.i0 : m;
    g.i1 = g.i1 < m ? g.i1 : m;
    g.j0 = g.j0 < n ? g.j0 : n;
    g.j1 = g.j1 < n ? g.j1 : n;
    return g;
}

static bool NAME(run)(const NAME(job) *job, size_t m, size_t n, int threads)
{
    if (threads <= 1) return NAME(run_region)(job, &(NAME(region)){0, m, 0, n});
    int down, across;
    thread_grid(m, n, threads, &down, &across);
    bool failed = false;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(|| : failed)
    for (int t = 0; t < down * across; t++) {
        const NAME(region) g = NAME(share)(job, m, n, t, down, across);
        failed = failed || !NAME(run_region)(job, &g);
    }
    return !failed;
}

lb_status NAME(lb_matmul_batched)(const lb_matmul_batch *batch, size_t m, size_t n, size_t k, const lb_matrix *a,
                                  const lb_matrix *b, REAL *c, ptrdiff_t ldc, const lb_matmul_options *options)
{
    static const lb_matmul_options plain = LB_MATMUL_OPTIONS_INIT;
    if (!options) options = &plain;
    if (lb_dtype_bits(a->dtype) < 8 || lb_dtype_bits(b->dtype) < 8) return LB_ERR_UNSUPPORTED;
    const KERNEL_TYPE *t = NAME(kernels_for)();
    const int threads = thread_count(batch->batch, m, n, k, options);
    const bool share_products = batch->batch >= (size_t)threads && threads > 1;
    const ptrdiff_t a_bytes = batch->a_step * (ptrdiff_t)(lb_dtype_bits(a->dtype) / 8),
                    b_bytes = batch->b_step * (ptrdiff_t)(lb_dtype_bits(b->dtype) / 8);
    bool failed = false;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(|| : failed) if (share_products)
    for (size_t i = 0; i < batch->batch; i++) {
        lb_matrix ai = *a, bi = *b;
        ai.data = (const char *)a->data + (ptrdiff_t)i * a_bytes;
        bi.data = (const char *)b->data + (ptrdiff_t)i * b_bytes;
        const NAME(job) job = {k, &ai, &bi, c + (ptrdiff_t)i * batch->c_step, ldc, options, t};
        failed = failed || !NAME(run)(&job, m, n, share_products ? 1 : threads);
    }
    return failed ? LB_ERR_NOMEM : LB_OK;
}

lb_status NAME(lb_matmul)(size_t m, size_t n, size_t k, const lb_matrix *a, const lb_matrix *b, REAL *c, ptrdiff_t ldc,
                          const lb_matmul_options *options)
{
    return NAME(lb_matmul_batched)(&(lb_matmul_batch){1, 0, 0, 0}, m, n, k, a, b, c, ldc, options);
}
