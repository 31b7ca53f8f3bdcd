/* Digests and statistics of values on a device, bit-equal with lb_measure: see digest_kernel.h.
 *
 * A warp is two teams of 16 threads. A team reads a span (a leaf of the digest, or a piece of the statistics) tile by
 * tile: 4 KiB are copied into shared memory while the 4 KiB before are worked on, so that each byte is read once from
 * the device's memory.
 *
 *     hash         A leaf is 64 blocks of 16 stripes of 64 bytes. Inside a block XXH3 only adds, so that thread (b, c)
 *                  of a team sums 16 bytes of each stripe of block b of the tile, and 8 threads then chain the blocks
 *                  by scrambles.
 *     statistics   Element i of a piece goes to lane i mod 16: thread t of the team is lane t, and adds its elements
 *                  one after the other. This order is the definition's; so a piece takes at least 4096 dependent
 *                  additions.
 *     the whole    Pieces are added in their order while others are still read, by whichever warp comes by
 *                  (retire_pieces). The warp that ends an item's last unit hashes the leaves.
 *
 * The host compiles this, too, for tests: then __shared__, __syncwarp and what kernel_machine.cuh has are those of
 * tests/capture/device/cuda_on_host.h. */
#include "kernel_numbers.cuh"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* What a team reads: a stream of bytes. */
typedef struct source {
    bool strided;
    uint32_t granule;
    uint64_t address, bytes;
    const lb_kernel_item *item;
    const uint64_t *leaves; /* of words: what the 128-bit hash is of */
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

/* The same of a whole tile, 16 bytes a copy. */
LB_DEVICE void fill_whole(uint8_t *tile, uint64_t from, uint32_t t)
{
#pragma unroll
    for (uint32_t at = 0; at < TILE; at += 16 * TEAM) copy_begin(tile + place(at) + 16 * t, from + at + 16 * t, 16, 16);
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

/* Where chunk after chunk of a view lies that is not contiguous, for a thread that takes every TEAM-th. Rows follow
 * each other in the dimension beside theirs until it ends: only then is it divided. */
typedef struct walk {
    const lb_kernel_item *item;
    uint64_t count, stride;          /* of a row's chunks */
    uint64_t rows, row_stride;       /* of the dimension beside it: 1 where there is none */
    uint64_t column, row, lot, base; /* base: the address of row 0 of the lot */
} walk;

/* Of a view whose two innermost dimensions are left out. */
LB_DEVICE uint64_t lot_address(const lb_kernel_item *item, uint64_t lot)
{
    return item->n_sizes > 2 ? row_address(item, lot * item->sizes[item->n_sizes - 2]) : item->data;
}

LB_DEVICE walk walk_from(const lb_kernel_item *item, uint64_t chunk)
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

LB_DEVICE uint64_t walk_on(walk *w)
{
    if (w->column >= w->count) { /* it is less than count + TEAM */
        const uint32_t rows = w->count > TEAM ? 1 : (uint32_t)w->column / (uint32_t)w->count;
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
    w->column += TEAM;
    return at;
}

/* Copies of G bytes, 4 at least, that are not waited for. */
template <uint32_t G>
LB_SELDOM void fill_chunks(uint8_t *tile, const lb_kernel_item *item, uint64_t at, uint32_t n, uint32_t t)
{
    const uint32_t size = item->chunk, chunks = n / size;
    walk w = walk_from(item, at / size + t);
    for (uint32_t c = t; c < chunks; c += TEAM) {
        const uint64_t from = walk_on(&w);
        for (uint32_t i = 0; i < size; i += G) copy_begin(tile + place(c * size) + i, from + i, G, G);
    }
}

/* Smaller ones go through registers, several on their way at once. */
template <class T>
LB_SELDOM void fill_strided(uint8_t *tile, const lb_kernel_item *item, uint64_t at, uint32_t n, uint32_t t)
{
    enum { AT_ONCE = 8 };
    const uint32_t size = item->chunk, chunks = n / size;
    walk w = walk_from(item, at / size + t);
    for (uint32_t c = t; c < chunks; c += AT_ONCE * TEAM) {
        uint64_t from[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) from[k] = c + k * TEAM < chunks ? walk_on(&w) : 0;
        for (uint32_t i = 0; i < size; i += sizeof(T)) {
            T got[AT_ONCE];
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) got[k] = from[k] ? *(const T *)(from[k] + i) : T();
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++)
                if (from[k]) *(T *)(tile + place((c + k * TEAM) * size) + i) = got[k];
        }
    }
}

LB_DEVICE uint64_t word_of(const source *s, uint64_t i)
{
    if (i == 0) return s->size_word;
    if (i <= s->n_leaves) return get_written(s->leaves + i - 1);
    i -= s->n_leaves + 1;
    return i == 0 ? s->item->dtype : i == 1 ? s->item->ndim : s->item->shape[i - 2];
}

LB_DEVICE void fill_words(uint8_t *tile, const source *s, uint64_t at, uint32_t n, uint32_t t)
{
    for (uint32_t i = 8 * t; i < n; i += 8 * TEAM) *(uint64_t *)(tile + place(i)) = word_of(s, (at + i) / 8);
}

/* Begins to bring `n` bytes of the stream from `at` on into a tile. */
LB_DEVICE void fill(uint8_t *tile, const source *s, uint64_t at, uint32_t n, uint32_t t)
{
    if (!s->strided) {
        switch (s->granule) {
        case 16:
            if (n == TILE)
                fill_whole(tile, s->address + at, t);
            else
                fill_dense<16>(tile, s->address + at, n, t);
            break;
        case 8: fill_dense<8>(tile, s->address + at, n, t); break;
        case 4: fill_dense<4>(tile, s->address + at, n, t); break;
        default: fill_dense<1>(tile, s->address + at, n, t); break;
        }
    } else {
        switch (s->granule) {
        case 16: fill_chunks<16>(tile, s->item, at, n, t); break;
        case 8: fill_chunks<8>(tile, s->item, at, n, t); break;
        case 4: fill_chunks<4>(tile, s->item, at, n, t); break;
        case 2: fill_strided<uint16_t>(tile, s->item, at, n, t); break;
        default: fill_strided<uint8_t>(tile, s->item, at, n, t); break;
        }
    }
}

/* ---- spans ------------------------------------------------------------------------------------------------------- */

/* What a warp does with a stream: both teams a span each, the second perhaps a shorter one, or none. */
typedef struct span_work {
    source from;
    uint64_t at, size; /* of this team's span */
    uint32_t tiles;    /* of the longer one */
    uint64_t *leaves;  /* NULL: not hashed */
    uint64_t *piece;   /* NULL: no statistics */
} span_work;

template <bool WORDS>
LB_DEVICE leaf_place leaf_of(const source *s, uint64_t at)
{
    leaf_place leaf = {0, at, s->bytes};
    if (WORDS) return leaf;
    leaf.seed = at / LB_KERNEL_LEAF;
    leaf.at = at % LB_KERNEL_LEAF;
    const uint64_t left = s->bytes - (at - leaf.at);
    leaf.size = left < LB_KERNEL_LEAF ? left : LB_KERNEL_LEAF;
    return leaf;
}

template <bool WORDS>
LB_DEVICE void fill_tile(team_memory *m, const span_work *w, uint32_t k, uint32_t t)
{
    const uint64_t at = (uint64_t)k * TILE;
    const uint64_t left = at < w->size ? w->size - at : 0;
    const uint32_t n = left < TILE ? (uint32_t)left : (uint32_t)TILE;
    if (WORDS)
        fill_words(m->tile[k % 2], &w->from, w->at + at, n, t);
    else if (n)
        fill(m->tile[k % 2], &w->from, w->at + at, n, t);
    copy_group();
}

LB_DEVICE void end_leaf(const team_memory *m, const span_work *w, uint32_t k, const leaf_place *leaf)
{
    w->leaves[leaf->seed] = leaf->size <= LONG ? short_hash(m->tile[k % 2], (uint32_t)leaf->size, leaf->seed)
                                               : merged(m->sums, 11, leaf->seed, leaf->size * PRIME64_1);
}

LB_DEVICE void end_piece(team_memory *m, const span_work *w, const lane *l, uint32_t t)
{
    uint64_t *records = (uint64_t *)m->tile[0];
    __syncwarp();
    if (w->piece && w->size) lane_record(l, records + RECORD * t);
    __syncwarp();
    if (!w->piece || w->size == 0 || t >= FIELDS) return;
    uint64_t value = field_add(t, field_begin(t), records, TEAM);
    if (t == NEG_INFS) return;
    if (t == POS_INFS) value |= field_add(NEG_INFS, 0, records, TEAM) << 32;
    w->piece[t] = value;
}

/* All threads of a warp come here together. WORDS: the stream is of words, and is hashed as one. */
template <bool WORDS>
LB_DEVICE void do_spans(team_memory *m, const span_work *w, uint32_t t)
{
    const bool hashed = WORDS || w->leaves, numbers = !WORDS && w->piece;
    lane l = lane_begin();
    number_type type = type_of(w->from.item);
    uint64_t sum = 0, left = WORDS ? 0 : w->from.item->numbers - w->at / TILE * type.per_tile;
    fill_tile<WORDS>(m, w, 0, t);
    for (uint32_t k = 0; k < w->tiles; k++) {
        fill_tile<WORDS>(m, w, k + 1, t);
        copy_wait();
        __syncwarp();
        const uint64_t at = w->at + (uint64_t)k * TILE;
        const bool mine = (uint64_t)k * TILE < w->size;
        const uint8_t *tile = m->tile[k % 2];
        const leaf_place leaf = leaf_of<WORDS>(&w->from, at);
        const bool is_long = mine && hashed && leaf.size > LONG, ends = leaf.at + TILE >= leaf.size;
        if (is_long && leaf.at == 0) sum = first_sums[t % 8];
        if (is_long) hash_blocks(m, tile, &leaf, t);
        if (mine && numbers) add_numbers(&l, &type, tile, left < type.per_tile ? (uint32_t)left : type.per_tile, t);
        left -= type.per_tile;
        __syncwarp();
        if (is_long && t < 8) {
            sum = chain_blocks(m, k % 2, &leaf, sum, t);
            if (ends) m->sums[t] = sum;
        }
        __syncwarp();
        if (WORDS) continue;
        if (mine && hashed && ends && t == 0) end_leaf(m, w, k, &leaf);
    }
    if (!WORDS) end_piece(m, w, &l, t);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

LB_DEVICE uint64_t parts_of(uint64_t all, uint64_t each)
{
    return all / each + (all % each != 0);
}

typedef struct scratch_places {
    uint64_t *leaves, *blob, *pieces;
    uint64_t n_leaves, n_blob, n_pieces;
} scratch_places;

LB_DEVICE scratch_places scratch_of(const lb_kernel_item *item)
{
    scratch_places s;
    s.n_leaves = parts_of(item->bytes, LB_KERNEL_LEAF);
    s.n_blob = item->what & LB_KERNEL_BLOB ? parts_of(item->dense_bytes, LB_KERNEL_LEAF) : 0;
    s.n_pieces = item->what & LB_KERNEL_STATISTICS ? parts_of(item->numbers, LB_KERNEL_PIECE) : 0;
    s.leaves = (uint64_t *)item->scratch;
    s.blob = s.leaves + s.n_leaves;
    s.pieces = s.blob + s.n_blob;
    return s;
}

LB_DEVICE source elements_of(const lb_kernel_item *item)
{
    const source s = {!item->contiguous, item->granule, item->data, item->bytes, item, 0, 0, 0};
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

/* What a warp has to do with one unit of one item. */
typedef struct unit_work {
    const lb_kernel_launch *launch;
    lb_kernel_item *item;
    scratch_places s;
    uint64_t ticket;     /* no other run with this scratch has the number */
    uint64_t mark;       /* made of it, as no other data has it by chance: in a record, that the piece is there */
    team_memory *memory; /* of both teams */
    uint32_t *word;      /* of the warp */
    uint32_t team, t;
} unit_work;

LB_DEVICE void say_there(const unit_work *u, uint64_t piece)
{
    if (piece < u->s.n_pieces) set_visibly(u->s.pieces + piece * RECORD + THERE, u->mark);
}

enum {
    PIECES = sizeof(((team_memory *)0)->tile) / (8 * RECORD) / 32 * 32
}; /* whose records lie in a team's memory at once */

/* Pieces from `next` on that are there without a gap, of at most PIECES. */
LB_DEVICE uint32_t pieces_there(const unit_work *u, uint64_t next)
{
    const uint64_t ones = 0x0101010101010101ull;
    uint8_t *there = u->memory[1].tile[0];
    uint32_t n = 0;
#pragma unroll
    for (uint32_t i = u->team * TEAM + u->t; i < PIECES; i += 2 * TEAM) {
        const uint64_t piece = next + i;
        there[i] = piece < u->s.n_pieces && get_visible(u->s.pieces + piece * RECORD + THERE) == u->mark;
    }
    __syncwarp();
    while (n < PIECES && *(const uint64_t *)(there + n) == ones) n += 8;
    while (n < PIECES && there[n]) n++;
    return n;
}

/* Words of records that other warps wrote, several on their way at once. */
LB_DEVICE void fetch_records(uint64_t *records, const uint64_t *from, uint32_t n, uint32_t thread)
{
    enum { AT_ONCE = 8 };
    for (uint32_t i = thread; i < n * RECORD; i += AT_ONCE * 2 * TEAM) {
        uint64_t got[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++)
            got[k] = i + k * 2 * TEAM < n * RECORD ? get_written(from + i + k * 2 * TEAM) : 0;
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++)
            if (i + k * 2 * TEAM < n * RECORD) records[i + k * 2 * TEAM] = got[k];
    }
}

/* Whoever has the lock adds all pieces that are there, in their order; thread t of the first team has field t. */
LB_DEVICE void add_pieces(const unit_work *u)
{
    lb_kernel_progress *p = &u->item->progress;
    uint64_t *records = (uint64_t *)u->memory[0].tile[0], next = get_visible(&p->next), all = 0;
    const bool mine = u->team == 0 && u->t < FIELDS;
    if (mine) all = next ? get_written(&p->fields[u->t]) : field_begin(u->t);
    for (uint32_t n; (n = pieces_there(u, next)) > 0; next += n) {
        __threadfence();
        fetch_records(records, u->s.pieces + next * RECORD, n, u->team * TEAM + u->t);
        __syncwarp();
        if (mine) all = field_add(u->t, all, records, n);
    }
    if (mine) p->fields[u->t] = all;
    if (u->team == 0 && u->t == 0) set_visibly(&p->next, next);
}

/* Pieces are added in their order by the warp that ends one while no other adds: no warp waits, and the chain of
 * additions, which is as long as the value has pieces, goes on beside the reading. Who lets go of the lock looks again,
 * so that no piece is left behind. */
LB_SELDOM void retire_pieces(const unit_work *u)
{
    lb_kernel_progress *p = &u->item->progress;
    const bool first = u->team == 0 && u->t == 0;
    for (bool more = true; more;) {
        __threadfence();
        if (first) *u->word = take_lock(&p->lock);
        __syncwarp();
        const bool taken = *u->word;
        __syncwarp();
        if (!taken) return;
        __threadfence();
        add_pieces(u);
        __threadfence();
        __syncwarp();
        if (first) set_visibly(&p->lock, 0);
        __threadfence();
        more = pieces_there(u, get_visible(&p->next)) > 0;
    }
}

LB_DEVICE void do_unit(const unit_work *u, uint32_t unit)
{
    const lb_kernel_item *item = u->item;
    span_work w = {elements_of(item), 0, 0, 0, 0, 0};
    const uint64_t piece = (uint64_t)LB_KERNEL_PIECE * item->part_bits / 8;
    bool numbers = item->fused;
    if (unit < item->main) {
        w.leaves = u->s.leaves;
        take_spans(&w, unit, item->main_span, u->team);
    } else if (unit - item->main < item->statistics) {
        numbers = true;
        take_spans(&w, unit - item->main, piece, u->team);
    } else {
        numbers = false;
        w.from.strided = false;
        w.from.granule = item->dense_granule;
        w.from.address = item->dense;
        w.from.bytes = item->dense_bytes;
        w.leaves = u->s.blob;
        take_spans(&w, unit - item->main - item->statistics, LB_KERNEL_LEAF, u->team);
    }
    if (numbers) w.piece = u->s.pieces + w.at / piece * RECORD;
    do_spans<false>(u->memory + u->team, &w, u->t);
    __threadfence();
    __syncwarp();
    if (!numbers) return;
    if (u->t == 0) say_there(u, w.at / piece);
    __syncwarp();
    retire_pieces(u);
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

/* All units of the item have ended. The first team hashes its leaves, the second those of the blob. */
LB_SELDOM void finish_item(const unit_work *u)
{
    lb_kernel_item *item = u->item;
    const scratch_places *s = &u->s;
    const bool blob = item->contiguous || item->what & LB_KERNEL_BLOB;
    const uint64_t n_blob = item->contiguous ? s->n_leaves : s->n_blob;
    const uint64_t sizes[2] = {8 * (1 + s->n_leaves + 2 + item->ndim), blob ? 8 * (1 + n_blob) : 0};
    lb_kernel_result *r = (lb_kernel_result *)u->launch->results + (u->ticket - 1) % u->launch->n_results;
    if (u->team == 0 && u->t < FIELDS)
        set_statistics(r, u->t, s->n_pieces ? get_written(&item->progress.fields[u->t]) : field_begin(u->t));

    span_work w = {elements_of(item), 0, sizes[u->team], 0, 0, 0};
    w.from.bytes = sizes[u->team];
    w.from.leaves = u->team && !item->contiguous ? s->blob : s->leaves;
    w.from.n_leaves = u->team ? n_blob : s->n_leaves;
    w.from.size_word = u->team && !item->contiguous ? item->dense_bytes : item->bytes;
    w.tiles = (uint32_t)parts_of(sizes[0] > sizes[1] ? sizes[0] : sizes[1], TILE);
    do_spans<true>(u->memory + u->team, &w, u->t);
    if (u->t == 0) {
        pair h = {0, 0};
        if (w.size) h = digest_end(u->memory + u->team, w.size);
        *(u->team ? &r->blob_lo : &r->logical_lo) = h.low;
        *(u->team ? &r->blob_hi : &r->logical_hi) = h.high;
    }
    __threadfence_system();
    __syncwarp();
    if (u->team == 0 && u->t == 0) {
        r->elements = s->n_pieces ? (int64_t)item->numbers : 0;
        item->progress.ended = 0;
        item->progress.next = 0;
        __threadfence_system();
        set_visibly(&r->whole, u->ticket);
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

extern "C" __global__ void __launch_bounds__(LB_KERNEL_THREADS) lb_kernel_measure(lb_kernel_launch launch)
{
    __shared__ team_memory memory[2 * LB_KERNEL_WARPS];
    __shared__ uint32_t words[LB_KERNEL_WARPS];
    const uint32_t warp = threadIdx.x / 32, number = blockIdx.x * LB_KERNEL_WARPS + warp;
    if (number >= launch.n_units) return;
    unit_work u;
    u.launch = &launch;
    u.item = item_of(&launch, number);
    u.s = scratch_of(u.item);
    u.ticket = 1 + u.item->slot + (launch.turn ? get_visible((const uint64_t *)launch.turn) : 0);
    u.mark = old_avalanche(u.ticket ^ PRIME64_1);
    u.memory = memory + 2 * warp;
    u.word = words + warp;
    u.team = threadIdx.x % 32 / TEAM;
    u.t = threadIdx.x % TEAM;
    do_unit(&u, number - u.item->first_unit);
    if (u.team == 0 && u.t == 0) *u.word = count_one(&u.item->progress.ended) + 1;
    __syncwarp();
    if (*u.word != u.item->main + u.item->statistics + u.item->blob) return;
    __threadfence();
    finish_item(&u);
}

extern "C" __global__ void lb_kernel_turn(uint64_t *turn, uint64_t by)
{
    *turn += by;
}
