/* Digests and statistics of values on a device, bit-equal with lb_measure: see digest_kernel.h.
 *
 * A unit is a leaf of the digest, 64 blocks of 16 stripes of 64 bytes, and is done by a block of 256 threads: thread
 * 4 b + c has column c of block b, 16 bytes of each of its stripes. What both passes add inside a block they add without
 * regard to other threads, so that each byte is loaded once, into registers:
 *
 *     hash         Inside a block XXH3 only adds. 8 threads then chain the leaf's blocks by scrambles.
 *     statistics   The place of an element in its stripe is its lane: a thread has whole lanes, of 16 elements. What lanes,
 *                  columns, blocks and leaves add up to is added in pairs of neighbours.
 *     the whole    The block that ends an item's last unit hashes the leaves and adds what they add up to.
 *
 * The host compiles this, too, for tests: then __shared__, barriers and what kernel_machine.cuh has are those of
 * tests/capture/device/cuda_on_host.h. */
#include "kernel_numbers.cuh"

enum {
    COLUMNS = STRIPE / QUAD,
    BLOCKS = LB_KERNEL_LEAF / BLOCK,
    THREADS = LB_KERNEL_THREADS,
    WARP = 32,
    WARPS = THREADS / WARP,
    HALF = THREADS / 2, /* the threads that hash one of the two sequences of leaves */
    ENDS = 256
};

/* What the threads of a block share. */
static __shared__ struct alignas(16) {
    uint64_t blocks[BLOCKS][8]; /* what each block adds to the hash's sums */
    uint64_t keys[KEYS];        /* the secret with the leaf's seed */
    uint64_t sums[2][8];
    uint64_t fields[RECORD][THREADS + THREADS / 8]; /* of a record for each thread; see slot */
    uint64_t parts[RECORD][WARP + WARP / 8];
    uint8_t ends[2][ENDS]; /* of what is hashed: the last bytes, or all where they are few */
    uint32_t last;
} shared;

/* ---- a leaf ------------------------------------------------------------------------------------------------------ */

/* Bytes of the stream that are a leaf. */
typedef struct leaf_bytes {
    uint64_t seed, from, size;
} leaf_bytes;

LB_DEVICE leaf_bytes leaf_of(const source *s, uint64_t number)
{
    const uint64_t from = number * LB_KERNEL_LEAF, left = s->bytes - from;
    const leaf_bytes leaf = {number, from, left < LB_KERNEL_LEAF ? left : LB_KERNEL_LEAF};
    return leaf;
}

/* What a thread has to do with a leaf. */
typedef struct column_work {
    const source *s;
    uint32_t number;  /* of the column */
    uint64_t at, end; /* bytes of the stream: the column's first, the leaf's last */
    uint32_t hashed;  /* stripes that go into the hash here; of a whole column all, or all but the last */
    bool whole;       /* no byte of the column is missing */
    /* Of a column that is whole: where its bytes lie, and from stripe to stripe. */
    const quad *bytes;
    uint32_t step;
} column_work;

enum { AT_ONCE = 4 }; /* loads on their way */

LB_DEVICE void hash_quad(pair *sums, const quad *x, uint32_t key)
{
    add_stripe(sums, x->word[0] | (uint64_t)x->word[1] << 32, x->word[2] | (uint64_t)x->word[3] << 32, shared.keys[key],
               shared.keys[key + 1]);
}

struct take_nothing {
    LB_DEVICE void begin(take_nothing *, const lb_kernel_item *) {}
    LB_DEVICE void take(take_nothing *, const quad *) {}
    LB_DEVICE bool end(take_nothing *, column *) { return true; }
};

/* Of a whole column both at once; false: a number is not finite, and only the hash counts. A function of its own for each
 * type, whose registers are not the others'. */
