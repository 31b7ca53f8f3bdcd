/* Digests and statistics of values on a device, bit-equal with lb_measure: see digest_kernel.h.
 *
 * A unit is some leaves of the digest, each of 64 blocks of 16 stripes of 64 bytes. Of a block's threads 256 read a leaf:
 * thread 4 b + c has column c of block b, 16 bytes of each of its stripes. What both passes add inside a block they add
 * without regard to other threads, so that each byte is loaded once, into registers:
 *
 *     hash         Inside a block XXH3 only adds. The leaf's blocks are then chained by scrambles.
 *     statistics   The place of an element in its stripe is its lane: a thread has whole lanes, of 16 elements. What lanes,
 *                  columns, blocks and leaves add up to is added in pairs of neighbours.
 *
 * While they read a leaf, one more warp chains the blocks of the leaf before it and adds what its warps have found. The
 * block that ends an item's last unit hashes the leaves and adds what the units add up to.
 *
 * The host compiles this, too, for tests: then __shared__, barriers and what kernel_machine.cuh has are those of
 * tests/capture/device/cuda_on_host.h. */
#include "kernel_numbers.cuh"

enum {
    COLUMNS = STRIPE / QUAD,
    BLOCKS = LB_KERNEL_LEAF / BLOCK,
    READERS = LB_KERNEL_READERS,
    WARP = 32,
    WARPS = READERS / WARP,
    HALF = READERS / 2, /* threads that hash one of the two sequences of leaves */
    ENDS = 256,
    SPAN = LB_KERNEL_MOST_SPAN
};

/* What the threads of a block share. Of what is read there are two: one that is filled, and one that is worked on. */
static __shared__ struct alignas(16) {
    uint64_t blocks[2][BLOCKS][8]; /* what each block adds to the hash's sums */
    uint8_t ends[2][ENDS];         /* of what is hashed: the last bytes, or all where they are few */
    uint64_t warps[2][WARPS][RECORD];
    uint64_t leaves[SPAN][RECORD];
    uint64_t fields[READERS][FIELDS]; /* of units */
    uint64_t keys[KEYS];              /* the secret */
    uint64_t sums[2][8];
    uint32_t last;
} shared;

/* ---- a column ---------------------------------------------------------------------------------------------------- */

/* Bytes of the stream that are a leaf. Of 2^48 bytes all leaves have numbers, which are the seeds. */
typedef struct leaf_bytes {
    uint32_t seed;
    uint64_t from, size;
} leaf_bytes;

LB_DEVICE leaf_bytes leaf_of(uint64_t number)
{
    const uint64_t from = number * LB_KERNEL_LEAF, left = input.bytes - from;
    const leaf_bytes leaf = {(uint32_t)number, from, left < LB_KERNEL_LEAF ? left : (uint64_t)LB_KERNEL_LEAF};
    return leaf;
}

/* Bytes of a leaf's end, from a multiple of 16 on. */
LB_DEVICE uint32_t ends_from(uint64_t size)
{
    return size <= LONG ? 0 : (uint32_t)(size - STRIPE) / QUAD * QUAD;
}

/* Column `number` of a stripe whose secret begins with word `key`. */
LB_DEVICE void hash_quad(pair *sums, const quad *x, uint32_t key, uint32_t seed)
{
    const bool odd = key % 2;
    add_stripe(sums, x->word[0] | (uint64_t)x->word[1] << 32, x->word[2] | (uint64_t)x->word[3] << 32,
               odd ? shared.keys[key] - seed : shared.keys[key] + seed,
               odd ? shared.keys[key + 1] + seed : shared.keys[key + 1] - seed);
}

struct take_nothing {
    LB_DEVICE void begin(take_nothing *) {}
    LB_DEVICE void take(take_nothing *, const quad *) {}
    LB_DEVICE bool end(take_nothing *, column *) { return true; }
};

/* What is known of a column that is whole. */
typedef struct whole_column {
    const quad *bytes;
    uint32_t step;   /* from stripe to stripe */
    uint32_t number; /* of the column */
    uint32_t seed, buffer;
    bool last; /* its last stripe is the leaf's, which is hashed otherwise */
} whole_column;

enum { AT_ONCE = 2 }; /* loads on their way, beside as many that are worked on */

