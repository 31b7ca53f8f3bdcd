/* The statistics of the numbers that a thread reads: a column of a block, 16 bytes of each stripe. lastbit/statistics.h
 * says in which order they are added. */
#ifndef LB_KERNEL_NUMBERS_CUH
#define LB_KERNEL_NUMBERS_CUH

#include "kernel_read.cuh"

#define INF bits_value(0x7f800000u)
#define NOT_A_NUMBER bits_value(0x7fc00000u)

/* What a column adds, or several together. */
typedef struct column {
    double sum, squares, low, high;
    uint32_t zero, nan, pos_inf, neg_inf;
} column;

LB_DEVICE column column_begin()
{
    const double inf = INF;
    const column c = {0, 0, inf, -inf, 0, 0, 0, 0};
    return c;
}

/* Lanes added in pairs of neighbours. Each round is a function, for a compiler that leaves the rounds a loop keeps lanes in
 * memory. */
template <uint32_t N>
struct pairs {
    LB_DEVICE double of(double *x)
    {
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++) x[i] = __dadd_rn(x[2 * i], x[2 * i + 1]);
        return pairs<N / 2>::of(x);
    }
};
template <>
struct pairs<1> {
    LB_DEVICE double of(double *x) { return x[0]; }
};
template <uint32_t N>
LB_DEVICE double paired(double *x)
{
    return pairs<N>::of(x);
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

/* Number `i` of some bytes, of any type. */
LB_DEVICE double number_at(const lb_kernel_item *type, const uint8_t *bytes, uint32_t i)
{
    const uint8_t *p = bytes + i * type->part_bits / 8;
    switch (type->element * 128 + type->part_bits) {
    case LB_KERNEL_F64 * 128 + 64: return *(const double *)p;
    case LB_KERNEL_F32 * 128 + 32: return *(const float *)p;
    case LB_KERNEL_BF16 * 128 + 16: return bits_value((uint32_t) * (const uint16_t *)p << 16);
    case LB_KERNEL_F16 * 128 + 16: return half_value(*(const uint16_t *)p);
    case LB_KERNEL_SMALL * 128 + 8: return small_value(*p, &type->small);
    case LB_KERNEL_SMALL * 128 + 4: return small_value(*p >> i % 2 * 4 & 15u, &type->small);
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

/* One number by its class. A product is rounded before it is added: of f64 and of wide integers it is not exact. */
LB_DEVICE void add_number(column *c, double *sum, double *squares, double v)
{
    const double inf = INF;
    if (v != v) {
        c->nan++;
    } else if (v == inf) {
        c->pos_inf++;
    } else if (v == -inf) {
        c->neg_inf++;
    } else {
        c->zero += v == 0;
        c->low = v < c->low ? v : c->low;
        c->high = v > c->high ? v : c->high;
        *sum = __dadd_rn(*sum, v);
        *squares = __dadd_rn(*squares, __dmul_rn(v, v));
    }
}

/* ---- types that are read fast ------------------------------------------------------------------------------------ */

/* Each takes 16 bytes after 16 bytes of a column that is whole, as if every number were finite; `end` says whether it
 * was, and if not the column is read again, with a look at each number. */

/* Sums of f32 numbers in f64 cannot overflow by themselves: so they show what was not finite. */
struct take_f32 {
    double sum[4], squares[4];
    float low, high;
    uint32_t zero;
    LB_DEVICE void begin(take_f32 *s)
    {
        const take_f32 nothing = {{0, 0, 0, 0}, {0, 0, 0, 0}, INF, -INF, 0};
        *s = nothing;
    }
    LB_DEVICE void take(take_f32 *s, const quad *x)
    {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const float v = bits_value(x->word[j]);
            const double wide = (double)v;
            s->sum[j] = __dadd_rn(s->sum[j], wide);
            s->squares[j] = __fma_rn(wide, wide, s->squares[j]); /* the product is exact: fused or not is the same */
            s->zero += v == 0;
            s->low = fminf(v, s->low);
            s->high = fmaxf(v, s->high);
        }
    }
    LB_DEVICE bool end(take_f32 *s, column *c)
    {
        const column all = {paired<4>(s->sum), paired<4>(s->squares), s->low, s->high, s->zero, 0, 0, 0};
        *c = all;
        return c->sum - c->sum == 0;
    }
};

struct half_bf16 {
    LB_DEVICE float low_half(uint32_t x) { return bits_value(x << 16); }
    LB_DEVICE float high_half(uint32_t x) { return bits_value(x & 0xffff0000u); }
    LB_DEVICE uint32_t min(uint32_t a, uint32_t b) { return min_bf16(a, b); }
    LB_DEVICE uint32_t max(uint32_t a, uint32_t b) { return max_bf16(a, b); }
    enum { INFS = 0x7f807f80 };
};
struct half_f16 {
    LB_DEVICE float low_half(uint32_t x) { return half_value(x & 0xffffu); }
    LB_DEVICE float high_half(uint32_t x) { return half_value(x >> 16); }
    LB_DEVICE uint32_t min(uint32_t a, uint32_t b) { return min_f16(a, b); }
    LB_DEVICE uint32_t max(uint32_t a, uint32_t b) { return max_f16(a, b); }
    enum { INFS = 0x7c007c00 };
};

/* Two numbers in a word, whose bounds are taken two at once. */
template <class H>
struct take_halves {
    double sum[8], squares[8];
    uint32_t low, high, zeros;
    LB_DEVICE void begin(take_halves *s)
    {
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) s->sum[j] = s->squares[j] = 0;
        s->low = H::INFS;
        s->high = H::INFS | 0x80008000u;
        s->zeros = 0;
    }
    LB_DEVICE void take(take_halves *s, const quad *x)
    {
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            const double v = j % 2 ? H::high_half(x->word[j / 2]) : H::low_half(x->word[j / 2]);
            s->sum[j] = __dadd_rn(s->sum[j], v);
            s->squares[j] = __fma_rn(v, v, s->squares[j]);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            s->low = H::min(s->low, x->word[j]);
            s->high = H::max(s->high, x->word[j]);
            s->zeros = count_zeros(s->zeros, x->word[j]);
        }
    }
    LB_DEVICE bool end(take_halves *s, column *c)
    {
        c->sum = paired<8>(s->sum);
        c->squares = paired<8>(s->squares);
        c->low = fminf(H::low_half(s->low), H::high_half(s->low));
        c->high = fmaxf(H::low_half(s->high), H::high_half(s->high));
        c->zero = (uint32_t)(half_value(s->zeros & 0xffffu) + half_value(s->zeros >> 16));
        return c->sum - c->sum == 0;
    }
};

