/* Digests and statistics of values on a device, bit-equal with lb_measure: see measure_kernel.h.
 *
 * A warp is two teams of 16 threads. A team reads a span (a leaf of the digest, or a piece of the statistics) tile by tile: 4 KiB are
 * copied into shared memory while the 4 KiB before are worked on, so that each byte is read once from the device's memory.
 *
 *     hash         A leaf is 64 blocks of 16 stripes of 64 bytes. Inside a block XXH3 only adds, so that thread (b, c) of a team
 *                  sums 16 bytes of each stripe of block b of the tile, and 8 threads then chain the blocks by scrambles.
 *     statistics   Element i of a piece goes to lane i mod 16: thread t of the team is lane t, and adds its elements one after
 *                  the other. This order is the definition's; so a piece takes at least 4096 dependent additions.
 *     the whole    The warp that ends an item's last unit adds up pieces and hashes leaves, each in their order.
 *
 * The host compiles this file, too, for tests: __shared__, __syncwarp and what is below "the machine" are then functions. */
#include "measure_kernel.h"

/* ---- the machine ------------------------------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define LB_DEVICE static __device__ __forceinline__
#define LB_TABLE static __device__ __constant__ const

/* Copies `size` bytes (4, 8 or 16) without waiting, of which `valid` are read and the others 0. */
LB_DEVICE void copy_begin(void *shared, uint64_t global, uint32_t size, uint32_t valid)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    if (size == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid) : "memory");
    else if (size == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(valid) : "memory");
}
/* What was begun since the last call is a group. */
LB_DEVICE void copy_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* This thread's copies are done but for those of the last group. */
LB_DEVICE void copy_wait()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}
LB_DEVICE float half_value(uint32_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)bits));
    return value;
}
LB_DEVICE float bits_value(uint32_t bits)
{
    return __uint_as_float(bits);
}
LB_DEVICE uint64_t double_bits(double value)
{
    return (uint64_t)__double_as_longlong(value);
}
LB_DEVICE double bits_double(uint64_t bits)
{
    return __longlong_as_double((long long)bits);
}
LB_DEVICE uint64_t high_product(uint64_t a, uint64_t b)
{
    return __umul64hi(a, b);
}
LB_DEVICE uint32_t count_one(uint64_t *counter)
{
    return (uint32_t)atomicAdd((unsigned long long *)counter, 1ull);
}
LB_DEVICE void set_visibly(uint64_t *word, uint64_t value)
{
    *(volatile uint64_t *)word = value;
}
#endif

#define INF bits_value(0x7f800000u)

/* ---- XXH3 -------------------------------------------------------------------------------------------------------------- */

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87ull
#define PRIME64_2 0xC2B2AE3D27D4EB4Full
#define PRIME64_3 0x165667B19E3779F9ull
#define PRIME64_4 0x85EBCA77C2B2AE63ull
#define PRIME64_5 0x27D4EB2F165667C5ull
#define MIX_1 0x165667919E3779F9ull
#define MIX_2 0x9FB21C651E98DF25ull

enum {
    TEAM = 16,
    STRIPE = 64,
    BLOCK = 1024,
    BLOCKS = 4,             /* of a tile */
    PITCH = BLOCK + STRIPE, /* from block to block, so that threads of two blocks use other banks */
    TILE = BLOCKS * BLOCK,
    LONG = 240 /* bytes: up to here XXH3 is another function */
};