LB_DEVICE void load_quads(quad x[AT_ONCE], const quad *from, uint32_t step)
{
#pragma unroll
    for (uint32_t k = 0; k < AT_ONCE; k++) x[k] = from[k * step];
}

/* Both at once; false: a number is not finite, and only the hash counts. */
template <class T>
LB_DEVICE bool take_both(pair *sums, column *c, const whole_column *w)
{
    T all;
    T::begin(&all);
    pair own = {0, 0};
    const quad *from = w->bytes;
    quad next[AT_ONCE];
    load_quads(next, from, w->step);
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < STRIPES; stripe += AT_ONCE) {
        quad x[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) x[k] = next[k];
        from += AT_ONCE * w->step;
        if (stripe + AT_ONCE < STRIPES) load_quads(next, from, w->step);
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            if (k + 1 < AT_ONCE || stripe + AT_ONCE < STRIPES || !w->last)
                hash_quad(&own, &x[k], 2 * w->number + stripe + k, w->seed);
            else
                ((quad *)shared.ends[w->buffer])[w->number] = x[k];
            T::take(&all, &x[k]);
        }
    }
    *sums = own;
    return T::end(&all, c);
}

/* Of a column that is not whole. */
LB_SELDOM void take_hash_of_some(pair *sums, uint64_t at, uint64_t end, uint32_t stripes, uint32_t number,
                                 uint32_t seed)
{
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < stripes; stripe++) {
        quad x;
        fetch_some(&x, at + stripe * STRIPE, end);
        hash_quad(sums, &x, 2 * number + stripe, seed);
    }
}

/* Numbers of any type, as many as there are, whatever they are. */
LB_SELDOM void take_numbers(column *c, uint64_t from, uint64_t end)
{
    const lb_kernel_item *item = &input.item;
    const uint32_t lanes = QUAD * 8 / item->part_bits;
    double sum[2 * QUAD], squares[2 * QUAD];
    for (uint32_t j = 0; j < lanes; j++) sum[j] = squares[j] = 0;
    *c = column_begin();
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        const uint64_t at = from + stripe * STRIPE, first = at * 8 / item->part_bits;
        if (at >= end) break;
        quad x;
        fetch_some(&x, at, end);
        const uint64_t left = item->numbers - first;
        const uint32_t n = left < lanes ? (uint32_t)left : lanes;
        for (uint32_t j = 0; j < n; j++) add_number(c, &sum[j], &squares[j], number_at(item, (const uint8_t *)&x, j));
    }
    for (uint32_t n = lanes; n > 1; n /= 2) {
        for (uint32_t i = 0; i < n / 2; i++) {
            sum[i] = __dadd_rn(sum[2 * i], sum[2 * i + 1]);
            squares[i] = __dadd_rn(squares[2 * i], squares[2 * i + 1]);
        }
    }
    c->sum = sum[0];
    c->squares = squares[0];
}

/* Both, with a look at each number where one is not finite. */
template <class T, class R>
LB_DEVICE bool take_type(pair *sums, column *c, const whole_column *w)
{
    return take_both<T>(sums, c, w) || take_both<take_classes<R>>(sums, c, w);
}

/* A column that is whole. False: its numbers are not taken yet. */
LB_DEVICE bool take_whole(pair *sums, column *c, const whole_column *w, bool numbers)
{
    switch (numbers ? input.item.element * 128 + input.item.part_bits : 0) {
    case LB_KERNEL_F64 * 128 + 64: return take_type<take_f64, number_f64>(sums, c, w);
    case LB_KERNEL_F32 * 128 + 32: return take_type<take_f32, number_f32>(sums, c, w);
    case LB_KERNEL_BF16 * 128 + 16: return take_type<take_halves<half_bf16>, number_half<half_bf16>>(sums, c, w);
    case LB_KERNEL_F16 * 128 + 16: return take_type<take_halves<half_f16>, number_half<half_f16>>(sums, c, w);
    case LB_KERNEL_SMALL * 128 + 8: return take_both<take_small>(sums, c, w);
    case LB_KERNEL_UNSIGNED * 128 + 8:
    case LB_KERNEL_SIGNED * 128 + 8:
    case LB_KERNEL_BOOL * 128 + 8: return take_both<take_bytes>(sums, c, w);
    default: take_both<take_nothing>(sums, c, w); return !numbers;
    }
}

