/* The statistics of the numbers in a tile, lane by lane as lastbit/statistics.h has them, and how lanes and pieces are
 * recorded. */
#ifndef LB_KERNEL_NUMBERS_CUH
#define LB_KERNEL_NUMBERS_CUH

#include "kernel_tile.cuh"

#define INF bits_value(0x7f800000u)
#define NOT_A_NUMBER bits_value(0x7fc00000u)

/* One lane of a piece. */
typedef struct lane {
    double sum, squares, low, high;
    uint32_t zero, nan, pos_inf, neg_inf;
} lane;

LB_DEVICE lane lane_begin()
{
    const double inf = INF;
    const lane l = {0, 0, inf, -inf, 0, 0, 0, 0};
    return l;
}

/* The bits are put where f32 has them. Its exponent is then too small by what the biases differ, also of a
 * subnormal. */
LB_DEVICE float small_value(uint32_t code, const lb_kernel_small *s)
{
    const uint32_t sign = code >> s->sign_shift, magnitude = code - (sign << s->sign_shift);
    float value = bits_value(magnitude << (23 - s->fraction_bits)) * bits_value((254 - s->bias) << 23);
    value = magnitude > s->max_code || code == s->nan_code ? NOT_A_NUMBER : value;
    value = magnitude == s->inf_code ? INF : value;
    return sign ? -value : value;
}

/* How numbers lie in a tile. */
typedef struct number_type {
    uint32_t element, bits, per_tile;
    const lb_kernel_small *small;
} number_type;

LB_DEVICE number_type type_of(const lb_kernel_item *item)
{
    const number_type type = {item->element, item->part_bits, TILE * 8 / item->part_bits, &item->small};
    return type;
}

/* Number `i` of a tile, of any type. */
LB_DEVICE double number_at(const number_type *type, const uint8_t *tile, uint32_t i)
{
    const uint8_t *p = tile + place(i * type->bits / 8);
    switch (type->element * 128 + type->bits) {
    case LB_KERNEL_F64 * 128 + 64: return *(const double *)p;
    case LB_KERNEL_F32 * 128 + 32: return *(const float *)p;
    case LB_KERNEL_BF16 * 128 + 16: return bits_value((uint32_t) * (const uint16_t *)p << 16);
    case LB_KERNEL_F16 * 128 + 16: return half_value(*(const uint16_t *)p);
    case LB_KERNEL_SMALL * 128 + 8: return small_value(*p, type->small);
    case LB_KERNEL_SMALL * 128 + 4: return small_value(*p >> i % 2 * 4 & 15u, type->small);
    case LB_KERNEL_SCALE * 128 + 8:
        return *p == 0xff ? NOT_A_NUMBER : bits_value(*p == 0 ? 0x00400000u : (uint32_t)*p << 23); /* 2^(code - 127) */
    case LB_KERNEL_SIGNED * 128 + 8: return *(const signed char *)p;
    case LB_KERNEL_SIGNED * 128 + 16: return *(const short *)p;
    case LB_KERNEL_SIGNED * 128 + 32: return *(const int32_t *)p;
    case LB_KERNEL_SIGNED * 128 + 64: return (double)*(const int64_t *)p;
    case LB_KERNEL_UNSIGNED * 128 + 8: return *p;
    case LB_KERNEL_UNSIGNED * 128 + 16: return *(const uint16_t *)p;
    case LB_KERNEL_UNSIGNED * 128 + 32: return *(const uint32_t *)p;
    case LB_KERNEL_UNSIGNED * 128 + 64: return (double)*(const uint64_t *)p;
    default: return *p ? 1 : 0; /* bool */
    }
}

LB_DEVICE void add_bounds(lane *l, double v)
{
    const double inf = INF;
    if (!(v < inf && v > -inf)) return;
    l->zero += v == 0;
    l->low = v < l->low ? v : l->low;
    l->high = v > l->high ? v : l->high;
}

/* One number by its class. A product is rounded before it is added: of f64 and of wide integers it is not exact. */
LB_DEVICE void add_sums(lane *l, double v)
{
    const double inf = INF;
    if (v != v) {
        l->nan++;
    } else if (v == inf) {
        l->pos_inf++;
    } else if (v == -inf) {
        l->neg_inf++;
    } else {
        l->sum = __dadd_rn(l->sum, v);
        l->squares = __dadd_rn(l->squares, __dmul_rn(v, v));
    }
}