/* The secret of XXH3 as little-endian words. */
LB_TABLE uint64_t secret_words[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};
LB_TABLE uint64_t first_sums[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                   PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

typedef struct pair {
    uint64_t low, high;
} pair;

/* Eight bytes of the secret with a seed, from any byte on. */
LB_DEVICE uint64_t seeded(uint32_t word, uint64_t seed)
{
    return secret_words[word] + (word % 2 ? 0 - seed : seed);
}
LB_DEVICE uint64_t secret_at(uint32_t byte, uint64_t seed)
{
    const uint32_t shift = 8 * (byte % 8);
    const uint64_t low = seeded(byte / 8, seed);
    return shift ? low >> shift | seeded(byte / 8 + 1, seed) << (64 - shift) : low;
}
LB_DEVICE uint64_t fold(uint64_t a, uint64_t b)
{
    return a * b ^ high_product(a, b);
}
LB_DEVICE uint64_t avalanche(uint64_t x)
{
    x ^= x >> 37;
    x *= MIX_1;
    return x ^ x >> 32;
}
LB_DEVICE uint64_t old_avalanche(uint64_t x) /* XXH64's */
{
    x ^= x >> 33;
    x *= PRIME64_2;
    x ^= x >> 29;
    x *= PRIME64_3;
    return x ^ x >> 32;
}
LB_DEVICE uint64_t rotated(uint64_t x, uint32_t by)
{
    return x << by | x >> (64 - by);
}
LB_DEVICE uint32_t reversed32(uint32_t x)
{
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}
LB_DEVICE uint64_t reversed64(uint64_t x)
{
    return (uint64_t)reversed32((uint32_t)x) << 32 | reversed32((uint32_t)(x >> 32));
}
LB_DEVICE uint32_t word32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
LB_DEVICE uint64_t word64(const uint8_t *p)
{
    return word32(p) | (uint64_t)word32(p + 4) << 32;
}

/* 16 bytes against 16 of the secret, which is not seeded as a whole here. */
LB_DEVICE uint64_t mix16(const uint8_t *p, uint32_t secret, uint64_t seed)
{
    return fold(word64(p) ^ (secret_at(secret, 0) + seed), word64(p + 8) ^ (secret_at(secret + 8, 0) - seed));
}

LB_DEVICE uint64_t short_hash_to_16(const uint8_t *p, uint32_t n, uint64_t seed)
{
    if (n > 8) {
        const uint64_t low = word64(p) ^ ((secret_at(24, 0) ^ secret_at(32, 0)) + seed);
        const uint64_t high = word64(p + n - 8) ^ ((secret_at(40, 0) ^ secret_at(48, 0)) - seed);
        return avalanche(n + reversed64(low) + high + fold(low, high));
    }
    if (n >= 4) {
        const uint64_t flip =
            (secret_at(8, 0) ^ secret_at(16, 0)) - (seed ^ (uint64_t)reversed32((uint32_t)seed) << 32);
        uint64_t x = (word32(p + n - 4) + ((uint64_t)word32(p) << 32)) ^ flip;
        x ^= rotated(x, 49) ^ rotated(x, 24);
        x *= MIX_2;
        x ^= (x >> 35) + n;
        x *= MIX_2;
        return x ^ x >> 28;
    }
    if (n == 0) return old_avalanche(seed ^ secret_at(56, 0) ^ secret_at(64, 0));
    const uint32_t all = (uint32_t)p[0] << 16 | (uint32_t)p[n / 2] << 24 | p[n - 1] | n << 8;
    const uint64_t keys = secret_at(0, 0);
    return old_avalanche(all ^ ((uint32_t)(keys ^ keys >> 32) + seed));
}

/* Up to LONG bytes. */
LB_DEVICE uint64_t short_hash(const uint8_t *p, uint32_t n, uint64_t seed)
{
    if (n <= 16) return short_hash_to_16(p, n, seed);
    uint64_t sum = n * PRIME64_1;
    if (n <= 128) {
        for (uint32_t i = (n - 1) / 32 + 1; i-- > 0;)
            sum += mix16(p + 16 * i, 32 * i, seed) + mix16(p + n - 16 * (i + 1), 32 * i + 16, seed);
        return avalanche(sum);
    }
    for (uint32_t i = 0; i < 8; i++) sum += mix16(p + 16 * i, 16 * i, seed);
    sum = avalanche(sum);
    for (uint32_t i = 8; i < n / 16; i++) sum += mix16(p + 16 * i, 16 * (i - 8) + 3, seed);
    return avalanche(sum + mix16(p + n - 16, 136 - 17, seed));
}

LB_DEVICE void mix32(pair *sum, const uint8_t *a, const uint8_t *b, uint32_t secret)
{
    sum->low = (sum->low + mix16(a, secret, 0)) ^ (word64(b) + word64(b + 8));
    sum->high = (sum->high + mix16(b, secret + 16, 0)) ^ (word64(a) + word64(a + 8));
}

/* 8 bytes, or 16. */
LB_DEVICE pair short_hash128_to_16(const uint8_t *p, uint32_t n)
{
    pair h;
    if (n == 8) {
        const uint64_t x = word64(p) ^ secret_at(16, 0) ^ secret_at(24, 0), by = PRIME64_1 + (n << 2);
        h.low = x * by;
        h.high = high_product(x, by) + (h.low << 1);
        h.low ^= h.high >> 3;
        h.low = (h.low ^ h.low >> 35) * MIX_2;
        h.low ^= h.low >> 28;
        h.high = avalanche(h.high);
        return h;
    }
    const uint64_t mixed = word64(p) ^ word64(p + 8) ^ secret_at(32, 0) ^ secret_at(40, 0);
    const uint64_t end = word64(p + 8) ^ secret_at(48, 0) ^ secret_at(56, 0);
    const uint64_t high = high_product(mixed, PRIME64_1) + end + (end & 0xffffffffu) * (PRIME32_2 - 1);
    const uint64_t low = (mixed * PRIME64_1 + ((uint64_t)(n - 1) << 54)) ^ reversed64(high);
    h.low = avalanche(low * PRIME64_2);
    h.high = avalanche(high_product(low, PRIME64_2) + high * PRIME64_2);
    return h;
}

/* XXH3-128 of whole words, up to LONG bytes. */
LB_DEVICE pair short_hash128(const uint8_t *p, uint32_t n)
{
    if (n <= 16) return short_hash128_to_16(p, n);
    pair sum = {n * PRIME64_1, 0}, h;
    if (n <= 128) {
        for (uint32_t i = (n - 1) / 32 + 1; i-- > 0;) mix32(&sum, p + 16 * i, p + n - 16 * (i + 1), 32 * i);
    } else {
        for (uint32_t i = 0; i < 128; i += 32) mix32(&sum, p + i, p + i + 16, i);
        sum.low = avalanche(sum.low);
        sum.high = avalanche(sum.high);
        for (uint32_t i = 128; i + 32 <= n; i += 32) mix32(&sum, p + i, p + i + 16, 3 + i - 128);
        mix32(&sum, p + n - 16, p + n - 32, 136 - 17 - 16);
    }
    h.low = avalanche(sum.low + sum.high);
    h.high = 0 - avalanche(sum.low * PRIME64_1 + sum.high * PRIME64_4 + n * PRIME64_2);
    return h;
}

LB_DEVICE uint64_t merged(const uint64_t sums[8], uint32_t secret, uint64_t seed, uint64_t start)
{
    for (uint32_t i = 0; i < 4; i++)
        start += fold(sums[2 * i] ^ secret_at(secret + 16 * i, seed),
                      sums[2 * i + 1] ^ secret_at(secret + 16 * i + 8, seed));
    return avalanche(start);
}

/* ---- a team's tiles ---------------------------------------------------------------------------------------------------- */

typedef struct __align__(16) team_memory
{
    uint8_t tile[2][BLOCKS * PITCH];
    uint64_t blocks[BLOCKS][8]; /* what each block of the tile adds to the sums */
    uint64_t sums[8];           /* at the end of a leaf */
}
team_memory;

/* Where in a tile's memory a byte of it lies. */
LB_DEVICE uint32_t place(uint32_t byte)
{
    return byte + byte / BLOCK * STRIPE;
}

typedef enum source_kind { DENSE, STRIDED, WORDS } source_kind;

/* What a team reads: a stream of bytes. */
typedef struct source {
    source_kind kind;
    uint32_t granule;
    uint64_t address, bytes;
    const lb_kernel_item *item;
    const uint64_t *leaves; /* WORDS: what the 128-bit hash is of */
    uint64_t n_leaves, size_word;
} source;

template <uint32_t G>
LB_DEVICE void fill_dense(uint8_t *tile, uint64_t from, uint32_t n, uint32_t t)
{
    for (uint32_t at = G * t; at < n; at += G * TEAM) {
        if (G >= 4)
            copy_begin(tile + place(at), from + at, G, n - at < G ? n - at : G);
        else
            for (uint32_t i = 0; i < G && at + i < n; i++) tile[place(at) + i] = *(const uint8_t *)(from + at + i);
    }
}

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

template <class T>
LB_DEVICE void fill_strided(uint8_t *tile, const lb_kernel_item *item, uint64_t at, uint32_t n, uint32_t t)
{
    const uint32_t width = item->width, elements = n / width;
    const uint64_t count = item->sizes[item->n_sizes - 1], stride = (uint64_t)item->strides[item->n_sizes - 1];
    const uint64_t first = at / width + t;
    uint64_t row = first / count, column = first - row * count, address = row_address(item, row);
    for (uint32_t e = t; e < elements; e += TEAM) {
        if (column >= count) {
            row += column / count;
            column %= count;
            address = row_address(item, row);
        }
        const uint64_t from = address + column * stride;
        for (uint32_t i = 0; i < width; i += sizeof(T)) *(T *)(tile + place(e * width) + i) = *(const T *)(from + i);
        column += TEAM;
    }
}

LB_DEVICE uint64_t word_of(const source *s, uint64_t i)
{
    if (i == 0) return s->size_word;
    if (i <= s->n_leaves) return s->leaves[i - 1];
    i -= s->n_leaves + 1;
    return i == 0 ? s->item->dtype : i == 1 ? s->item->ndim : s->item->shape[i - 2];
}

/* Begins to bring `n` bytes of the stream from `at` on into a tile. */
LB_DEVICE void fill(uint8_t *tile, const source *s, uint64_t at, uint32_t n, uint32_t t)
{
    if (s->kind == WORDS) {
        for (uint32_t i = 8 * t; i < n; i += 8 * TEAM) *(uint64_t *)(tile + place(i)) = word_of(s, (at + i) / 8);
    } else if (s->kind == DENSE) {
        switch (s->granule) {
        case 16: fill_dense<16>(tile, s->address + at, n, t); break;
        case 8: fill_dense<8>(tile, s->address + at, n, t); break;
        case 4: fill_dense<4>(tile, s->address + at, n, t); break;
        default: fill_dense<1>(tile, s->address + at, n, t); break;
        }
    } else {
        switch (s->granule) {
        case 16: fill_strided<pair>(tile, s->item, at, n, t); break;
        case 8: fill_strided<uint64_t>(tile, s->item, at, n, t); break;
        case 4: fill_strided<uint32_t>(tile, s->item, at, n, t); break;
        case 2: fill_strided<uint16_t>(tile, s->item, at, n, t); break;
        default: fill_strided<uint8_t>(tile, s->item, at, n, t); break;
        }
    }
}

/* ---- the hash of a tile ------------------------------------------------------------------------------------------------- */

/* Where a tile lies in what is hashed as one. */
typedef struct leaf_place {
    uint64_t seed, at, size; /* at: byte of the leaf where the tile begins */
} leaf_place;

/* Stripes of a block before the last stripe of all; the others are not followed by a scramble. */
LB_DEVICE uint32_t stripes_of(uint64_t block, uint64_t size)
{
    const uint64_t scrambled = (size - 1) / BLOCK;
    return block < scrambled ? BLOCK / STRIPE : block == scrambled ? (uint32_t)((size - 1) % BLOCK / STRIPE) : 0;
}

LB_DEVICE void hash_blocks(team_memory *m, const uint8_t *tile, const leaf_place *leaf, uint32_t t)
{
    const uint32_t block = t / 4, column = t % 4, n = stripes_of(leaf->at / BLOCK + block, leaf->size);
    const uint8_t *p = tile + block * PITCH + column * 16;
    uint64_t low = 0, high = 0, key = seeded(2 * column, leaf->seed);
#pragma unroll
    for (uint32_t s = 0; s < BLOCK / STRIPE; s++) {
        const uint64_t next = seeded(2 * column + s + 1, leaf->seed);
        if (s < n) {
            const pair data = *(const pair *)(p + STRIPE * s);
            const uint64_t a = data.low ^ key, b = data.high ^ next;
            low += data.high + (a & 0xffffffffu) * (a >> 32);
            high += data.low + (b & 0xffffffffu) * (b >> 32);
        }
        key = next;
    }
    m->blocks[block][2 * column] = low;
    m->blocks[block][2 * column + 1] = high;
}

/* Byte `at` of the tile in buffer `k`; one before its beginning is of the tile before. */
LB_DEVICE uint8_t byte_at(const team_memory *m, uint32_t k, int32_t at)
{
    return at >= 0 ? m->tile[k][place((uint32_t)at)] : m->tile[k ^ 1][place((uint32_t)(at + TILE))];
}
LB_DEVICE uint64_t word_at(const team_memory *m, uint32_t k, int32_t at)
{
    uint64_t word = 0;
    for (int32_t i = 7; i >= 0; i--) word = word << 8 | byte_at(m, k, at + i);
    return word;
}

/* Thread t < 8 holds sum t. */
LB_DEVICE uint64_t chain_blocks(const team_memory *m, uint32_t k, const leaf_place *leaf, uint64_t sum, uint32_t t)
{
    const uint64_t scrambled = (leaf->size - 1) / BLOCK, key = seeded(16 + t, leaf->seed);
    for (uint32_t b = 0; b < BLOCKS && leaf->at / BLOCK + b <= scrambled; b++) {
        sum += m->blocks[b][t];
        if (leaf->at / BLOCK + b < scrambled) sum = (sum ^ sum >> 47 ^ key) * PRIME32_1;
    }
    if (leaf->size > leaf->at + TILE) return sum;
    const int32_t last = (int32_t)(leaf->size - leaf->at) - STRIPE;
    const uint64_t keyed = word_at(m, k, last + 8 * (int32_t)t) ^ secret_at(121 + 8 * t, leaf->seed);
    return sum + word_at(m, k, last + 8 * (int32_t)(t ^ 1)) + (keyed & 0xffffffffu) * (keyed >> 32);
}

/* ---- the numbers of a tile ---------------------------------------------------------------------------------------------- */

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

/* How number `i` of a block of the tile is read. `value`: f32 where that holds every number exactly, and its square in f64. */
struct read_f32 {
    typedef float value;
    enum { BITS = 32 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return ((const float *)p)[i]; }
};
struct read_bf16 {
    typedef float value;
    enum { BITS = 16 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *)
    {
        return bits_value((uint32_t)((const uint16_t *)p)[i] << 16);
    }
};
struct read_f16 {
    typedef float value;
    enum { BITS = 16 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *)
    {
        return half_value(((const uint16_t *)p)[i]);
    }
};
LB_DEVICE float small_value(uint32_t code, const lb_kernel_small *s)
{
    const uint32_t magnitude = code & ((1u << s->sign_shift) - 1), sign = code >> s->sign_shift;
    if (magnitude > s->max_code) return magnitude == s->inf_code ? (sign ? -INF : INF) : bits_value(0x7fc00000u);
    if (s->unsigned_zero && sign && magnitude == 0) return bits_value(0x7fc00000u);
    const uint32_t exponent = magnitude >> s->fraction_bits, fraction = magnitude - (exponent << s->fraction_bits);
    /* A subnormal is its fraction times 2^(1 - bias - fraction_bits). */
    const float value = exponent ? bits_value((exponent + 127 - s->bias) << 23 | fraction << (23 - s->fraction_bits))
                                 : (float)fraction * bits_value((128 - s->bias - s->fraction_bits) << 23);
    return sign ? -value : value;
}
struct read_small {
    typedef float value;
    enum { BITS = 8 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *s) { return small_value(p[i], s); }
};
struct read_nibble {
    typedef float value;
    enum { BITS = 4 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *s)
    {
        return small_value(p[i / 2] >> i % 2 * 4 & 15u, s);
    }
};
struct read_scale {
    typedef float value;
    enum { BITS = 8 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *)
    {
        const uint32_t code = p[i];
        return bits_value(code == 0 ? 0x00400000u : code == 0xff ? 0x7fc00000u : code << 23);
    }
};
struct read_bool {
    typedef float value;
    enum { BITS = 8 };
    LB_DEVICE float at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return p[i] ? 1.0f : 0.0f; }
};
template <class T, class V>
struct read_as {
    typedef V value;
    enum { BITS = 8 * sizeof(T) };
    LB_DEVICE V at(const uint8_t *p, uint32_t i, const lb_kernel_small *) { return (V)((const T *)p)[i]; }
};

