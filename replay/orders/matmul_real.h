/* Packing, blocking and threads for one real type: a template without a guard, included by matmul.c with
 *
 *      REAL, NAME(x)                 the type; name mangling
 *      LOAD_STRIDED, ROUND           from dtype.h
 *      TRANSPOSE(dst, stride, src, src_stride, width, depth)     dst[p * stride + i] = src[i * src_stride + p]
 *      KERNEL_TYPE, kernels()        the register tiles of the instruction set in use
 *
 * A goes into panels of `rows` rows, B into panels of two vectors of columns, both with the terms of one p side by
 * side:
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
    NAME(strip)
    s = {x->data, x->dtype, columns ? x->col_stride : x->row_stride, columns ? x->row_stride : x->col_stride};
    s.data += ((ptrdiff_t)first * s.across + (ptrdiff_t)p * s.along) * (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8);
    return s;
}

/* What the options ask of every element. Sums that are rounded at every addition take canonical NaNs alone. */
static void NAME(prepare)(REAL *x, size_t n, const lb_matmul_options *o)
{
    if (o->input) ROUND(x, n, o->input, NULL);
    if (o->tf32 && sizeof(REAL) == sizeof(float))
        lb_round_to_grid_tf32((float *)(void *)x, n,
                              o->tf32 == LB_TF32_RZ    ? LB_RZ
                              : o->tf32 == LB_TF32_RNA ? LB_RNA
                                                       : LB_RNE);
    for (size_t i = 0; o->absolute && i < n; i++) x[i] = x[i] < 0 ? -x[i] : x[i];
    for (size_t i = 0; o->accumulate && i < n; i++) x[i] = x[i] == x[i] ? x[i] : (REAL)NAN;
}

/* Is a tile to read this operand where it lies? */
static bool NAME(is_plain)(const lb_matrix *x, const lb_matmul_options *o)
{
    return x->dtype == NAME(real_dtype) && !o->input && !o->tf32 && !o->absolute && !o->accumulate &&
           (uintptr_t)x->data % sizeof(REAL) == 0;
}

/* Copies of a constant length become plain vector code. */
LB_INLINE void NAME(copy_panel_body)(REAL *dst, size_t stride, const REAL *src, ptrdiff_t along, size_t width,
                                     size_t depth)
{
#define COPY(W)                                                                                                        \
    for (size_t p = 0; p < depth; p++) memcpy(dst + p * stride, src + (ptrdiff_t)p * along, (W) * sizeof *dst)
    if (width == 32)
        COPY(32);
    else if (width == 16)
        COPY(16);
    else if (width == 14)
        COPY(14);
    else if (width == 6)
        COPY(6);
    else
        COPY(width);
#undef COPY
}
PER_ISA(NAME(copy_panel), NAME(copy_panel_body),
        (REAL * dst, size_t stride, const REAL *src, ptrdiff_t along, size_t width, size_t depth),
        (dst, stride, src, along, width, depth))