template <class T>
LB_SELDOM bool take_both(pair *sums, column *c, const column_work *work)
{
    const column_work w = *work;
    T all;
    T::begin(&all, w.s->item);
    pair own = {0, 0};
    const quad *from = w.bytes;
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < STRIPES; stripe += AT_ONCE) {
        quad x[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++, from += w.step) x[k] = *from;
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            if (k + 1 < AT_ONCE || stripe + AT_ONCE < STRIPES || w.hashed == STRIPES)
                hash_quad(&own, &x[k], 2 * w.number + stripe + k);
            T::take(&all, &x[k]);
        }
    }
    *sums = own;
    return T::end(&all, c);
}

/* Of a column that is not whole. */
LB_SELDOM void take_hash_of_some(pair *sums, const column_work *w)
{
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < w->hashed; stripe++) {
        const quad x = fetch_one(w->s, w->at + stripe * STRIPE, w->end);
        hash_quad(sums, &x, 2 * w->number + stripe);
    }
}

/* Numbers of any type, as many as there are, whatever they are. */
LB_SELDOM void take_numbers(column *c, const column_work *w)
{
    const lb_kernel_item *item = w->s->item;
    const uint32_t lanes = QUAD * 8 / item->part_bits;
    double sum[2 * QUAD], squares[2 * QUAD];
    for (uint32_t j = 0; j < lanes; j++) sum[j] = squares[j] = 0;
    *c = column_begin();
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        const uint64_t at = w->at + stripe * STRIPE, first = at * 8 / item->part_bits;
        if (at >= w->end) break;
        const quad x = fetch_one(w->s, at, w->end);
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

/* The types that are read fast; false: the numbers are not taken yet. `hashed`: the hash is. */
LB_DEVICE bool take_fast(pair *sums, column *c, const column_work *w, bool *hashed)
{
    const lb_kernel_item *item = w->s->item;
    *hashed = true;
    switch (item->element * 128 + item->part_bits) {
    case LB_KERNEL_F64 * 128 + 64: return take_both<take_f64>(sums, c, w);
    case LB_KERNEL_F32 * 128 + 32: return take_both<take_f32>(sums, c, w);
    case LB_KERNEL_BF16 * 128 + 16: return take_both<take_halves<half_bf16>>(sums, c, w);
    case LB_KERNEL_F16 * 128 + 16: return take_both<take_halves<half_f16>>(sums, c, w);
    case LB_KERNEL_SMALL * 128 + 8: return take_both<take_small>(sums, c, w);
    case LB_KERNEL_UNSIGNED * 128 + 8:
    case LB_KERNEL_SIGNED * 128 + 8:
    case LB_KERNEL_BOOL * 128 + 8: return take_both<take_bytes>(sums, c, w);
    default: *hashed = false; return false;
    }
}

LB_DEVICE void take_column(pair *sums, column *c, column_work *w, bool numbers)
{
    quad staged[STRIPES];
    bool hashed = false;
    if (w->whole && is_direct(w->s)) {
        w->bytes = (const quad *)(w->s->address + w->at);
        w->step = STRIPE / QUAD;
    } else if (w->whole) {
        fetch_column(staged, w->s, w->at);
        w->bytes = staged;
        w->step = 1;
    }
    if (w->whole && numbers && take_fast(sums, c, w, &hashed)) return;
    if (!hashed && w->whole)
        take_both<take_nothing>(sums, c, w);
    else if (!hashed)
        take_hash_of_some(sums, w);
    if (numbers) take_numbers(c, w);
}

/* Bytes of a leaf's end, from a multiple of 16 on. */
LB_DEVICE uint32_t ends_from(const leaf_bytes *leaf)
{
    return leaf->size <= LONG ? 0 : (uint32_t)(leaf->size - STRIPE) / QUAD * QUAD;
}

/* Thread t < 8 of the first warp has sum t; the others of it come along. */
LB_DEVICE void chain_leaf(const leaf_bytes *leaf, uint64_t *to, uint32_t t)
{
    const uint32_t blocks = leaf->size ? (uint32_t)((leaf->size - 1) / BLOCK) : 0;
    if (leaf->size > LONG && t < 8) {
        const uint8_t *end = shared.ends[0] + (leaf->size - STRIPE - ends_from(leaf));
        const uint64_t key = shared.keys[16 + t];
        uint64_t sum = first_sums[t];
#pragma unroll 8
        for (uint32_t b = 0; b < blocks; b++) sum = scrambled(sum + shared.blocks[b][t], key);
        sum += shared.blocks[blocks][t];
        shared.sums[0][t] = add_last(sum, word64(end + 8 * t), word64(end + 8 * (t ^ 1)), t, leaf->seed);
    }
    __syncwarp();
    if (t == 0)
        *to = leaf->size <= LONG ? short_hash(shared.ends[0], (uint32_t)leaf->size, leaf->seed)
                                 : merged(shared.sums[0], 11, leaf->seed, leaf->size * PRIME64_1);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Where a thread's field lies: those of eight threads are read by one, and those that read lie in other banks. */
LB_DEVICE uint32_t slot(uint32_t thread)
{
    return thread + thread / 8;
}

/* What THREADS records add up to in one field, by a warp. */
LB_DEVICE void add_field(uint64_t *to, uint32_t field, uint32_t t)
{
    uint64_t x[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) x[i] = shared.fields[field][slot(8 * t + i)];
    shared.parts[field][slot(t)] = field_paired<8>(field, x);
    __syncwarp();
    if (t < 4) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) x[i] = shared.parts[field][slot(8 * t + i)];
        field_paired<8>(field, x);
    }
    __syncwarp();
    if (t < 4) shared.parts[field][t] = x[0];
    __syncwarp();
    if (t > 0) return;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) x[i] = shared.parts[field][i];
    *to = field_paired<4>(field, x);
}

