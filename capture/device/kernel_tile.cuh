/* A tile: 4 KiB of what a team reads, in shared memory, and its hash. */
#ifndef LB_KERNEL_TILE_CUH
#define LB_KERNEL_TILE_CUH

#include "kernel_hash.cuh"

enum {
    TEAM = 16,
    BLOCKS = 4,             /* of a tile */
    PITCH = BLOCK + STRIPE, /* from block to block, so that threads of two blocks use other banks */
    TILE = BLOCKS * BLOCK
};

struct alignas(16) team_memory {
    uint8_t tile[2][BLOCKS * PITCH];
    uint64_t blocks[BLOCKS][8]; /* what each block of the tile adds to the sums */
    uint64_t sums[8];           /* at the end of a leaf */
};

/* Where in a tile's memory a byte of it lies. */
LB_DEVICE uint32_t place(uint32_t byte)
{
    return byte + byte / BLOCK * STRIPE;
}

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

/* 16 bytes of one stripe: what they add to two sums. */
LB_DEVICE void add_stripe(pair *sums, const uint8_t *p, uint64_t key, uint64_t next_key)
{
    const pair data = *(const pair *)p;
    const uint64_t a = data.low ^ key, b = data.high ^ next_key;
    sums->low += data.high + (a & 0xffffffffu) * (a >> 32);
    sums->high += data.low + (b & 0xffffffffu) * (b >> 32);
}

LB_DEVICE void hash_blocks(team_memory *m, const uint8_t *tile, const leaf_place *leaf, uint32_t t)
{
    const uint32_t block = t / 4, column = t % 4, n = stripes_of(leaf->at / BLOCK + block, leaf->size);
    const uint8_t *p = tile + block * PITCH + column * 16;
    pair sums = {0, 0};
    if (n == BLOCK / STRIPE) {
        uint64_t key = seeded(2 * column, leaf->seed);
#pragma unroll
        for (uint32_t s = 0; s < BLOCK / STRIPE; s++) {
            const uint64_t next = seeded(2 * column + s + 1, leaf->seed);
            add_stripe(&sums, p + STRIPE * s, key, next);
            key = next;
        }
    } else {
#pragma unroll 1
        for (uint32_t s = 0; s < n; s++)
            add_stripe(&sums, p + STRIPE * s, seeded(2 * column + s, leaf->seed),
                       seeded(2 * column + s + 1, leaf->seed));
    }
    m->blocks[block][2 * column] = sums.low;
    m->blocks[block][2 * column + 1] = sums.high;
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

#endif