/* One number, counted by its class. A product is rounded before it is added: of f64 and of wide integers it is not exact. */
LB_DEVICE void add_masked(lane *l, double v)
{
    const double inf = INF;
    if (v != v) {
        l->nan++;
    } else if (v == inf) {
        l->pos_inf++;
    } else if (v == -inf) {
        l->neg_inf++;
    } else {
        l->zero += v == 0;
        l->sum = __dadd_rn(l->sum, v);
        l->squares = __dadd_rn(l->squares, __dmul_rn(v, v));
        l->low = v < l->low ? v : l->low;
        l->high = v > l->high ? v : l->high;
    }
}

template <class R>
LB_DEVICE void add_slowly(lane *l, const uint8_t *tile, uint32_t n, uint32_t t, const lb_kernel_small *small)
{
    const uint32_t per_block = BLOCK * 8 / R::BITS;
    for (uint32_t i = t; i < n; i += TEAM)
        add_masked(l, (double)R::at(tile + i / per_block * PITCH, i % per_block, small));
}

typedef struct bounds {
    float low, high;
} bounds;

template <class R>
LB_DEVICE void add_one(lane *l, bounds *b, const uint8_t *block, uint32_t i, const lb_kernel_small *small)
{
    const float v = R::at(block, i, small);
    const double x = (double)v;
    l->zero += v == 0;
    b->low = fminf(v, b->low);
    b->high = fmaxf(v, b->high);
    l->sum = __dadd_rn(l->sum, x);
    l->squares = __fma_rn(x, x, l->squares); /* the product is exact: fused or not is the same */
}

