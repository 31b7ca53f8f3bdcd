/* XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): the functions for up to 240 bytes, of 64 bits with a seed and of
 * 128 bits without; and the steps of the long loop, of which threads do a column each. */
#ifndef LB_KERNEL_HASH_CUH
#define LB_KERNEL_HASH_CUH

#include "kernel_machine.cuh"

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
    STRIPE = 64,
    BLOCK = 1024,
    STRIPES = BLOCK / STRIPE,
    KEYS = 24, /* words of the secret */
    LONG = 240 /* bytes: up to here XXH3 is another function */
};

/* The secret of XXH3 as little-endian words. */
LB_TABLE uint64_t secret_words[KEYS] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};
LB_TABLE uint64_t first_sums[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                   PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

struct alignas(16) pair {
    uint64_t low, high;
};

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
LB_SELDOM uint64_t short_hash(const uint8_t *p, uint32_t n, uint64_t seed)
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
LB_SELDOM pair short_hash128(const uint8_t *p, uint32_t n)
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

LB_SELDOM uint64_t merged(const uint64_t sums[8], uint32_t secret, uint64_t seed, uint64_t start)
{
    for (uint32_t i = 0; i < 4; i++)
        start += fold(sums[2 * i] ^ secret_at(secret + 16 * i, seed),
                      sums[2 * i + 1] ^ secret_at(secret + 16 * i + 8, seed));
    return avalanche(start);
}

/* ---- the long loop ----------------------------------------------------------------------------------------------- */

/* Stripes of a block before the last stripe of all; the others are not followed by a scramble. */
LB_DEVICE uint32_t stripes_of(uint64_t block, uint64_t size)
{
    const uint64_t scrambled = (size - 1) / BLOCK;
    return block < scrambled ? (uint32_t)STRIPES : block == scrambled ? (uint32_t)((size - 1) % BLOCK / STRIPE) : 0;
}

/* 16 bytes of one stripe: what they add to two sums. */
LB_DEVICE void add_stripe(pair *sums, uint64_t low, uint64_t high, uint64_t key, uint64_t next_key)
{
    const uint64_t a = low ^ key, b = high ^ next_key;
    sums->low += high + (a & 0xffffffffu) * (a >> 32);
    sums->high += low + (b & 0xffffffffu) * (b >> 32);
}

/* After each block but the last. */
LB_DEVICE uint64_t scrambled(uint64_t sum, uint64_t key)
{
    return (sum ^ sum >> 47 ^ key) * PRIME32_1;
}

/* The last stripe of all, of which these are words t and t ^ 1, for sum t. */
LB_DEVICE uint64_t add_last(uint64_t sum, uint64_t word, uint64_t other, uint32_t t, uint64_t seed)
{
    const uint64_t keyed = word ^ secret_at(121 + 8 * t, seed);
    return sum + other + (keyed & 0xffffffffu) * (keyed >> 32);
}

#endif