LB_SELDOM void add_slowly(lane *l, const number_type *type, const uint8_t *tile, uint32_t n, uint32_t t, bool sums,
                          bool bounds)
{
    for (uint32_t i = t; i < n; i += TEAM) {
        const double v = number_at(type, tile, i);
        if (sums) add_sums(l, v);
        if (bounds) add_bounds(l, v);
    }
}

/* Types that are read fast: number `i` of a block, as f32. PAIRS: add_pair_bounds takes the bounds, two numbers in a
 * word. */
struct read_f32 {
    enum { BITS = 32, PAIRS = 0 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return ((const float *)p)[i]; }
};
struct read_bf16 {
    enum { BITS = 16, PAIRS = 1, INFS_BITS = 0x7f807f80 };
    LB_DEVICE float value_of(uint32_t bits) { return bits_value(bits << 16); }
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *)
    {
        return value_of(((const uint16_t *)p)[i]);
    }
    LB_DEVICE uint32_t min(uint32_t a, uint32_t b) { return min_bf16(a, b); }
    LB_DEVICE uint32_t max(uint32_t a, uint32_t b) { return max_bf16(a, b); }
};
struct read_f16 {
    enum { BITS = 16, PAIRS = 1, INFS_BITS = 0x7c007c00 };
    LB_DEVICE float value_of(uint32_t bits) { return half_value(bits); }
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *)
    {
        return value_of(((const uint16_t *)p)[i]);
    }
    LB_DEVICE uint32_t min(uint32_t a, uint32_t b) { return min_f16(a, b); }
    LB_DEVICE uint32_t max(uint32_t a, uint32_t b) { return max_f16(a, b); }
};
struct read_small {
    enum { BITS = 8, PAIRS = 0 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *s) { return small_value(p[i], s); }
};
struct read_u8 {
    enum { BITS = 8, PAIRS = 0 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return p[i]; }
};
struct read_i8 {
    enum { BITS = 8, PAIRS = 0 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return (signed char)p[i]; }
};
struct read_bool {
    enum { BITS = 8, PAIRS = 0 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return p[i] ? 1 : 0; }
};

/* Of a whole tile. Thread t takes other numbers than those of lane t, for bounds know no order. Infinity is not looked
 * for, but shows in the bounds: then the thread takes its numbers again, one by one. */
template <class R>
LB_DEVICE void add_pair_bounds(lane *l, const number_type *type, const uint8_t *tile, uint32_t t)
{
    uint32_t low = R::INFS_BITS, high = R::INFS_BITS | 0x80008000u, zeros = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
#pragma unroll
        for (uint32_t i = 0; i < BLOCK; i += 16 * TEAM) {
            const quad x = *(const quad *)(tile + b * PITCH + i + 16 * t);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                low = R::min(low, x.word[j]);
                high = R::max(high, x.word[j]);
                zeros = count_zeros(zeros, x.word[j]);
            }
        }
    }
    const double lowest = fminf(R::value_of(low & 0xffff), R::value_of(low >> 16));
    const double highest = fmaxf(R::value_of(high & 0xffff), R::value_of(high >> 16));
    const double inf = INF;
    if (lowest == -inf || highest == inf) {
        for (uint32_t i = 8 * t; i < TILE / 2; i += 8 * TEAM)
            for (uint32_t j = 0; j < 8; j++) add_bounds(l, number_at(type, tile, i + j));
        return;
    }
    l->zero += (uint32_t)(half_value(zeros & 0xffff) + half_value(zeros >> 16));
    l->low = lowest < l->low ? lowest : l->low;
    l->high = highest > l->high ? highest : l->high;
}

typedef struct bounds {
    float low, high;
} bounds;

template <class R>
LB_DEVICE void add_one(lane *l, bounds *b, const uint8_t *block, uint32_t i, const lb_kernel_small *small)
{
    const float v = R::at(block, i, small);
    const double x = (double)v;
    l->sum = __dadd_rn(l->sum, x);
    l->squares = __fma_rn(x, x, l->squares); /* the product is exact: fused or not is the same */
    if (R::PAIRS) return;
    l->zero += v == 0;
    b->low = fminf(v, b->low);
    b->high = fmaxf(v, b->high);
}

/* The whole tile. Nearly every one is finite: it is added without looking. Where the sums show that it was not (f64
 * sums of f32 numbers cannot overflow by themselves), false, and nothing is added. */