/* In every field, by the warps but the first. */
LB_DEVICE void add_fields(uint64_t *record)
{
    for (uint32_t field = threadIdx.x / WARP - 1; field < RECORD; field += WARPS - 1)
        add_field(record + field, field, threadIdx.x % WARP);
}

/* ---- a leaf, by all threads -------------------------------------------------------------------------------------- */

/* All threads of the block. `record`: NULL where no statistics are wanted. */
LB_DEVICE void do_leaf(const source *s, uint64_t number, uint64_t *to, uint64_t *record)
{
    const leaf_bytes leaf = leaf_of(s, number);
    const uint32_t t = threadIdx.x, block = t / COLUMNS, column_number = t % COLUMNS;
    const uint64_t end = leaf.from + leaf.size;
    if (t < KEYS) shared.keys[t] = seeded(t, leaf.seed);
    __syncthreads();
    column_work w;
    w.s = s;
    w.number = column_number;
    w.at = leaf.from + block * BLOCK + column_number * QUAD;
    w.end = end;
    w.hashed = leaf.size > LONG ? stripes_of(block, leaf.size) : 0;
    w.whole = (block + 1) * BLOCK <= leaf.size;
    const uint32_t ends = ends_from(&leaf), at_end = THREADS / 2 - 1 - t;
    quad last = {{0, 0, 0, 0}};
    if (at_end < ENDS / QUAD) last = fetch_one(s, leaf.from + ends + at_end * QUAD, end);

    pair sums = {0, 0};
    column c = column_begin();
    if (w.at < end) take_column(&sums, &c, &w, record != 0);
    shared.blocks[block][2 * column_number] = sums.low;
    shared.blocks[block][2 * column_number + 1] = sums.high;
    if (at_end < ENDS / QUAD) *(quad *)(shared.ends[0] + at_end * QUAD) = last;
#pragma unroll
    for (uint32_t f = 0; f < RECORD && record; f++) shared.fields[f][slot(t)] = field_of(&c, f);
    __syncthreads();
    if (t / WARP == 0)
        chain_leaf(&leaf, to, t);
    else if (record)
        add_fields(record);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

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
    s.n_records = item->what & LB_KERNEL_STATISTICS ? s.n_leaves : 0;
    s.leaves = (uint64_t *)item->scratch;
    s.blob = s.leaves + s.n_leaves;
    s.records = s.blob + s.n_blob;
    return s;
}