/* Nearly every tile is finite: it is added without looking, and done again by class when the sums show that it was not (f64 sums of f32
 * numbers cannot overflow by themselves). */
template <class R>
LB_DEVICE void add_fast(lane *l, const uint8_t *tile, uint32_t n, uint32_t t, const lb_kernel_small *small)
{
    const uint32_t per_block = BLOCK * 8 / R::BITS;
    const lane before = *l;
    bounds b = {INF, -INF};
    const uint8_t *block = tile;
    for (uint32_t first = 0; first < n; first += per_block, block += PITCH) {
        if (n - first >= per_block) {
#pragma unroll 8
            for (uint32_t i = 0; i < per_block; i += TEAM) add_one<R>(l, &b, block, i + t, small);
        } else {
            for (uint32_t i = t; i < n - first; i += TEAM) add_one<R>(l, &b, block, i, small);
        }
    }
    const double odd = (l->sum - l->sum) + (l->squares - l->squares);
    if (odd == 0) {
        l->low = b.low < l->low ? (double)b.low : l->low;
        l->high = b.high > l->high ? (double)b.high : l->high;
        return;
    }
    *l = before;
    add_slowly<R>(l, tile, n, t, small);
}

LB_DEVICE void add_numbers(lane *l, const lb_kernel_item *item, const uint8_t *tile, uint32_t n, uint32_t t)
{
    const lb_kernel_small *small = &item->small;
    switch (item->element * 128 + item->part_bits) {
    case LB_KERNEL_F64 * 128 + 64: add_slowly<read_as<double, double>>(l, tile, n, t, small); break;
    case LB_KERNEL_F32 * 128 + 32: add_fast<read_f32>(l, tile, n, t, small); break;
    case LB_KERNEL_BF16 * 128 + 16: add_fast<read_bf16>(l, tile, n, t, small); break;
    case LB_KERNEL_F16 * 128 + 16: add_fast<read_f16>(l, tile, n, t, small); break;
    case LB_KERNEL_SMALL * 128 + 8: add_fast<read_small>(l, tile, n, t, small); break;
    case LB_KERNEL_SMALL * 128 + 4: add_fast<read_nibble>(l, tile, n, t, small); break;
    case LB_KERNEL_SCALE * 128 + 8: add_fast<read_scale>(l, tile, n, t, small); break;
    case LB_KERNEL_BOOL * 128 + 8: add_fast<read_bool>(l, tile, n, t, small); break;
    case LB_KERNEL_SIGNED * 128 + 8: add_fast<read_as<signed char, float>>(l, tile, n, t, small); break;
    case LB_KERNEL_SIGNED * 128 + 16: add_fast<read_as<short, float>>(l, tile, n, t, small); break;
    case LB_KERNEL_SIGNED * 128 + 32: add_slowly<read_as<int32_t, double>>(l, tile, n, t, small); break;
    case LB_KERNEL_SIGNED * 128 + 64: add_slowly<read_as<int64_t, double>>(l, tile, n, t, small); break;
    case LB_KERNEL_UNSIGNED * 128 + 8: add_fast<read_as<uint8_t, float>>(l, tile, n, t, small); break;
    case LB_KERNEL_UNSIGNED * 128 + 16: add_fast<read_as<uint16_t, float>>(l, tile, n, t, small); break;
    case LB_KERNEL_UNSIGNED * 128 + 32: add_slowly<read_as<uint32_t, double>>(l, tile, n, t, small); break;
    case LB_KERNEL_UNSIGNED * 128 + 64: add_slowly<read_as<uint64_t, double>>(l, tile, n, t, small); break;
    default: break;
    }
}