/* ---- a leaf, by those that read ---------------------------------------------------------------------------------- */

/* A column that is whole. */
LB_DEVICE void read_whole(pair *sums, column *c, uint32_t buffer, const leaf_bytes *leaf, uint64_t at, bool numbers)
{
    const uint32_t block = threadIdx.x / COLUMNS;
    quad staged[STRIPES];
    whole_column w = {(const quad *)(input.address + at), STRIPE / QUAD, threadIdx.x % COLUMNS, leaf->seed, buffer,
                      (block + 1) * BLOCK == leaf->size};
    if (!is_direct()) {
        fetch_column(staged, at);
        w.bytes = staged;
        w.step = 1;
    }
    if (take_whole(sums, c, &w, numbers)) return;
    column slowly;
    take_numbers(&slowly, at, leaf->from + leaf->size);
    *c = slowly;
}

LB_DEVICE void read_some(pair *sums, column *c, const leaf_bytes *leaf, uint64_t at, bool numbers)
{
    const uint64_t end = leaf->from + leaf->size;
    if (at >= end) return;
    if (leaf->size > LONG) {
        pair some = {0, 0};
        take_hash_of_some(&some, at, end, stripes_of(threadIdx.x / COLUMNS, leaf->size), threadIdx.x % COLUMNS,
                          leaf->seed);
        *sums = some;
    }
    if (!numbers) return;
    column slowly;
    take_numbers(&slowly, at, end);
    *c = slowly;
}

/* What the leaf ends with, of one that does not end with a whole column. */
LB_SELDOM void put_end(uint32_t buffer, uint64_t at, uint64_t end, uint32_t i)
{
    quad x;
    fetch_some(&x, at + i * QUAD, end);
    ((quad *)shared.ends[buffer])[i] = x;
}

LB_DEVICE void read_leaf(uint32_t buffer, uint64_t number, bool numbers)
{
    const leaf_bytes leaf = leaf_of(number);
    const uint32_t block = threadIdx.x / COLUMNS, column_number = threadIdx.x % COLUMNS;
    const uint64_t at = leaf.from + block * BLOCK + column_number * QUAD;
    pair sums = {0, 0};
    column c = column_begin();
    if ((block + 1) * BLOCK <= leaf.size)
        read_whole(&sums, &c, buffer, &leaf, at, numbers);
    else
        read_some(&sums, &c, &leaf, at, numbers);
    uint64_t *to = shared.blocks[buffer][block] + 2 * column_number;
    to[0] = sums.low;
    to[1] = sums.high;
    if (leaf.size % BLOCK && threadIdx.x < ENDS / QUAD)
        put_end(buffer, leaf.from + ends_from(leaf.size), leaf.from + leaf.size, threadIdx.x);
    __syncwarp();
    if (!numbers) return;
    add_columns(&c);
    if (threadIdx.x % WARP == 0) record_of(shared.warps[buffer][threadIdx.x / WARP], &c);
}

/* ---- records in pairs -------------------------------------------------------------------------------------------- */

template <bool ALL>
LB_DEVICE void wait()
{
    if (ALL)
        __syncthreads();
    else
        __syncwarp();
}

/* `n` records of so many fields, in pairs, until there is one, in their place. By a warp, or by ALL threads of the
 * block. */
template <bool ALL, uint32_t FIELDS_OF>
LB_DEVICE void add_in_pairs(uint64_t *x, uint32_t n)
{
    const uint32_t each = ALL ? (uint32_t)LB_KERNEL_THREADS : (uint32_t)WARP, t = threadIdx.x % each;
#pragma unroll 1
    for (; n > 1; n = (n + 1) / 2) {
        const uint32_t all = (n + 1) / 2 * FIELDS_OF;
#pragma unroll 1
        for (uint32_t from = 0; from < all; from += each) {
            const uint32_t i = from + t, pair_number = i / FIELDS_OF, field = i % FIELDS_OF;
            const uint64_t *two = x + 2 * pair_number * FIELDS_OF + field;
            uint64_t sum = 0;
            if (i < all) sum = 2 * pair_number + 1 < n ? field_add(field, two[0], two[FIELDS_OF]) : two[0];
            wait<ALL>();
            if (i < all) x[i] = sum;
            wait<ALL>();
        }
    }
}

