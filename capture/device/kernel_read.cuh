/* How a thread reads its column of a block: 16 bytes of each stripe, of elements that lie together or anywhere. */
#ifndef LB_KERNEL_READ_CUH
#define LB_KERNEL_READ_CUH

#include "kernel_hash.cuh"

enum { QUAD = 16 };

struct alignas(QUAD) quad {
    uint32_t word[4];
};
/* What the block reads: a stream of bytes, elements in their order. */
static __shared__ struct alignas(16) {
    lb_kernel_item item;
    uint64_t address, bytes;
    uint32_t granule;     /* of a copy */
    bool strided, narrow; /* narrow: f32 has all numbers of the type */
    float values[256];    /* of the codes of a float of 8 bits */
} input;

/* ---- views that are not contiguous ------------------------------------------------------------------------------- */

/* The address of the first element of a row, the innermost dimension. */
LB_DEVICE uint64_t row_address(uint64_t row)
{
    uint64_t address = input.item.data;
    for (uint32_t d = input.item.n_sizes - 1; d-- > 0;) {
        const uint64_t size = input.item.sizes[d];
        const uint64_t next = ((row | size) >> 32) == 0 ? (uint32_t)row / (uint32_t)size : row / size;
        address += (row - next * size) * (uint64_t)input.item.strides[d];
        row = next;
    }
    return address;
}

/* Where chunk after chunk of a view lies that is not contiguous. Rows follow each other in the dimension beside theirs
 * until it ends: only then is it divided. */
typedef struct walk {
    uint64_t count, stride;          /* of a row's chunks */
    uint64_t rows, row_stride;       /* of the dimension beside it: 1 where there is none */
    uint64_t column, row, lot, base; /* base: the address of row 0 of the lot */
} walk;

/* Of a view whose two innermost dimensions are left out. */
LB_SELDOM uint64_t lot_address(uint64_t lot)
{
    const lb_kernel_item *item = &input.item;
    return item->n_sizes > 2 ? row_address(lot * item->sizes[item->n_sizes - 2]) : item->data;
}

LB_SELDOM walk walk_from(uint64_t chunk)
{
    const lb_kernel_item *item = &input.item;
    const uint32_t inner = item->n_sizes - 1;
    walk w;
    w.count = item->sizes[inner];
    w.stride = (uint64_t)item->strides[inner];
    w.rows = inner ? item->sizes[inner - 1] : 1;
    w.row_stride = inner ? (uint64_t)item->strides[inner - 1] : 0;
    w.row = chunk / w.count;
    w.column = chunk - w.row * w.count;
    w.lot = w.row / w.rows;
    w.row -= w.lot * w.rows;
    w.base = lot_address(w.lot);
    return w;
}

/* The address of the chunk, and on to the one that lies `by` behind it: a stripe's chunks at most. */
LB_DEVICE uint64_t walk_on(walk *w, uint32_t by)
{
    if (w->column >= w->count) { /* it is less than count + a stripe's chunks */
        const uint32_t rows = w->count >= STRIPE ? 1 : (uint32_t)w->column / (uint32_t)w->count;
        w->column -= rows * w->count;
        w->row += rows;
        if (w->row >= w->rows) {
            const uint64_t lots = w->rows > rows ? 1 : w->row / w->rows;
            w->row -= lots * w->rows;
            w->lot += lots;
            w->base = lot_address(w->lot);
        }
    }
    const uint64_t at = w->base + w->row * w->row_stride + w->column * w->stride;
    w->column += by;
    return at;
}

/* ---- columns that are whole -------------------------------------------------------------------------------------- */

/* How many stripes' loads of a T each are on their way at once. */
template <class T>
struct at_once {
    enum { N = QUAD / sizeof(T), STRIPES_OF = N > 4 ? 2 : 4 };
};