/* What lanes and pieces are recorded as: 8 words. */
enum { SUM, SQUARES, LOW, HIGH, COUNTS, RECORD = LB_KERNEL_PIECE_WORDS };

LB_DEVICE uint64_t record_begin(uint32_t field)
{
    const double inf = INF;
    return field == LOW ? double_bits(inf) : field == HIGH ? double_bits(-inf) : 0;
}

/* One field of `n` records, one after the other. */
LB_DEVICE uint64_t record_add(uint32_t field, uint64_t so_far, const uint64_t *records, uint32_t n)
{
    if (field >= COUNTS) {
        for (uint32_t i = 0; i < n; i++) so_far += records[RECORD * i + field];
        return so_far;
    }
    double all = bits_double(so_far);
    if (field <= SQUARES) {
#pragma unroll 8
        for (uint32_t i = 0; i < n; i++) all = __dadd_rn(all, bits_double(records[RECORD * i + field]));
        return double_bits(all);
    }
    for (uint32_t i = 0; i < n; i++) {
        const double next = bits_double(records[RECORD * i + field]);
        all = field == LOW ? (next < all ? next : all) : (next > all ? next : all);
    }
    return double_bits(all);
}

LB_DEVICE void lane_record(const lane *l, uint64_t *record)
{
    record[SUM] = double_bits(l->sum);
    record[SQUARES] = double_bits(l->squares);
    record[LOW] = double_bits(l->low);
    record[HIGH] = double_bits(l->high);
    record[COUNTS] = l->zero;
    record[COUNTS + 1] = l->nan;
    record[COUNTS + 2] = l->pos_inf;
    record[COUNTS + 3] = l->neg_inf;
}