/* ---- a leaf, by the warp that ends it ---------------------------------------------------------------------------- */

/* Eight bytes of the secret with a seed, from any byte on. */
LB_DEVICE uint64_t key_at(uint32_t byte, uint32_t seed)
{
    const uint32_t word = byte / 8, shift = 8 * (byte % 8);
    const bool odd = word % 2;
    const uint64_t low = odd ? shared.keys[word] - seed : shared.keys[word] + seed;
    if (shift == 0) return low;
    return low >> shift | (odd ? shared.keys[word + 1] + seed : shared.keys[word + 1] - seed) << (64 - shift);
}

LB_DEVICE uint64_t word_of_end(const uint8_t *p)
{
    return (uint64_t)p % 8 ? word64(p) : *(const uint64_t *)p;
}

/* Thread t < 8 of the warp has sum t. */
LB_DEVICE void chain_leaf(uint32_t buffer, uint64_t number, uint64_t *to, uint32_t t)
{
    const leaf_bytes leaf = leaf_of(number);
    if (leaf.size <= LONG) {
        if (t == 0) *to = short_hash(shared.ends[buffer], (uint32_t)leaf.size, leaf.seed);
        return;
    }
    const uint32_t blocks = (uint32_t)((leaf.size - 1) / BLOCK);
    uint64_t sum = first_sums[t % 8];
    if (t < 8) {
        const uint8_t *end = shared.ends[buffer] + (leaf.size - STRIPE - ends_from(leaf.size));
        const uint64_t key = key_at(128 + 8 * t, leaf.seed), last_key = key_at(121 + 8 * t, leaf.seed),
                       word = word_of_end(end + 8 * t) ^ last_key, other = word_of_end(end + 8 * (t ^ 1));
#pragma unroll 8
        for (uint32_t b = 0; b < blocks; b++) sum = scrambled(sum + shared.blocks[buffer][b][t], key);
        sum += shared.blocks[buffer][blocks][t] + other + (word & 0xffffffffu) * (word >> 32);
        sum ^= key_at(11 + 8 * t, leaf.seed);
    }
    /* What becomes of pairs of sums, and of all. */
    const uint64_t folded = fold(sum, partners(sum, 1));
    uint64_t all = folded + partners(folded, 2);
    all += partners(all, 4);
    if (t == 0) *to = avalanche(leaf.size * PRIME64_1 + all);
}

/* Of the unit's leaf `leaf`. */
LB_DEVICE void add_warps(uint32_t buffer, uint32_t leaf, uint32_t t)
{
    add_in_pairs<false, RECORD>(shared.warps[buffer][0], WARPS);
    if (t < RECORD) shared.leaves[leaf][t] = shared.warps[buffer][0][t];
    __syncwarp();
}

/* ---- a unit ------------------------------------------------------------------------------------------------------ */

LB_DEVICE uint64_t leaves_of(uint64_t bytes)
{
    return bytes / LB_KERNEL_LEAF + (bytes % LB_KERNEL_LEAF != 0);
}

typedef struct scratch_places {
    uint64_t *leaves, *blob, *records;
    uint64_t n_leaves, n_blob, n_records;
} scratch_places;

LB_DEVICE scratch_places scratch_of(const lb_kernel_item *item)
{
    scratch_places s;
    s.n_leaves = leaves_of(item->bytes);
    s.n_blob = item->what & LB_KERNEL_BLOB ? leaves_of(item->dense_bytes) : 0;
    s.n_records = item->what & LB_KERNEL_STATISTICS && s.n_leaves ? item->main : 0;
    s.leaves = (uint64_t *)item->scratch;
    s.blob = s.leaves + s.n_leaves;
    s.records = s.blob + s.n_blob;
    return s;
}