/* Floats of 8 bits. Their sum over a column is exact, so that no order is kept; their squares have lanes. */
struct take_small {
    double sum, squares[16];
    float low, high;
    uint32_t zero;
    LB_DEVICE void begin(take_small *s)
    {
        s->sum = 0;
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) s->squares[j] = 0;
        s->low = INF;
        s->high = -INF;
        s->zero = 0;
    }
    LB_DEVICE void take(take_small *s, const quad *x)
    {
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            const float v = input.values[x->word[j / 4] >> j % 4 * 8 & 0xffu];
            const double wide = (double)v;
            s->sum = __dadd_rn(s->sum, wide);
            s->squares[j] = __fma_rn(wide, wide, s->squares[j]);
            s->zero += v == 0;
            s->low = fminf(v, s->low);
            s->high = fmaxf(v, s->high);
        }
    }
    LB_DEVICE bool end(take_small *s, column *c)
    {
        const column all = {s->sum, paired<16>(s->squares), s->low, s->high, s->zero, 0, 0, 0};
        *c = all;
        return c->sum - c->sum == 0;
    }
};

/* Whole numbers of 8 bits, and bool: 256 of them and their squares add up in 32 bits. */
struct take_bytes {
    int32_t sum, low, high;
    uint32_t squares, zero, most, sign;
    LB_DEVICE void begin(take_bytes *s)
    {
        const take_bytes nothing = {0,
                                    255,
                                    -128,
                                    0,
                                    0,
                                    input.item.element == LB_KERNEL_BOOL ? 1u : 255u,
                                    input.item.element == LB_KERNEL_SIGNED ? 0x80u : 0};
        *s = nothing;
    }
    LB_DEVICE void take(take_bytes *s, const quad *x)
    {
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            const uint32_t byte = x->word[j / 4] >> j % 4 * 8 & 0xffu, code = byte < s->most ? byte : s->most;
            const int32_t v = (int32_t)(code ^ s->sign) - (int32_t)s->sign;
            s->sum += v;
            s->squares += (uint32_t)(v * v);
            s->zero += v == 0;
            s->low = v < s->low ? v : s->low;
            s->high = v > s->high ? v : s->high;
        }
    }
    LB_DEVICE bool end(take_bytes *s, column *c)
    {
        const column all = {(double)s->sum, (double)s->squares, (double)s->low, (double)s->high, s->zero, 0, 0, 0};
        *c = all;
        return true;
    }
};

/* Here sums can overflow, and then the column is read again in vain: nothing else comes of it. */
struct take_f64 {
    double sum[2], squares[2], low, high;
    uint32_t zero;
    LB_DEVICE void begin(take_f64 *s)
    {
        const double inf = INF;
        const take_f64 nothing = {{0, 0}, {0, 0}, inf, -inf, 0};
        *s = nothing;
    }
    LB_DEVICE void take(take_f64 *s, const quad *x)
    {
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const double v = bits_double(x->word[2 * j] | (uint64_t)x->word[2 * j + 1] << 32);
            s->sum[j] = __dadd_rn(s->sum[j], v);
            s->squares[j] = __dadd_rn(s->squares[j], __dmul_rn(v, v));
            s->zero += v == 0;
            s->low = v < s->low ? v : s->low;
            s->high = v > s->high ? v : s->high;
        }
    }
    LB_DEVICE bool end(take_f64 *s, column *c)
    {
        const column all = {paired<2>(s->sum), paired<2>(s->squares), s->low, s->high, s->zero, 0, 0, 0};
        *c = all;
        return c->sum - c->sum == 0;
    }
};