LB_DEVICE void do_unit(const lb_kernel_item *item, uint32_t unit)
{
    const scratch_places places = scratch_of(item);
    source s = {item, item->data, item->bytes, item->granule, !item->contiguous};
    if (unit < item->main) {
        if (unit < places.n_leaves)
            do_leaf(&s, unit, places.leaves + unit, places.n_records ? places.records + unit * RECORD : 0);
        return;
    }
    unit -= item->main;
    s.address = item->dense;
    s.bytes = item->dense_bytes;
    s.granule = item->dense_granule;
    s.strided = false;
    do_leaf(&s, unit, places.blob + unit, 0);
}

/* ---- what leaves add up to --------------------------------------------------------------------------------------- */

/* Field after field of a record, or of none. */
LB_DEVICE void load_record(uint64_t x[RECORD], const uint64_t *records, uint64_t i, uint64_t n)
{
#pragma unroll
    for (uint32_t f = 0; f < RECORD; f++) x[f] = i < n ? get_written(records + i * RECORD + f) : field_begin(f);
}

/* Records of leaves, of THREADS leaves, and so on: the last one is of all. Behind `n` records lie what they add up to. All
 * threads of the block. */
LB_DEVICE const uint64_t *add_records(uint64_t *records, uint64_t n)
{
    while (n > 1) {
        uint64_t *to = records + n * RECORD, next[RECORD];
        load_record(next, records, threadIdx.x, n);
        for (uint64_t from = 0; from < n; from += THREADS, to += RECORD) {
#pragma unroll
            for (uint32_t f = 0; f < RECORD; f++) shared.fields[f][slot(threadIdx.x)] = next[f];
            __syncthreads();
            load_record(next, records, from + THREADS + threadIdx.x, n); /* while these are added */
            if (threadIdx.x >= WARP) add_fields(to);
            __threadfence();
            __syncthreads();
        }
        records += n * RECORD;
        n = n / THREADS + (n % THREADS != 0);
    }
    return records;
}

/* A sequence of words, which is hashed: how many bytes there are, their leaves, and perhaps what the value is. */
typedef struct sequence {
    const lb_kernel_item *item;
    const uint64_t *leaves;
    uint64_t n_leaves, bytes, n;
} sequence;

LB_DEVICE uint64_t word_of(const sequence *s, uint64_t i)
{
    if (i == 0) return s->bytes;
    if (i <= s->n_leaves) return get_written(s->leaves + i - 1);
    i -= s->n_leaves + 1;
    return i == 0 ? s->item->dtype : i == 1 ? s->item->ndim : s->item->shape[i - 2];
}