/* Leaves from `first` up to `last`. `record`: NULL where no statistics are wanted. All threads of the block. */
LB_DEVICE void do_leaves(uint64_t *leaves, uint64_t first, uint64_t last, uint64_t *record)
{
    const uint32_t warp = threadIdx.x / WARP, t = threadIdx.x % WARP;
#pragma unroll 1
    for (uint64_t leaf = first; leaf <= last; leaf++) {
        const uint32_t buffer = leaf % 2;
        if (warp < WARPS && leaf < last) read_leaf(buffer, leaf, record != 0);
        if (warp == WARPS && leaf > first) {
            chain_leaf(buffer ^ 1, leaf - 1, leaves + leaf - 1, t);
            if (record) add_warps(buffer ^ 1, (uint32_t)(leaf - 1 - first), t);
        }
        if (leaf < last) __syncthreads();
    }
    if (warp < WARPS || !record) return;
    add_in_pairs<false, RECORD>(shared.leaves[0], (uint32_t)(last - first));
    if (t < RECORD) record[t] = shared.leaves[0][t];
}

LB_DEVICE void do_unit(const scratch_places *places, uint32_t unit)
{
    const lb_kernel_item *item = &input.item;
    const bool main = unit < item->main;
    const uint64_t first = main ? (uint64_t)unit * item->main_span : (uint64_t)(unit - item->main) * item->blob_span;
    const uint64_t all = main ? places->n_leaves : places->n_blob,
                   end = first + (main ? item->main_span : item->blob_span), last = end < all ? end : all;
    if (first < last)
        do_leaves(main ? places->leaves : places->blob, first, last,
                  main && places->n_records ? places->records + unit * RECORD : 0);
}

/* ---- what units add up to ---------------------------------------------------------------------------------------- */

/* The fields of record `i`, or of what comes of several. */
LB_DEVICE void put_fields(uint64_t to[FIELDS], const uint64_t *from, bool packed)
{
    uint64_t x[FIELDS];
#pragma unroll
    for (uint32_t f = 0; f < FIELDS; f++) x[f] = packed && f >= RECORD ? 0 : get_written(from + f);
#pragma unroll
    for (uint32_t f = 0; f < FIELDS; f++) to[f] = packed ? unpacked(x, f) : x[f];
}

/* Records of units, fields of READERS units, and so on: the last ones are of all. Behind `n` of them lies what they add up
 * to. All threads of the block. */
LB_DEVICE const uint64_t *add_records(uint64_t *from, uint64_t n)
{
    for (bool packed = true;; packed = false) {
        const uint32_t width = packed ? (uint32_t)RECORD : (uint32_t)FIELDS;
        uint64_t *const results = from + n * width;
        const bool only = n <= READERS;
#pragma unroll 1
        for (uint64_t at = 0; at < n; at += READERS) {
            const uint32_t some = n - at < READERS ? (uint32_t)(n - at) : (uint32_t)READERS;
            if (threadIdx.x < some) put_fields(shared.fields[threadIdx.x], from + (at + threadIdx.x) * width, packed);
            __syncthreads();
            add_in_pairs<true, FIELDS>(shared.fields[0], some);
            if (only) return shared.fields[0];
            if (threadIdx.x < FIELDS) results[at / READERS * FIELDS + threadIdx.x] = shared.fields[0][threadIdx.x];
            __threadfence();
            __syncthreads();
        }
        from = results;
        n = n / READERS + (n % READERS != 0);
    }
}

/* A sequence of words, which is hashed: how many bytes there are, their leaves, and perhaps what the value is. */
typedef struct sequence {
    const uint64_t *leaves;
    uint64_t n_leaves, bytes, n;
} sequence;

LB_DEVICE uint64_t word_of(const sequence *s, uint64_t i)
{
    if (i == 0) return s->bytes;
    if (i <= s->n_leaves) return get_written(s->leaves + i - 1);
    i -= s->n_leaves + 1;
    return i == 0 ? input.item.dtype : i == 1 ? input.item.ndim : input.item.shape[i - 2];
}

/* What a column of block `row` adds. */
LB_DEVICE pair hash_words(const sequence *s, uint64_t row, uint32_t number)
{
    const uint32_t stripes = stripes_of(row, 8 * s->n);
    const uint64_t first = row * (BLOCK / 8) + number * (QUAD / 8);
    pair sums = {0, 0};
#pragma unroll 4
    for (uint32_t k = 0; k < stripes; k++) {
        const uint64_t i = first + k * (STRIPE / 8);
        add_stripe(&sums, word_of(s, i), word_of(s, i + 1), shared.keys[2 * number + k],
                   shared.keys[2 * number + k + 1]);
    }
    return sums;
}

