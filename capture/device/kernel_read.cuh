/* How a thread reads its column of a block: 16 bytes of each stripe, of elements that lie together or anywhere. */
#ifndef LB_KERNEL_READ_CUH
#define LB_KERNEL_READ_CUH

#include "kernel_hash.cuh"

enum { QUAD = 16 };

struct alignas(QUAD) quad {
    uint32_t word[4];
};
/* A stream of bytes: elements in their order. */
typedef struct source {
    const lb_kernel_item *item;
    uint64_t address, bytes;
    uint32_t granule; /* of a copy; see fetch */
    bool strided;
} source;

/* ---- views that are not contiguous ------------------------------------------------------------------------------- */

/* The address of the first element of a row, the innermost dimension. */
LB_DEVICE uint64_t row_address(const lb_kernel_item *item, uint64_t row)
{
    uint64_t address = item->data;
    for (uint32_t d = item->n_sizes - 1; d-- > 0;) {
        const uint64_t size = item->sizes[d];
        const uint64_t next = ((row | size) >> 32) == 0 ? (uint32_t)row / (uint32_t)size : row / size;
        address += (row - next * size) * (uint64_t)item->strides[d];
        row = next;
    }
    return address;
}

/* Where chunk after chunk of a view lies that is not contiguous. Rows follow each other in the dimension beside theirs
 * until it ends: only then is it divided. */
typedef struct walk {
    const lb_kernel_item *item;
    uint64_t count, stride;          /* of a row's chunks */
    uint64_t rows, row_stride;       /* of the dimension beside it: 1 where there is none */
    uint64_t column, row, lot, base; /* base: the address of row 0 of the lot */
} walk;

/* Of a view whose two innermost dimensions are left out. */
LB_SELDOM uint64_t lot_address(const lb_kernel_item *item, uint64_t lot)
{
    return item->n_sizes > 2 ? row_address(item, lot * item->sizes[item->n_sizes - 2]) : item->data;
}

LB_SELDOM walk walk_from(const lb_kernel_item *item, uint64_t chunk)
{
    const uint32_t inner = item->n_sizes - 1;
    walk w;
    w.item = item;
    w.count = item->sizes[inner];
    w.stride = (uint64_t)item->strides[inner];
    w.rows = inner ? item->sizes[inner - 1] : 1;
    w.row_stride = inner ? (uint64_t)item->strides[inner - 1] : 0;
    w.row = chunk / w.count;
    w.column = chunk - w.row * w.count;
    w.lot = w.row / w.rows;
    w.row -= w.lot * w.rows;
    w.base = lot_address(item, w.lot);
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
            w->base = lot_address(w->item, w->lot);
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
    const uint32_t size = w->item->chunk;
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        for (uint32_t at = 0; at < QUAD; at += size) {
            const uint64_t from = walk_on(w, at + size < QUAD ? 1 : 1 + (STRIPE - QUAD) / size);
            for (uint32_t i = 0; i < size; i++) ((uint8_t *)&to[stripe])[at + i] = *(const uint8_t *)(from + i);
        }
    }
}

/* Whether 16 bytes of a stream can be loaded where they lie. */
LB_DEVICE bool is_direct(const source *s)
{
    return !s->strided && s->granule == QUAD;
}

/* A column that begins at byte `at` of a stream that is not. */
LB_SELDOM void fetch_column(quad to[STRIPES], const source *s, uint64_t at)
{
    if (!s->strided) {
        switch (s->granule) {
        case 8: fetch_dense<uint64_t>(to, s->address + at); return;
        case 4: fetch_dense<uint32_t>(to, s->address + at); return;
        case 2: fetch_dense<uint16_t>(to, s->address + at); return;
        default: fetch_dense<uint8_t>(to, s->address + at); return;
        }
    }
    walk w = walk_from(s->item, at / s->item->chunk);
    switch (s->granule < s->item->chunk ? 0 : s->granule) {
    case 16: fetch_chunks<quad>(to, &w); return;
    case 8: fetch_chunks<uint64_t>(to, &w); return;
    case 4: fetch_chunks<uint32_t>(to, &w); return;
    case 2: fetch_chunks<uint16_t>(to, &w); return;
    default: fetch_bytes(to, &w); return;
    }
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

LB_DEVICE uint64_t byte_address(const source *s, uint64_t at)
{
    if (!s->strided) return s->address + at;
    const uint32_t size = s->item->chunk;
    walk w = walk_from(s->item, at / size);
    return walk_on(&w, 1) + at % size;
}

LB_SELDOM void fetch_end(quad *to, const source *s, uint64_t at, uint32_t n)
{
    for (uint32_t i = 0; i < QUAD; i++) ((uint8_t *)to)[i] = i < n ? *(const uint8_t *)byte_address(s, at + i) : 0;
}

/* 16 bytes from `at` on, of which there are perhaps fewer; the others are 0. */
LB_DEVICE quad fetch_one(const source *s, uint64_t at, uint64_t end)
{
    quad x = {{0, 0, 0, 0}};
    if (at >= end) return x;
    if (is_direct(s) && end - at >= QUAD) {
        x = *(const quad *)(s->address + at);
    } else {
        quad slowly;
        fetch_end(&slowly, s, at, end - at < QUAD ? (uint32_t)(end - at) : (uint32_t)QUAD);
        x = slowly;
    }
    return x;
}

#endif