/* ---- spans -------------------------------------------------------------------------------------------------------------- */

/* What a warp does with a stream: both teams a span each, the second perhaps a shorter one, or none. */
typedef struct span_work {
    source from;
    uint64_t at, size; /* of this team's span */
    uint32_t tiles;    /* of the longer one */
    uint64_t *leaves;  /* NULL: not hashed, or (WORDS) hashed as one */
    uint64_t *piece;   /* NULL: no statistics */
} span_work;

LB_DEVICE leaf_place leaf_of(const source *s, uint64_t at)
{
    leaf_place leaf = {0, at, s->bytes};
    if (s->kind == WORDS) return leaf;
    leaf.seed = at / LB_KERNEL_LEAF;
    leaf.at = at % LB_KERNEL_LEAF;
    const uint64_t left = s->bytes - (at - leaf.at);
    leaf.size = left < LB_KERNEL_LEAF ? left : LB_KERNEL_LEAF;
    return leaf;
}

LB_DEVICE void fill_tile(team_memory *m, const span_work *w, uint32_t k, uint32_t t)
{
    const uint64_t at = (uint64_t)k * TILE;
    const uint64_t left = at < w->size ? w->size - at : 0;
    if (left) fill(m->tile[k % 2], &w->from, w->at + at, left < TILE ? (uint32_t)left : (uint32_t)TILE, t);
    copy_group();
}

/* Numbers in the tile that begins at byte `at` of the stream. */
LB_DEVICE uint32_t numbers_in(const span_work *w, uint64_t at)
{
    const lb_kernel_item *item = w->from.item;
    const uint64_t left = item->numbers - at * 8 / item->part_bits, most = TILE * 8 / item->part_bits;
    return (uint32_t)(left < most ? left : most);
}

LB_DEVICE void end_leaf(const team_memory *m, const span_work *w, uint32_t k, const leaf_place *leaf)
{
    w->leaves[leaf->seed] = leaf->size <= LONG ? short_hash(m->tile[k % 2], (uint32_t)leaf->size, leaf->seed)
                                               : merged(m->sums, 11, leaf->seed, leaf->size * PRIME64_1);
}

LB_DEVICE void end_piece(team_memory *m, const span_work *w, const lane *l, uint32_t t)
{
    uint64_t *records = (uint64_t *)m->tile[0];
    if (w->piece && w->size) lane_record(l, records + RECORD * t);
    __syncwarp();
    if (w->piece && w->size && t < RECORD) w->piece[t] = record_add(t, record_begin(t), records, TEAM);
}

