/* The register tile: R rows by V vectors of C, over `depth` terms in order. A template without a guard: matmul.c
 * includes it once per instruction set and type, with
 *
 *      REAL, VECTOR, LANES     element, vector, elements per vector
 *      ROWS, A_STRIDE          most rows of a tile (accumulators must fit the registers), elements between columns of
 *                              packed A
 *      MASKS                   1: the last vector may be partly used (LOAD_EDGE, STORE_EDGE, EDGE_MASK, EDGE)
 *      TARGET, KERNEL(x)       attribute and name mangling
 *      ZERO LOAD STORE SPREAD FMA ADD CLEAN    the operations; CLEAN makes NaNs canonical
 *      ROUND_BF16              optional: to the nearest bf16, for canonical NaNs and everything else
 *
 * A lies as columns (a_step from one p to the next, rows side by side: packed, or transposed in memory) or as rows
 * (a_step from one row to the next, terms side by side).
 */

/* `edge`: how many elements of the last vector are used, LANES when it is whole. */
TARGET LB_INLINE void KERNEL(tile)(const int rows, const int vectors, const int as_rows, size_t depth, const REAL *a,
                                   ptrdiff_t a_step, const REAL *b, ptrdiff_t ldb, REAL *c, ptrdiff_t ldc, int edge,
                                   tile_mode mode)
{
    const ptrdiff_t row = as_rows ? a_step : 1, column = as_rows ? 1 : a_step;
    VECTOR acc[ROWS][2];
#if MASKS
    const EDGE_MASK mask = EDGE(edge);
#else
    (void)edge;
#endif
#if MASKS
#define TILE_LOAD(p, v) ((v) + 1 < vectors ? LOAD(p) : LOAD_EDGE(mask, p))
#define TILE_STORE(p, v, x)                                                                                            \
    do {                                                                                                               \
        if ((v) + 1 < vectors)                                                                                         \
            STORE(p, x);                                                                                               \
        else                                                                                                           \
            STORE_EDGE(mask, p, x);                                                                                    \
    } while (0)
#else
#define TILE_LOAD(p, v) LOAD(p)
#define TILE_STORE(p, v, x) STORE(p, x)
#endif
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            acc[r][v] = mode == TILE_CONTINUE ? TILE_LOAD(c + r * ldc + v * LANES, v) : ZERO();
    for (size_t p = 0; p < depth; p++, a += column, b += ldb) {
        VECTOR terms[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) terms[v] = TILE_LOAD(b + v * LANES, v);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const VECTOR x = SPREAD(a[r * row]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) acc[r][v] = FMA(x, terms[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            REAL *to = c + r * ldc + v * LANES;
            if (mode == TILE_ADD) acc[r][v] = ADD(TILE_LOAD(to, v), acc[r][v]);
            TILE_STORE(to, v, CLEAN(acc[r][v]));
        }
#undef TILE_LOAD
#undef TILE_STORE
}

#define TILE_OF(R, V, AS_ROWS, NAME)                                                                                   \
    TARGET static void KERNEL(NAME)(size_t depth, const REAL *a, ptrdiff_t a_step, const REAL *b, ptrdiff_t ldb,       \
                                    REAL *c, ptrdiff_t ldc, int edge, tile_mode mode)                                  \
    {                                                                                                                  \
        KERNEL(tile)(R, V, AS_ROWS, depth, a, a_step, b, ldb, c, ldc, edge, mode);                                     \
    }
#define TILE(R)                                                                                                        \
    TILE_OF(R, 1, 0, tile_##R##_1)                                                                                     \
    TILE_OF(R, 2, 0, tile_##R##_2) TILE_OF(R, 1, 1, tile_rows_##R##_1) TILE_OF(R, 2, 1, tile_rows_##R##_2)
#define TILE_ENTRY(R)                                                                                                  \
    {                                                                                                                  \
        {KERNEL(tile_##R##_1), KERNEL(tile_##R##_2)},                                                                  \
        {                                                                                                              \
            KERNEL(tile_rows_##R##_1), KERNEL(tile_rows_##R##_2)                                                       \
        }                                                                                                              \
    }

TILE(1)
TILE(2)
TILE(3)
TILE(4)
#if ROWS > 4
TILE(5)
TILE(6)
#endif
#if ROWS > 6
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
TILE(13)
TILE(14)
#endif

#ifdef ROUND_BF16
/* The same over packed A and two vectors of packed B, every sum rounded to bf16: four rows are enough to hide the
 * latency of an fma and a rounding. `acc` holds rows * 2 * LANES elements, before and after. */
TARGET LB_INLINE void KERNEL(rounded)(const int rows, REAL *sums, size_t depth, const REAL *a, const REAL *b)
{
    VECTOR acc[4][2];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) acc[r][v] = CLEAN(LOAD(sums + (r * 2 + v) * LANES));
    for (size_t p = 0; p < depth; p++, a += A_STRIDE, b += 2 * LANES) {
        const VECTOR terms[2] = {LOAD(b), LOAD(b + LANES)};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const VECTOR x = SPREAD(a[r]);
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) acc[r][v] = ROUND_BF16(FMA(x, terms[v], acc[r][v]));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) STORE(sums + (r * 2 + v) * LANES, acc[r][v]);
}

TARGET static void KERNEL(rounded_rows)(REAL *sums, size_t rows, size_t depth, const REAL *a, const REAL *b)
{
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) KERNEL(rounded)(4, sums + r * 2 * LANES, depth, a + r, b);
    for (; r < rows; r++) KERNEL(rounded)(1, sums + r * 2 * LANES, depth, a + r, b);
}
#define ROUNDED_ENTRY KERNEL(rounded_rows)
#else
#define ROUNDED_ENTRY NULL
#endif

static const KERNEL_TYPE KERNEL(kernels) = {.rows = ROWS,
                                            .a_stride = A_STRIDE,
                                            .lanes = LANES,
                                            .masks = MASKS,
                                            .rounded = ROUNDED_ENTRY,
                                            .tile = {TILE_ENTRY(1), TILE_ENTRY(2), TILE_ENTRY(3), TILE_ENTRY(4),
#if ROWS > 4
                                                     TILE_ENTRY(5), TILE_ENTRY(6),
#endif
#if ROWS > 6
                                                     TILE_ENTRY(7), TILE_ENTRY(8), TILE_ENTRY(9), TILE_ENTRY(10),
                                                     TILE_ENTRY(11), TILE_ENTRY(12), TILE_ENTRY(13), TILE_ENTRY(14)
#endif
                                            }};

#undef TILE
#undef TILE_OF
#undef TILE_ENTRY
#undef ROUNDED_ENTRY
#undef KERNEL
#undef TARGET
#undef VECTOR
#undef LANES
#undef ROWS
#undef A_STRIDE
#undef MASKS
#undef EDGE
#undef EDGE_MASK
#undef LOAD_EDGE
#undef STORE_EDGE
#undef ROUND_BF16
#undef ZERO
#undef LOAD
#undef STORE
#undef SPREAD
#undef FMA
#undef ADD
#undef CLEAN