/* What a column of block `row` adds. */
LB_DEVICE pair hash_words(const sequence *s, uint64_t row, uint32_t column_number)
{
    const uint32_t stripes = stripes_of(row, 8 * s->n);
    const uint64_t first = row * (BLOCK / 8) + column_number * (QUAD / 8);
    pair sums = {0, 0};
#pragma unroll 4
    for (uint32_t k = 0; k < stripes; k++) {
        const uint64_t i = first + k * (STRIPE / 8);
        add_stripe(&sums, word_of(s, i), word_of(s, i + 1), shared.keys[2 * column_number + k],
                   shared.keys[2 * column_number + k + 1]);
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

/* All threads of the block: each half of them has one of the sequences, of at most `rounds` times HALF / COLUMNS blocks.
 * Thread 0 of a half returns its digest. */
LB_DEVICE pair hash_sequences(const sequence *s, uint64_t rounds)
{
    enum { ROWS = HALF / COLUMNS };
    const uint32_t half = threadIdx.x / HALF, t = threadIdx.x % HALF;
    const uint64_t bytes = 8 * s->n, blocks = bytes ? (bytes - 1) / BLOCK : 0;
    const bool is_long = bytes > LONG;
    uint64_t sum = first_sums[t % 8];
    if (threadIdx.x < KEYS) shared.keys[threadIdx.x] = seeded(threadIdx.x, 0);
    if (!is_long && t < s->n) *(uint64_t *)(shared.ends[half] + 8 * t) = word_of(s, t);
    __syncthreads();
    for (uint64_t round = 0; round < rounds; round++) {
        const uint64_t row = round * ROWS + t / COLUMNS;
        if (is_long && row <= blocks) {
            const pair sums = hash_words(s, row, t % COLUMNS);
            uint64_t *to = shared.blocks[half * ROWS + t / COLUMNS] + 2 * (t % COLUMNS);
            to[0] = sums.low;
            to[1] = sums.high;
        }
        __syncthreads();
        if (is_long && t < 8) {
            for (uint64_t b = round * ROWS; b <= blocks && b < (round + 1) * ROWS; b++) {
                sum += shared.blocks[half * ROWS + b % ROWS][t];
                if (b < blocks) sum = scrambled(sum, shared.keys[16 + t]);
            }
        }
        __syncthreads();
    }
    if (is_long && t < 8)
        shared.sums[half][t] = add_last(sum, word_of(s, s->n - 8 + t), word_of(s, s->n - 8 + (t ^ 1)), t, 0);
    __syncthreads();
    pair h = {0, 0};
    if (t == 0 && bytes) h = digest_end(shared.sums[half], shared.ends[half], bytes);
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

/* All units of the item have ended. The first half of the threads hashes its leaves, the second those of the blob. */
LB_SELDOM void finish_item(const lb_kernel_launch *launch, lb_kernel_item *item, uint64_t ticket)
{
    const scratch_places places = scratch_of(item);
    const bool second = threadIdx.x >= HALF, of_blob = second && !item->contiguous;
    const uint64_t n_blob = item->contiguous ? places.n_leaves : places.n_blob;
    const bool blob = item->contiguous || item->what & LB_KERNEL_BLOB;
    lb_kernel_result *r = (lb_kernel_result *)launch->results + (ticket - 1) % launch->n_results;

    const uint64_t *all = add_records(places.records, places.n_records);
    if (threadIdx.x < RECORD)
        set_statistics(r, threadIdx.x, places.n_records ? get_written(all + threadIdx.x) : field_begin(threadIdx.x));

    sequence s = {item, of_blob ? places.blob : places.leaves, second ? n_blob : places.n_leaves,
                  of_blob ? item->dense_bytes : item->bytes, 0};
    s.n = second ? (blob ? 1 + n_blob : 0) : 1 + places.n_leaves + 2 + item->ndim;
    const uint64_t longest =
        places.n_leaves + 3 + item->ndim > 1 + n_blob ? places.n_leaves + 3 + item->ndim : 1 + n_blob;
    const pair h = hash_sequences(&s, (8 * longest - 1) / BLOCK / (HALF / COLUMNS) + 1);
    if (threadIdx.x % HALF == 0) {
        *(second ? &r->blob_lo : &r->logical_lo) = h.low;
        *(second ? &r->blob_hi : &r->logical_hi) = h.high;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        r->elements = places.n_records ? (int64_t)item->numbers : 0;
        item->ended = 0;
        __threadfence_system();
        set_visibly(&r->whole, ticket);
    }
}

LB_DEVICE lb_kernel_item *item_of(const lb_kernel_launch *launch, uint32_t unit)
{
    lb_kernel_item *items = (lb_kernel_item *)launch->items;
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

extern "C" __global__ void __launch_bounds__(LB_KERNEL_THREADS, LB_KERNEL_RESIDENT)
    lb_kernel_measure(lb_kernel_launch launch)
{
    lb_kernel_item *item = item_of(&launch, blockIdx.x);
    /* No other run with this scratch has the number. */
    const uint64_t ticket = 1 + item->slot + (launch.turn ? get_visible((const uint64_t *)launch.turn) : 0);
    do_unit(item, blockIdx.x - item->first_unit);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) shared.last = count_one(&item->ended) + 1 == item->main + item->blob;
    __syncthreads();
    if (!shared.last) return;
    __threadfence();
    finish_item(&launch, item, ticket);
}

extern "C" __global__ void lb_kernel_turn(uint64_t *turn, uint64_t by)
{
    *turn += by;
}