/* The same with a look at each number. */
struct number_f32 {
    enum { N = 4 };
    LB_DEVICE double of(const quad *x, uint32_t j) { return bits_value(x->word[j]); }
};
template <class H>
struct number_half {
    enum { N = 8 };
    LB_DEVICE double of(const quad *x, uint32_t j)
    {
        return j % 2 ? H::high_half(x->word[j / 2]) : H::low_half(x->word[j / 2]);
    }
};
struct number_f64 {
    enum { N = 2 };
    LB_DEVICE double of(const quad *x, uint32_t j)
    {
        return bits_double(x->word[2 * j] | (uint64_t)x->word[2 * j + 1] << 32);
    }
};

template <class R>
struct take_classes {
    double sum[R::N], squares[R::N];
    column all;
    LB_DEVICE void begin(take_classes *s)
    {
#pragma unroll
        for (uint32_t j = 0; j < R::N; j++) s->sum[j] = s->squares[j] = 0;
        s->all = column_begin();
    }
    LB_DEVICE void take(take_classes *s, const quad *x)
    {
#pragma unroll
        for (uint32_t j = 0; j < R::N; j++) add_number(&s->all, &s->sum[j], &s->squares[j], R::of(x, j));
    }
    LB_DEVICE bool end(take_classes *s, column *c)
    {
        s->all.sum = paired<R::N>(s->sum);
        s->all.squares = paired<R::N>(s->squares);
        *c = s->all;
        return true;
    }
};

/* ---- columns together -------------------------------------------------------------------------------------------- */

/* What a record holds, of a column or of leaves: two counts of 32 bits to a word, and when all is added a word for each. */
enum { SUM, SQUARES, LOW, HIGH, ZERO_NANS, INFS, RECORD = LB_KERNEL_RECORD_WORDS };
enum { ZERO = ZERO_NANS, NANS, POS_INFS, NEG_INFS, FIELDS = LB_KERNEL_FIELD_WORDS };

/* The order of f32 as that of integers. */
LB_DEVICE int32_t ordered(float x)
{
    const int32_t bits = (int32_t)value_bits(x);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}
LB_DEVICE double from_ordered(int32_t key)
{
    return bits_value((uint32_t)(key ^ (int32_t)((uint32_t)(key >> 31) >> 1)));
}

/* What the columns of a warp add up to, in each of its threads. */
LB_DEVICE void add_columns(column *c)
{
#pragma unroll 1
    for (uint32_t bit = 1; bit < 32; bit *= 2) {
        c->sum = __dadd_rn(c->sum, bits_double(partners(double_bits(c->sum), bit)));
        c->squares = __dadd_rn(c->squares, bits_double(partners(double_bits(c->squares), bit)));
        if (input.narrow) continue;
        const double low = bits_double(partners(double_bits(c->low), bit)),
                     high = bits_double(partners(double_bits(c->high), bit));
        c->low = low < c->low ? low : c->low;
        c->high = high > c->high ? high : c->high;
    }
    if (input.narrow) {
        c->low = from_ordered(least(ordered((float)c->low)));
        c->high = from_ordered(most(ordered((float)c->high)));
    }
    c->zero = total(c->zero);
    if (total(c->nan | c->pos_inf | c->neg_inf) == 0) return;
    c->nan = total(c->nan);
    c->pos_inf = total(c->pos_inf);
    c->neg_inf = total(c->neg_inf);
}

LB_DEVICE void record_of(uint64_t record[RECORD], const column *c)
{
    record[SUM] = double_bits(c->sum);
    record[SQUARES] = double_bits(c->squares);
    record[LOW] = double_bits(c->low);
    record[HIGH] = double_bits(c->high);
    record[ZERO_NANS] = c->zero | (uint64_t)c->nan << 32;
    record[INFS] = c->pos_inf | (uint64_t)c->neg_inf << 32;
}

/* A field of all from a record. */
LB_DEVICE uint64_t unpacked(const uint64_t record[RECORD], uint32_t field)
{
    if (field <= HIGH) return record[field];
    const uint64_t two = record[field == ZERO || field == NANS ? ZERO_NANS : INFS];
    return field == ZERO || field == POS_INFS ? two & 0xffffffffu : two >> 32;
}

LB_DEVICE uint64_t field_begin(uint32_t field)
{
    const double inf = INF;
    return field == LOW ? double_bits(inf) : field == HIGH ? double_bits(-inf) : 0;
}

/* One field of two. */
LB_DEVICE uint64_t field_add(uint32_t field, uint64_t a, uint64_t b)
{
    const double x = bits_double(a), y = bits_double(b);
    if (field <= SQUARES) return double_bits(__dadd_rn(x, y));
    if (field == LOW) return y < x ? b : a;
    if (field == HIGH) return y > x ? b : a;
    return a + b;
}

#endif