template <class R>
LB_DEVICE bool add_fast(lane *l, const uint8_t *tile, uint32_t t, const lb_kernel_small *small)
{
    lane own = *l; /* whose address is not taken, so that it stays in registers */
    bounds b = {INF, -INF};
    for (uint32_t k = 0; k < BLOCKS; k++, tile += PITCH) {
#pragma unroll 16
        for (uint32_t i = 0; i < BLOCK * 8 / R::BITS; i += TEAM) add_one<R>(&own, &b, tile, i + t, small);
    }
    if ((own.sum - own.sum) + (own.squares - own.squares) != 0) return false;
    if (!R::PAIRS) {
        own.low = b.low < own.low ? (double)b.low : own.low;
        own.high = b.high > own.high ? (double)b.high : own.high;
    }
    *l = own;
    return true;
}

LB_DEVICE void add_numbers(lane *l, const number_type *type, const uint8_t *tile, uint32_t n, uint32_t t)
{
    bool sums = false, bounds = false;
    if (n == type->per_tile) {
        switch (type->element * 128 + type->bits) {
        case LB_KERNEL_F32 * 128 + 32: sums = bounds = add_fast<read_f32>(l, tile, t, 0); break;
        case LB_KERNEL_SMALL * 128 + 8: {
            const lb_kernel_small small = *type->small; /* not read again for each number */
            sums = bounds = add_fast<read_small>(l, tile, t, &small);
            break;
        }
        case LB_KERNEL_UNSIGNED * 128 + 8: sums = bounds = add_fast<read_u8>(l, tile, t, 0); break;
        case LB_KERNEL_SIGNED * 128 + 8: sums = bounds = add_fast<read_i8>(l, tile, t, 0); break;
        case LB_KERNEL_BOOL * 128 + 8: sums = bounds = add_fast<read_bool>(l, tile, t, 0); break;
        case LB_KERNEL_BF16 * 128 + 16:
            bounds = true;
            add_pair_bounds<read_bf16>(l, type, tile, t);
            sums = add_fast<read_bf16>(l, tile, t, 0);
            break;
        case LB_KERNEL_F16 * 128 + 16:
            bounds = true;
            add_pair_bounds<read_f16>(l, type, tile, t);
            sums = add_fast<read_f16>(l, tile, t, 0);
            break;
        default: break;
        }
    }
    if (!sums || !bounds) add_slowly(l, type, tile, n, t, !sums, !bounds);
}

/* What lanes and pieces are recorded as. Infinities are two counts in one word; THERE tells that a piece is whole. */
enum { SUM, SQUARES, LOW, HIGH, ZERO, NANS, INFS, THERE, RECORD = LB_KERNEL_PIECE_WORDS };
/* What is added up: as above, but positive and negative infinities apart. */
enum { POS_INFS = INFS, NEG_INFS, FIELDS };

LB_DEVICE uint64_t field_begin(uint32_t field)
{
    const double inf = INF;
    return field == LOW ? double_bits(inf) : field == HIGH ? double_bits(-inf) : 0;
}

/* One field of `n` records, one after the other. */
LB_DEVICE uint64_t field_add(uint32_t field, uint64_t so_far, const uint64_t *records, uint32_t n)
{
    double all = bits_double(so_far);
    if (field <= SQUARES) {
#pragma unroll 8
        for (uint32_t i = 0; i < n; i++) all = __dadd_rn(all, bits_double(records[RECORD * i + field]));
        return double_bits(all);
    }
    if (field <= HIGH) {
        for (uint32_t i = 0; i < n; i++) {
            const double next = bits_double(records[RECORD * i + field]);
            all = (field == LOW ? next < all : next > all) ? next : all;
        }
        return double_bits(all);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t next = records[RECORD * i + (field == NEG_INFS ? (uint32_t)INFS : field)];
        so_far += field == POS_INFS ? next & 0xffffffffu : field == NEG_INFS ? next >> 32 : next;
    }
    return so_far;
}

LB_DEVICE void lane_record(const lane *l, uint64_t *record)
{
    record[SUM] = double_bits(l->sum);
    record[SQUARES] = double_bits(l->squares);
    record[LOW] = double_bits(l->low);
    record[HIGH] = double_bits(l->high);
    record[ZERO] = l->zero;
    record[NANS] = l->nan;
    record[INFS] = l->pos_inf | (uint64_t)l->neg_inf << 32;
}

#endif
