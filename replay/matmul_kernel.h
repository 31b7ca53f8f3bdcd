/* The register tile: R rows by V vectors of C, over `depth` terms in order. A template without a guard: matmul.c includes
 * it once per instruction set and type, with
 *
 *      REAL, VECTOR, LANES     element, vector, elements per vector
 *      ROWS, A_STRIDE          most rows of a tile (accumulators must fit the registers), elements between columns of A
 *      TARGET, KERNEL(x)       attribute and name mangling
 *      ZERO LOAD STORE SPREAD FMA ADD CLEAN    the operations; CLEAN makes NaNs canonical
 */

TARGET LB_INLINE void KERNEL(tile)(const int rows, const int vectors, size_t depth, const REAL *a, const REAL *b,
                                   ptrdiff_t ldb, REAL *c, ptrdiff_t ldc, tile_mode mode)
{
    VECTOR acc[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            acc[r][v] = mode == TILE_CONTINUE ? LOAD(c + r * ldc + v * LANES) : ZERO();
    for (size_t p = 0; p < depth; p++, a += A_STRIDE, b += ldb) {
        VECTOR column[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) column[v] = LOAD(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const VECTOR x = SPREAD(a[r]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) acc[r][v] = FMA(x, column[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            REAL *to = c + r * ldc + v * LANES;
            if (mode == TILE_ADD) acc[r][v] = ADD(LOAD(to), acc[r][v]);
            STORE(to, CLEAN(acc[r][v]));
        }
}

#define TILE(R)                                                                                              \
    TARGET static void KERNEL(tile_##R##_1)(size_t depth, const REAL *a, const REAL *b, ptrdiff_t ldb, REAL *c, \
                                            ptrdiff_t ldc, tile_mode mode)                                   \
    {                                                                                                        \
        KERNEL(tile)(R, 1, depth, a, b, ldb, c, ldc, mode);                                                  \
    }                                                                                                        \
    TARGET static void KERNEL(tile_##R##_2)(size_t depth, const REAL *a, const REAL *b, ptrdiff_t ldb, REAL *c, \
                                            ptrdiff_t ldc, tile_mode mode)                                   \
    {                                                                                                        \
        KERNEL(tile)(R, 2, depth, a, b, ldb, c, ldc, mode);                                                  \
    }
#define TILE_ENTRY(R) {KERNEL(tile_##R##_1), KERNEL(tile_##R##_2)}

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

static const KERNEL_TYPE KERNEL(kernels) = {
    .rows = ROWS,
    .a_stride = A_STRIDE,
    .lanes = LANES,
    .tile = {TILE_ENTRY(1), TILE_ENTRY(2), TILE_ENTRY(3), TILE_ENTRY(4),
#if ROWS > 4
             TILE_ENTRY(5), TILE_ENTRY(6),
#endif
#if ROWS > 6
             TILE_ENTRY(7), TILE_ENTRY(8), TILE_ENTRY(9), TILE_ENTRY(10), TILE_ENTRY(11), TILE_ENTRY(12),
             TILE_ENTRY(13), TILE_ENTRY(14)
#endif
    }};

#undef TILE
#undef TILE_ENTRY
#undef KERNEL
#undef TARGET
#undef VECTOR
#undef LANES
#undef ROWS
#undef A_STRIDE
#undef ZERO
#undef LOAD
#undef STORE
#undef SPREAD
#undef FMA
#undef ADD
#undef CLEAN