/* All threads of a warp come here together. */
LB_DEVICE void do_spans(team_memory *m, const span_work *w, uint32_t t)
{
    const bool hashed = w->leaves || w->from.kind == WORDS;
    lane l = lane_begin();
    uint64_t sum = 0;
    fill_tile(m, w, 0, t);
    for (uint32_t k = 0; k < w->tiles; k++) {
        fill_tile(m, w, k + 1, t);
        copy_wait();
        __syncwarp();
        const uint64_t at = w->at + (uint64_t)k * TILE;
        const bool mine = (uint64_t)k * TILE < w->size;
        const uint8_t *tile = m->tile[k % 2];
        const leaf_place leaf = leaf_of(&w->from, at);
        const bool is_long = mine && hashed && leaf.size > LONG, ends = leaf.at + TILE >= leaf.size;
        if (is_long && leaf.at == 0) sum = first_sums[t % 8];
        if (is_long) hash_blocks(m, tile, &leaf, t);
        if (mine && w->piece) add_numbers(&l, w->from.item, tile, numbers_in(w, at), t);
        __syncwarp();
        if (is_long && t < 8) {
            sum = chain_blocks(m, k % 2, &leaf, sum, t);
            if (ends) m->sums[t] = sum;
        }
        __syncwarp();
        if (mine && w->leaves && ends && t == 0) end_leaf(m, w, k, &leaf);
        if (w->leaves) __syncwarp();
    }
    end_piece(m, w, &l, t);
}

/* ---- items -------------------------------------------------------------------------------------------------------------- */

LB_DEVICE uint64_t parts_of(uint64_t all, uint64_t each)
{
    return all / each + (all % each != 0);
}

typedef struct scratch_places {
    uint64_t *count, *leaves, *blob, *pieces;
    uint64_t n_leaves, n_blob, n_pieces;
} scratch_places;

LB_DEVICE scratch_places scratch_of(const lb_kernel_item *item)
{
    scratch_places s;
    s.n_leaves = parts_of(item->bytes, LB_KERNEL_LEAF);
    s.n_blob = item->what & LB_KERNEL_BLOB ? parts_of(item->dense_bytes, LB_KERNEL_LEAF) : 0;
    s.n_pieces = item->what & LB_KERNEL_STATISTICS ? parts_of(item->numbers, LB_KERNEL_PIECE) : 0;
    s.count = (uint64_t *)item->scratch;
    s.leaves = s.count + LB_KERNEL_LEAVES_AT;
    s.blob = s.leaves + s.n_leaves;
    s.pieces = s.blob + s.n_blob;
    return s;
}

LB_DEVICE source elements_of(const lb_kernel_item *item)
{
    const source s = {item->contiguous ? DENSE : STRIDED, item->granule, item->data, item->bytes, item, 0, 0, 0};
    return s;
}

/* Two spans of `span` bytes, the first of them number 2 * unit of the stream. */
LB_DEVICE void take_spans(span_work *w, uint64_t unit, uint64_t span, uint32_t team)
{
    const uint64_t first = 2 * unit * span, left = w->from.bytes - first;
    w->tiles = (uint32_t)parts_of(left < span ? left : span, TILE);
    w->at = first + team * span;
    w->size = w->at >= w->from.bytes ? 0 : w->from.bytes - w->at < span ? w->from.bytes - w->at : span;
}

LB_DEVICE void do_unit(const lb_kernel_item *item, const scratch_places *s, uint32_t unit, team_memory *m,
                       uint32_t team, uint32_t t)
{
    span_work w = {elements_of(item), 0, 0, 0, 0, 0};
    const uint64_t piece = (uint64_t)LB_KERNEL_PIECE * item->part_bits / 8;
    bool numbers = item->fused;
    if (unit < item->main) {
        w.leaves = s->leaves;
        take_spans(&w, unit, item->main_span, team);
    } else if (unit - item->main < item->statistics) {
        numbers = true;
        take_spans(&w, unit - item->main, piece, team);
    } else {
        numbers = false;
        w.from.kind = DENSE;
        w.from.granule = item->dense_granule;
        w.from.address = item->dense;
        w.from.bytes = item->dense_bytes;
        w.leaves = s->blob;
        take_spans(&w, unit - item->main - item->statistics, LB_KERNEL_LEAF, team);
    }
    if (numbers) w.piece = s->pieces + w.at / piece * RECORD;
    do_spans(m, &w, t);
}

/* Thread `t` < RECORD of the first team has field t of all pieces. */
LB_DEVICE uint64_t add_pieces(const scratch_places *s, team_memory *m, uint32_t team, uint32_t t)
{
    uint64_t *records = (uint64_t *)m->tile[0], all = record_begin(t);
    const uint32_t most = TILE / (8 * RECORD);
    for (uint64_t first = 0; first < s->n_pieces; first += most) {
        const uint32_t n = s->n_pieces - first < most ? (uint32_t)(s->n_pieces - first) : most;
        if (team == 0)
            for (uint32_t i = t; i < n * RECORD; i += TEAM) records[i] = s->pieces[first * RECORD + i];
        __syncwarp();
        if (team == 0 && t < RECORD) all = record_add(t, all, records, n);
        __syncwarp();
    }
    return all;
}