/* `width` neighbours, `depth` deep, to dst[p * stride + i]; `scratch` holds width * depth elements. */
static void NAME(pack_panel)(REAL *dst, size_t stride, const NAME(strip) * s, size_t width, size_t depth, REAL *scratch)
{
    const ptrdiff_t bytes = (ptrdiff_t)(lb_dtype_bits(s->dtype) / 8);
    if (s->across == 1 && s->dtype == NAME(real_dtype)) {
        NAME(copy_panel)(dst, stride, (const REAL *)(const void *)s->data, s->along, width, depth);
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
static void NAME(pack)(REAL *dst, size_t width, size_t stride, const NAME(strip) * whole, size_t extent, size_t depth,
                       REAL *scratch, const lb_matmul_options *o)
{
    const ptrdiff_t bytes = (ptrdiff_t)(lb_dtype_bits(whole->dtype) / 8);
    const bool rows = whole->across == 1 && whole->dtype != NAME(real_dtype);
    for (size_t p = 0; rows && p < depth; p++)
        for (size_t at = 0; at < extent; at += SCRATCH) {
            const size_t count = extent - at < SCRATCH ? extent - at : SCRATCH;
            LOAD_STRIDED(scratch, whole->dtype, whole->data + ((ptrdiff_t)p * whole->along + (ptrdiff_t)at) * bytes, 1,
                         count);
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

/* Where a tile finds its operands. */
typedef struct NAME(tile_operands) {
    const REAL *a, *b;
    ptrdiff_t a_step, ldb;
    bool a_as_rows;
} NAME(tile_operands);

/* One tile. Without masks a right edge goes through a copy, since kernels store whole vectors then. */
static void NAME(run_tile)(const NAME(job) * job, size_t rows, size_t width, size_t depth,
                           const NAME(tile_operands) * x, REAL *c, tile_mode mode)
{
    const KERNEL_TYPE *t = job->kernels;
    const int vectors = width > (size_t)t->lanes ? 2 : 1, edge = (int)width - (vectors - 1) * t->lanes;
    const size_t lanes = (size_t)(t->lanes * vectors);
    if (width == lanes || t->masks) {
        t->tile[rows - 1][x->a_as_rows][vectors - 1](depth, x->a, x->a_step, x->b, x->ldb, c, job->ldc, edge, mode);
        return;
    }
    REAL copy[MAX_ROWS * MAX_COLUMNS];
    for (size_t r = 0; r < rows && mode != TILE_FIRST; r++)
        memcpy(copy + r * lanes, c + (ptrdiff_t)r * job->ldc, width * sizeof *c);
    t->tile[rows - 1][x->a_as_rows][vectors - 1](depth, x->a, x->a_step, x->b, x->ldb, copy, (ptrdiff_t)lanes, t->lanes,
                                                 mode);
    for (size_t r = 0; r < rows; r++) memcpy(c + (ptrdiff_t)r * job->ldc, copy + r * lanes, width * sizeof *c);
}

/* Rounding after every fma: the chains of a few rows by one panel side by side. Returns them in acc. */
LB_INLINE void NAME(rounded_tile_body)(REAL *acc, size_t rows, size_t columns, size_t depth, const REAL *a,
                                       size_t a_stride, const REAL *b, lb_dtype accumulate)
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

static void NAME(run_rounded)(const NAME(job) * job, size_t rows, size_t width, size_t depth, const REAL *a,
                              const REAL *b, REAL *c, tile_mode mode)
{
    const size_t columns = (size_t)job->kernels->lanes * 2;
    const lb_dtype accumulate = job->options->accumulate;
    REAL acc[MAX_ROWS * MAX_COLUMNS] = {0};
    for (size_t r = 0; mode == TILE_CONTINUE && r < rows; r++)
        memcpy(acc + r * columns, c + (ptrdiff_t)r * job->ldc, width * sizeof *c);
    if (accumulate == LB_BF16 && job->kernels->rounded)
        job->kernels->rounded(acc, rows, depth, a, b);
    else
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

/* Which operands of a region are read where they lie: what few tiles will read, or what stays in the cache anyway. */
static void NAME(place)(const NAME(job) * job, const NAME(region) * g, size_t terms, blocks *k)
{
    const size_t columns = (size_t)job->kernels->lanes * 2, m = g->i1 - g->i0, n = g->j1 - g->j0;
    const bool a_near = m * terms * sizeof(REAL) <= NEAR_BYTES, b_near = n * terms * sizeof(REAL) <= NEAR_BYTES;
    k->b_in_place = job->b->col_stride == 1 && NAME(is_plain)(job->b, job->options) &&
                    (b_near || m <= 2 * (size_t)job->kernels->rows);
    k->a = A_PACKED;
    if (!NAME(is_plain)(job->a, job->options) || (!a_near && n > 2 * columns)) return;
    if (job->a->row_stride == 1)
        k->a = A_COLUMNS;
    else if (job->a->col_stride == 1)
        k->a = A_ROWS;
}

/* All tiles of rows [i, i + m) by columns [j, j + n), whose panels have been packed or need not be. */
static void NAME(tiles)(const NAME(job) * job, const blocks *k, const REAL *a, const REAL *b, tile_mode mode)
{
    const size_t columns = (size_t)job->kernels->lanes * 2, a_stride = (size_t)job->kernels->a_stride;
    const ptrdiff_t a_row = job->a->row_stride, a_column = job->a->col_stride;
    NAME(tile_operands) x = {.a_as_rows = k->a == A_ROWS};
    x.a_step = k->a == A_PACKED ? (ptrdiff_t)a_stride : k->a == A_ROWS ? a_row : a_column;
    for (size_t j = 0; j < k->n; j += columns) {
        const size_t width = k->n - j < columns ? k->n - j : columns;
        x.b = b + j * k->depth, x.ldb = (ptrdiff_t)columns;
        if (k->b_in_place && (width == columns || job->kernels->masks)) {
            x.ldb = job->b->row_stride;
            x.b = (const REAL *)job->b->data + (ptrdiff_t)k->p * x.ldb + (ptrdiff_t)(k->j + j);
        }
        for (size_t i = 0; i < k->m; i += k->rows) {
            const size_t rows = k->m - i < k->rows ? k->m - i : k->rows;
            REAL *c = job->c + (ptrdiff_t)(k->i + i) * job->ldc + (ptrdiff_t)(k->j + j);
            x.a = k->a == A_PACKED
                      ? a + i / k->rows * a_stride * k->depth
                      : (const REAL *)job->a->data + (ptrdiff_t)(k->i + i) * a_row + (ptrdiff_t)k->p * a_column;
            if (job->options->accumulate)
                NAME(run_rounded)(job, rows, width, k->depth, x.a, x.b, c, mode);
            else
                NAME(run_tile)(job, rows, width, k->depth, &x, c, mode);
        }
    }
}

static void NAME(pack_b)(const NAME(job) * job, const blocks *k, REAL *b, REAL *scratch)
{
    const size_t columns = (size_t)job->kernels->lanes * 2;
    /* In place and without masks, only a last panel that is not whole is copied (and so never read past its end). */
    const size_t first = !k->b_in_place ? 0 : job->kernels->masks ? k->n : k->n / columns * columns;
    if (first == k->n) return;
    const NAME(strip) s = NAME(strip_of)(job->b, true, k->j + first, k->p);
    NAME(pack)(b + first * k->depth, columns, columns, &s, k->n - first, k->depth, scratch, job->options);
}

/* Tiles of even height: 32 rows are 11 + 11 + 10, not 14 + 14 + 4. */
static size_t NAME(even_rows)(const KERNEL_TYPE *t, size_t m)
{
    const size_t panels = (m + (size_t)t->rows - 1) / (size_t)t->rows;
    return panels ? (m + panels - 1) / panels : 1;
}

/* Terms [p0, p1) of a region of C: all of them one chain, or (TILE_ADD) the chain of each `step` added to C. */
static bool NAME(chains)(const NAME(job) * job, const NAME(region) * g, size_t p0, size_t p1, size_t step,
                         tile_mode mode)
{
    const KERNEL_TYPE *t = job->kernels;
    const size_t columns = (size_t)t->lanes * 2, m = g->i1 - g->i0, n = g->j1 - g->j0;
    blocks k = {.rows = NAME(even_rows)(t, m)};
    NAME(place)(job, g, p1 - p0, &k);
    /* Panels of B that few rows use are used as soon as they are packed, and stay in the first cache. */
    const bool one_by_one = k.a != A_PACKED && m <= 2 * (size_t)t->rows;
    const size_t most_m = MOST_ROWS / k.rows * k.rows, most_n = one_by_one ? columns : MOST_COLUMNS;
    const size_t wide_m = m < most_m ? m : most_m, wide_n = n < most_n ? n : most_n;
    const size_t deep = p1 - p0 < step ? p1 - p0 : step;
    REAL *a =
        buffer_get(BUFFER_A, k.a == A_PACKED ? (wide_m / k.rows + 1) * (size_t)t->a_stride * deep * sizeof *a : 1);
    REAL *b = buffer_get(BUFFER_B, k.b_in_place && t->masks ? 1 : (wide_n / columns + 1) * columns * deep * sizeof *b);
    REAL *scratch = buffer_get(BUFFER_ROW, (SCRATCH + MAX_COLUMNS * deep) * sizeof *scratch);
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
                if (k.a == A_PACKED)
                    NAME(pack)(a, k.rows, (size_t)t->a_stride, &s, k.m, k.depth, scratch, job->options);
                NAME(tiles)(job, &k, a, b, now);
            }
            if (now == TILE_FIRST) now = TILE_CONTINUE;
        }
    }
    return true;
}

/* Blocks too long for one pass over packed panels: each is a chain of its own into `part`, which is then added. */
static bool NAME(long_blocks)(const NAME(job) * job, const NAME(region) * g, size_t block)
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

static bool NAME(run_region)(const NAME(job) * job, const NAME(region) * g);

/* A region of few columns, by which vectors would go to waste, as its transpose: fma(a, b, c) is fma(b, a, c). */
static bool NAME(run_turned)(const NAME(job) * job, const NAME(region) * g)
{
    const size_t m = g->i1 - g->i0, n = g->j1 - g->j0;
    REAL *turned = buffer_get(BUFFER_TURNED, m * n * sizeof *turned);
    if (!turned) return false;
    REAL *c = job->c + (ptrdiff_t)g->i0 * job->ldc + (ptrdiff_t)g->j0;
    for (size_t j = 0; job->options->add && j < n; j++)
        for (size_t i = 0; i < m; i++) turned[j * m + i] = c[(ptrdiff_t)i * job->ldc + (ptrdiff_t)j];
    const lb_matrix a = {job->b->data, job->b->dtype, job->b->col_stride, job->b->row_stride};
    const lb_matrix b = {job->a->data, job->a->dtype, job->a->col_stride, job->a->row_stride};
    NAME(job) inner = *job;
    inner.a = &a, inner.b = &b;
    inner.ldc = (ptrdiff_t)m;
    inner.c = turned - (ptrdiff_t)g->j0 * inner.ldc - (ptrdiff_t)g->i0;
    if (!NAME(run_region)(&inner, &(NAME(region)){g->j0, g->j1, g->i0, g->i1})) return false;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) c[(ptrdiff_t)i * job->ldc + (ptrdiff_t)j] = turned[j * m + i];
    return true;
}

static bool NAME(run_region)(const NAME(job) * job, const NAME(region) * g)
{
    const lb_matmul_options *o = job->options;
    if (g->i0 == g->i1 || g->j0 == g->j1) return true;
    if ((g->j1 - g->j0) * 2 <= (size_t)job->kernels->lanes && g->i1 - g->i0 > (size_t)job->kernels->lanes)
        return NAME(run_turned)(job, g);
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
static NAME(region) NAME(share)(const NAME(job) * job, size_t m, size_t n, int t, int down, int across)
{
    const size_t row_unit = (size_t)job->kernels->rows, column_unit = (size_t)job->kernels->lanes * 2;
    const size_t rows = (m + row_unit - 1) / row_unit, columns = (n + column_unit - 1) / column_unit;
    const size_t y = (size_t)(t / across), x = (size_t)(t % across);
    NAME(region)
    g = {rows * y / (size_t)down * row_unit, rows * (y + 1) / (size_t)down * row_unit,
         columns * x / (size_t)across * column_unit, columns * (x + 1) / (size_t)across * column_unit};
    g.i0 = g.i0 < m ? g.i0 : m;
    g.i1 = g.i1 < m ? g.i1 : m;
    g.j0 = g.j0 < n ? g.j0 : n;
    g.j1 = g.j1 < n ? g.j1 : n;
    return g;
}

static bool NAME(run)(const NAME(job) * job, size_t m, size_t n, int threads)
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

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* One operand of `count` products, of `rows` by `columns`, as dense REALs in the orientation it has; false: no
 * memory. */
static bool NAME(widen)(lb_matrix *x, ptrdiff_t *step, size_t rows, size_t columns, size_t count, int buffer,
                        const lb_matmul_options *o)
{
    const bool turned = x->row_stride == 1 && x->col_stride != 1;
    const ptrdiff_t bytes = (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8), lines = (ptrdiff_t)(turned ? columns : rows),
                    length = (ptrdiff_t)(turned ? rows : columns);
    const ptrdiff_t line = turned ? x->col_stride : x->row_stride, along = turned ? x->row_stride : x->col_stride;
    const bool whole = along == 1 && (line == length || lines == 1) && (*step == lines * length || count == 1);
    REAL *dense = buffer_get(buffer, (rows * columns * count + 1) * sizeof *dense);
    if (!dense) return false;
    if (whole) LOAD_STRIDED(dense, x->dtype, x->data, 1, rows * columns * count);
    for (size_t i = 0; !whole && i < count; i++)
        for (ptrdiff_t r = 0; r < lines; r++)
            LOAD_STRIDED(dense + ((ptrdiff_t)i * lines + r) * length, x->dtype,
                         (const char *)x->data + ((ptrdiff_t)i * *step + r * line) * bytes, along, (size_t)length);
    NAME(prepare)(dense, rows * columns * count, o);
    *x = (lb_matrix){dense, NAME(real_dtype), turned ? 1 : length, turned ? length : 1};
    *step = lines * length;
    return true;
}

/* Products so small that finding out what to do with each would take longer than doing it. */
static bool NAME(is_tiny)(const NAME(job) * job, size_t m, size_t n)
{
    const KERNEL_TYPE *t = job->kernels;
    const bool skinny = n * 2 <= (size_t)t->lanes && m > (size_t)t->lanes;
    return NAME(is_plain)(job->a, job->options) && NAME(is_plain)(job->b, job->options) && !job->options->block &&
           !skinny && job->b->col_stride == 1 && (job->a->col_stride == 1 || job->a->row_stride == 1) &&
           (t->masks || n % (size_t)t->lanes == 0) && m * job->k * sizeof(REAL) <= NEAR_BYTES &&
           n * job->k * sizeof(REAL) <= NEAR_BYTES;
}

static void NAME(run_tiny)(const NAME(job) * job, const lb_matmul_batch *batch, size_t count, size_t m, size_t n)
{
    const size_t columns = (size_t)job->kernels->lanes * 2, height = NAME(even_rows)(job->kernels, m);
    const tile_mode mode = job->options->add ? TILE_CONTINUE : TILE_FIRST;
    const REAL *a = job->a->data, *b = job->b->data;
    NAME(tile_operands) x = {.ldb = job->b->row_stride, .a_as_rows = job->a->row_stride != 1};
    x.a_step = x.a_as_rows ? job->a->row_stride : job->a->col_stride;
    REAL *c = job->c;
    for (size_t k = 0; k < count; k++, a += batch->a_step, b += batch->b_step, c += batch->c_step)
        for (size_t j = 0; j < n; j += columns)
            for (size_t i = 0; i < m; i += height) {
                x.a = a + (ptrdiff_t)i * job->a->row_stride, x.b = b + j;
                NAME(run_tile)
                (job, m - i < height ? m - i : height, n - j < columns ? n - j : columns, job->k, &x,
                 c + (ptrdiff_t)i * job->ldc + (ptrdiff_t)j, mode);
            }
}

/* `count` products from `job` on, whose operands are widened first if they need it and are small. */
static bool NAME(run_products)(NAME(job) job, lb_matmul_batch batch, size_t count, size_t m, size_t n, int threads)
{
    lb_matrix a = *job.a, b = *job.b;
    lb_matmul_options options = *job.options;
    job.a = &a, job.b = &b, job.options = &options;
    if (!options.accumulate && m * job.k <= WIDE_ELEMENTS && job.k * n <= WIDE_ELEMENTS) {
        if (!NAME(is_plain)(&a, &options) && !NAME(widen)(&a, &batch.a_step, m, job.k, count, BUFFER_WIDE_A, &options))
            return false;
        if (!NAME(is_plain)(&b, &options) && !NAME(widen)(&b, &batch.b_step, job.k, n, count, BUFFER_WIDE_B, &options))
            return false;
        options.input = LB_NO_DTYPE, options.tf32 = LB_TF32_NONE, options.absolute = false;
    }
    if (threads <= 1 && NAME(is_tiny)(&job, m, n)) {
        NAME(run_tiny)(&job, &batch, count, m, n);
        return true;
    }
    const ptrdiff_t a_bytes = batch.a_step * (ptrdiff_t)(lb_dtype_bits(a.dtype) / 8),
                    b_bytes = batch.b_step * (ptrdiff_t)(lb_dtype_bits(b.dtype) / 8);
    for (size_t i = 0; i < count; i++, job.c += batch.c_step) {
        if (!NAME(run)(&job, m, n, threads)) return false;
        a.data = (const char *)a.data + a_bytes;
        b.data = (const char *)b.data + b_bytes;
    }
    return true;
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
    /* As many products at a time as make widening worth a call, and as give every thread its share. */
    const size_t largest = m * k > k * n ? m * k : k * n, share = batch->batch / (size_t)(share_products ? threads : 1);
    size_t chunk = WIDE_CHUNK / (largest ? largest : 1);
    chunk = chunk > share ? share : chunk;
    chunk = chunk ? chunk : 1;
    bool failed = false;
#define CHUNKS                                                                                                         \
    for (size_t i = 0; i < batch->batch; i += chunk) {                                                                 \
        lb_matrix ai = *a, bi = *b;                                                                                    \
        ai.data = (const char *)a->data + (ptrdiff_t)i * a_bytes;                                                      \
        bi.data = (const char *)b->data + (ptrdiff_t)i * b_bytes;                                                      \
        const NAME(job) job = {k, &ai, &bi, c + (ptrdiff_t)i * batch->c_step, ldc, options, t};                        \
        const size_t count = batch->batch - i < chunk ? batch->batch - i : chunk;                                      \
        failed = failed || !NAME(run_products)(job, *batch, count, m, n, share_products ? 1 : threads);                \
    }
    if (!share_products) { /* entering a parallel region of one thread costs as much as a small product */
        CHUNKS
    } else {
#pragma omp parallel for num_threads(threads) schedule(static) reduction(|| : failed)
        CHUNKS
    }
#undef CHUNKS
    return failed ? LB_ERR_NOMEM : LB_OK;
}

lb_status NAME(lb_matmul)(size_t m, size_t n, size_t k, const lb_matrix *a, const lb_matrix *b, REAL *c, ptrdiff_t ldc,
                          const lb_matmul_options *options)
{
    return NAME(lb_matmul_batched)(&(lb_matmul_batch){1, 0, 0, 0}, m, n, k, a, b, c, ldc, options);
}