LB_DEVICE pair digest_end(const uint64_t sums[8], const uint8_t *words, uint64_t bytes)
{
    pair h;
    if (bytes <= LONG) {
        h = short_hash128(words, (uint32_t)bytes);
    } else {
        h.low = merged(sums, 11, 0, bytes * PRIME64_1);
        h.high = merged(sums, 117, 0, ~(bytes * PRIME64_2));
    }
    if (h.low == 0 && h.high == 0) h.low = 1; /* (0, 0) is taken */
    return h;
}

/* All threads of the block: each half of those that read has one of the sequences, of at most `rounds` times HALF / COLUMNS
 * blocks; the others come along. Thread 0 of a half returns its digest. */
LB_DEVICE pair hash_sequences(const sequence *s, uint64_t rounds)
{
    enum { ROWS = HALF / COLUMNS };
    const uint32_t half = threadIdx.x / HALF, t = threadIdx.x % HALF;
    const uint64_t bytes = 8 * s->n, blocks = bytes ? (bytes - 1) / BLOCK : 0;
    const bool reads = threadIdx.x < READERS, is_long = reads && bytes > LONG, chains = is_long && t < 8;
    uint64_t sum = first_sums[t % 8], word = 0, other = 0;
    if (chains) {
        word = word_of(s, s->n - 8 + t);
        other = word_of(s, s->n - 8 + (t ^ 1));
    }
    if (reads && bytes <= LONG && t < s->n) *(uint64_t *)(shared.ends[half] + 8 * t) = word_of(s, t);
#pragma unroll 1
    for (uint64_t round = 0; round < rounds; round++) {
        const uint64_t row = round * ROWS + t / COLUMNS;
        if (is_long && row <= blocks) {
            const pair sums = hash_words(s, row, t % COLUMNS);
            uint64_t *to = shared.blocks[half][t / COLUMNS] + 2 * (t % COLUMNS);
            to[0] = sums.low;
            to[1] = sums.high;
        }
        __syncthreads();
        if (chains) {
            for (uint64_t b = round * ROWS; b <= blocks && b < (round + 1) * ROWS; b++) {
                sum += shared.blocks[half][b % ROWS][t];
                if (b < blocks) sum = scrambled(sum, shared.keys[16 + t]);
            }
        }
        if (round + 1 < rounds) __syncthreads();
    }
    if (chains) shared.sums[half][t] = add_last(sum, word, other, t, 0);
    __syncwarp();
    pair h = {0, 0};
    if (reads && t == 0 && bytes) h = digest_end(shared.sums[half], shared.ends[half], bytes);
    return h;
}

LB_DEVICE void set_statistics(lb_kernel_result *r, uint32_t field, uint64_t value)
{
    switch (field) {
    case SUM: r->sum = bits_double(value); break;
    case SQUARES: r->sum_squares = bits_double(value); break;
    case LOW: r->min = __dadd_rn(bits_double(value), 0.0); break; /* a bound that is zero is +0 */
    case HIGH: r->max = __dadd_rn(bits_double(value), 0.0); break;
    case ZERO: r->zero = (int64_t)value; break;
    case NANS: r->nan = (int64_t)value; break;
    case POS_INFS: r->pos_inf = (int64_t)value; break;
    case NEG_INFS: r->neg_inf = (int64_t)value; break;
    default: break;
    }
}

/* The leaves of the elements, for the first half of the threads, and those of the blob, for the second. */
LB_DEVICE sequence sequence_of(const scratch_places *places, bool second)
{
    const lb_kernel_item *item = &input.item;
    const bool apart = second && !item->contiguous;
    sequence s;
    s.leaves = apart ? places->blob : places->leaves;
    s.n_leaves = apart ? places->n_blob : places->n_leaves;
    s.bytes = apart ? item->dense_bytes : item->bytes;
    s.n = !second                                           ? 1 + s.n_leaves + 2 + item->ndim
          : item->contiguous || item->what & LB_KERNEL_BLOB ? 1 + s.n_leaves
                                                            : 0;
    return s;
}

LB_DEVICE uint64_t rounds_of(const scratch_places *places)
{
    const uint64_t a = sequence_of(places, false).n, b = sequence_of(places, true).n;
    return (8 * (a > b ? a : b) - 1) / BLOCK / (HALF / COLUMNS) + 1;
}