LB_DEVICE void set_statistics(lb_kernel_result *r, uint32_t field, uint64_t value, int64_t numbers)
{
    switch (field) {
    case SUM: r->sum = bits_double(value); break;
    case SQUARES: r->sum_squares = bits_double(value); break;
    case LOW: r->min = __dadd_rn(bits_double(value), 0.0); break; /* a bound that is zero is +0 */
    case HIGH: r->max = __dadd_rn(bits_double(value), 0.0); break;
    case COUNTS: r->zero = (int64_t)value; break;
    case COUNTS + 1: r->nan = (int64_t)value; break;
    case COUNTS + 2: r->pos_inf = (int64_t)value; break;
    case COUNTS + 3: r->neg_inf = (int64_t)value; break;
    case RECORD: r->elements = numbers; break;
    default: break;
    }
}

LB_DEVICE pair digest_end(const team_memory *m, uint64_t bytes)
{
    pair h;
    if (bytes <= LONG) {
        h = short_hash128(m->tile[0], (uint32_t)bytes);
    } else {
        h.low = merged(m->sums, 11, 0, bytes * PRIME64_1);
        h.high = merged(m->sums, 117, 0, ~(bytes * PRIME64_2));
    }
    if (h.low == 0 && h.high == 0) h.low = 1; /* (0, 0) is taken */
    return h;
}

/* All units of the item have ended: the first team hashes its leaves and adds its pieces, the second hashes those of the blob. */
LB_DEVICE void finish_item(const lb_kernel_launch *launch, const lb_kernel_item *item, const scratch_places *s,
                           team_memory *m, uint32_t team, uint32_t t)
{
    const bool blob = item->contiguous || item->what & LB_KERNEL_BLOB;
    const uint64_t n_blob = item->contiguous ? s->n_leaves : s->n_blob;
    const uint64_t sizes[2] = {8 * (1 + s->n_leaves + 2 + item->ndim), blob ? 8 * (1 + n_blob) : 0};
    const uint64_t turn = launch->turn ? *(const volatile uint64_t *)launch->turn : 0, slot = item->slot + turn;
    lb_kernel_result *r = (lb_kernel_result *)launch->results + slot % launch->n_results;
    const uint64_t number = add_pieces(s, m, team, t);
    if (team == 0) set_statistics(r, t, number, s->n_pieces ? (int64_t)item->numbers : 0);

    span_work w = {elements_of(item), 0, sizes[team], 0, 0, 0};
    w.from.kind = WORDS;
    w.from.bytes = sizes[team];
    w.from.leaves = team && !item->contiguous ? s->blob : s->leaves;
    w.from.n_leaves = team ? n_blob : s->n_leaves;
    w.from.size_word = team && !item->contiguous ? item->dense_bytes : item->bytes;
    w.tiles = (uint32_t)parts_of(sizes[0] > sizes[1] ? sizes[0] : sizes[1], TILE);
    do_spans(m, &w, t);
    if (t == 0) {
        pair h = {0, 0};
        if (w.size) h = digest_end(m, w.size);
        *(team ? &r->blob_lo : &r->logical_lo) = h.low;
        *(team ? &r->blob_hi : &r->logical_hi) = h.high;
    }
    __threadfence_system();
    __syncwarp();
    if (team == 0 && t == 0) {
        *s->count = 0;
        set_visibly(&r->whole, slot + 1);
    }
}

LB_DEVICE const lb_kernel_item *item_of(const lb_kernel_launch *launch, uint32_t unit)
{
    const lb_kernel_item *items = (const lb_kernel_item *)launch->items;
    uint32_t low = 0, high = launch->n_items;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (items[middle].first_unit <= unit)
            low = middle;
        else
            high = middle;
    }
    return items + low;
}

extern "C" __global__ void __launch_bounds__(LB_KERNEL_THREADS) lb_kernel_measure(lb_kernel_launch launch)
{
    __shared__ team_memory memory[2 * LB_KERNEL_WARPS];
    __shared__ uint32_t ended[LB_KERNEL_WARPS];
    const uint32_t warp = threadIdx.x / 32, team = threadIdx.x % 32 / TEAM, t = threadIdx.x % TEAM;
    const uint32_t unit = blockIdx.x * LB_KERNEL_WARPS + warp;
    if (unit >= launch.n_units) return;
    const lb_kernel_item *item = item_of(&launch, unit);
    const scratch_places s = scratch_of(item);
    team_memory *m = memory + 2 * warp + team;
    do_unit(item, &s, unit - item->first_unit, m, team, t);
    __threadfence();
    __syncwarp();
    if (team == 0 && t == 0) ended[warp] = count_one(s.count) + 1;
    __syncwarp();
    if (ended[warp] != item->main + item->statistics + item->blob) return;
    __threadfence();
    finish_item(&launch, item, &s, m, team, t);
}

extern "C" __global__ void lb_kernel_turn(uint64_t *turn, uint64_t by)
{
    *turn += by;
}