/* 16 bytes of each stripe of a block, of chunks that are a T each. */
template <class T>
LB_SELDOM void fetch_chunks(quad *to, walk *w)
{
    enum { N = at_once<T>::N, K = at_once<T>::STRIPES_OF };
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < STRIPES; stripe += K) {
        T got[K][N];
#pragma unroll
        for (uint32_t k = 0; k < K; k++) {
#pragma unroll
            for (uint32_t i = 0; i < N; i++)
                got[k][i] = *(const T *)walk_on(w, i + 1 < N ? 1 : 1 + (STRIPE - QUAD) / sizeof(T));
        }
#pragma unroll
        for (uint32_t k = 0; k < K; k++) {
#pragma unroll
            for (uint32_t i = 0; i < N; i++) ((T *)&to[stripe + k])[i] = got[k][i];
        }
    }
}

/* The same of elements that lie together, but not where 16 bytes can be loaded. */
template <class T>
LB_SELDOM void fetch_dense(quad *to, uint64_t from)
{
    enum { N = at_once<T>::N, K = at_once<T>::STRIPES_OF };
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < STRIPES; stripe += K) {
        T got[K][N];
#pragma unroll
        for (uint32_t k = 0; k < K; k++) {
#pragma unroll
            for (uint32_t i = 0; i < N; i++) got[k][i] = ((const T *)(from + (stripe + k) * STRIPE))[i];
        }
#pragma unroll
        for (uint32_t k = 0; k < K; k++) {
#pragma unroll
            for (uint32_t i = 0; i < N; i++) ((T *)&to[stripe + k])[i] = got[k][i];
        }
    }
}

/* Of chunks that are larger than what can be loaded of them. */
LB_SELDOM void fetch_bytes(quad *to, walk *w)
{
    const uint32_t size = input.item.chunk;
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        for (uint32_t at = 0; at < QUAD; at += size) {
            const uint64_t from = walk_on(w, at + size < QUAD ? 1 : 1 + (STRIPE - QUAD) / size);
            for (uint32_t i = 0; i < size; i++) ((uint8_t *)&to[stripe])[at + i] = *(const uint8_t *)(from + i);
        }
    }
}

/* Whether 16 bytes of the stream can be loaded where they lie. */
LB_DEVICE bool is_direct()
{
    return !input.strided && input.granule == QUAD;
}

/* A column that begins at byte `at` of a stream that is not. */
LB_SELDOM void fetch_column(quad to[STRIPES], uint64_t at)
{
    if (!input.strided) {
        const uint64_t from = input.address + at;
        switch (input.granule) {
        case 8: fetch_dense<uint64_t>(to, from); return;
        case 4: fetch_dense<uint32_t>(to, from); return;
        case 2: fetch_dense<uint16_t>(to, from); return;
        default: fetch_dense<uint8_t>(to, from); return;
        }
    }
    walk w = walk_from(at / input.item.chunk);
    switch (input.granule < input.item.chunk ? 0 : input.granule) {
    case 16: fetch_chunks<quad>(to, &w); return;
    case 8: fetch_chunks<uint64_t>(to, &w); return;
    case 4: fetch_chunks<uint32_t>(to, &w); return;
    case 2: fetch_chunks<uint16_t>(to, &w); return;
    default: fetch_bytes(to, &w); return;
    }
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

LB_DEVICE uint64_t byte_address(uint64_t at)
{
    if (!input.strided) return input.address + at;
    const uint32_t size = input.item.chunk;
    walk w = walk_from(at / size);
    return walk_on(&w, 1) + at % size;
}

/* 16 bytes from `at` on, of which there are perhaps fewer; the others are 0. */
LB_SELDOM void fetch_some(quad *to, uint64_t at, uint64_t end)
{
    if (at < end && is_direct() && end - at >= QUAD) {
        *to = *(const quad *)(input.address + at);
        return;
    }
    for (uint32_t i = 0; i < QUAD; i++) ((uint8_t *)to)[i] = at + i < end ? *(const uint8_t *)byte_address(at + i) : 0;
}

#endif