/* All units of the item have ended. */
LB_DEVICE void finish_item(lb_kernel_result *r, const scratch_places *places, uint64_t ticket)
{
    const uint64_t *all = places->n_records ? add_records(places->records, places->n_records) : 0;
    if (threadIdx.x < FIELDS) set_statistics(r, threadIdx.x, all ? all[threadIdx.x] : field_begin(threadIdx.x));
    const bool second = threadIdx.x >= HALF;
    const sequence s = sequence_of(places, second);
    const pair h = hash_sequences(&s, rounds_of(places));
    if (threadIdx.x % HALF == 0 && threadIdx.x < READERS) {
        *(second ? &r->blob_lo : &r->logical_lo) = h.low;
        *(second ? &r->blob_hi : &r->logical_hi) = h.high;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        r->elements = places->n_records ? (int64_t)input.item.numbers : 0;
        r->ended = 0;
        __threadfence();
        set_visibly(&r->whole, ticket);
    }
}

/* ---- the grid ---------------------------------------------------------------------------------------------------- */

/* The word where the item of the unit begins. */
LB_DEVICE uint32_t item_of(const lb_kernel_launch &launch, uint32_t unit)
{
    uint32_t low = 0, high = launch.n_items;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if ((uint32_t)launch.words[middle] <= unit)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)(launch.words[low] >> 32);
}

/* All at once, so that no thread waits for one field after the other. */
LB_DEVICE void load_item(const lb_kernel_launch &launch, uint32_t at)
{
    enum { FIXED = LB_KERNEL_FIXED_WORDS };
    const uint64_t counts = launch.words[at + FIXED - 1];
    const uint32_t ndim = (uint32_t)counts, n_sizes = (uint32_t)(counts >> 32), i = threadIdx.x, sizes = FIXED + ndim,
                   strides = sizes + n_sizes;
    if (i < strides + n_sizes) {
        const uint32_t to = i < sizes     ? i
                            : i < strides ? FIXED + LB_KERNEL_DIMS + i - sizes
                                          : FIXED + 2 * LB_KERNEL_DIMS + i - strides;
        ((uint64_t *)&input.item)[to] = launch.words[at + i];
    }
    if (threadIdx.x >= READERS && threadIdx.x < READERS + KEYS)
        shared.keys[threadIdx.x - READERS] = secret_words[threadIdx.x - READERS];
    __syncthreads();
}

/* What unit `unit` of the item reads. */
LB_DEVICE void set_stream(uint32_t unit)
{
    const bool main = unit < input.item.main;
    if (threadIdx.x == 0) {
        input.address = main ? input.item.data : input.item.dense;
        input.bytes = main ? input.item.bytes : input.item.dense_bytes;
        input.granule = main ? input.item.granule : input.item.dense_granule;
        input.strided = main && !input.item.contiguous;
        input.narrow = input.item.part_bits < 32 || input.item.element == LB_KERNEL_F32;
    }
    if (input.item.element == LB_KERNEL_SMALL && threadIdx.x < 256)
        input.values[threadIdx.x] = small_value(threadIdx.x, &input.item.small);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(LB_KERNEL_THREADS, LB_KERNEL_RESIDENT)
    lb_kernel_measure(LB_PARAMETER(lb_kernel_launch) launch)
{
    load_item(launch, item_of(launch, blockIdx.x));
    const uint32_t unit = blockIdx.x - input.item.first_unit, units = input.item.main + input.item.blob;
    set_stream(unit);
    /* No other run with this scratch has the number. */
    const uint64_t ticket = 1 + input.item.slot + (launch.turn ? get_visible((const uint64_t *)launch.turn) : 0);
    const scratch_places places = scratch_of(&input.item);
    do_unit(&places, unit);
    if (units > 1) __threadfence();
    __syncthreads();
    lb_kernel_result *r = (lb_kernel_result *)launch.results + (ticket - 1) % launch.n_results;
    if (units > 1) {
        if (threadIdx.x == 0) shared.last = count_one(&r->ended) + 1 == units;
        __syncthreads();
        if (!shared.last) return;
        __threadfence();
    }
    finish_item(r, &places, ticket);
}

extern "C" __global__ void lb_kernel_turn(uint64_t *turn, uint64_t by)
{
    *turn += by;
}
