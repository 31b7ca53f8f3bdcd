/* Launch rules: see launch_rule.h. Each is written from the library's own description of its heuristic, which is named
 * beside it. */
#include "invariance/launch_rule.h"

#include <stdio.h>

static int64_t divided_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t most(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

static int64_t power_of_two_from(int64_t n)
{
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

static int64_t power_of_two_to(int64_t n)
{
    int64_t p = 1;
    while (2 * p <= n) p *= 2;
    return p;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Tiles of 16 to 128 rows and up to 128 columns; as many slices as there are multiprocessors for each tile, of at least
 * four blocks of a cache line each. Triton's triton_kernels, matmul_ogs_details/opt_flags.py and opt_flags_nvidia.py
 * (`compute_split_k`). */
static bool split_k(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    const int64_t tile_rows = most(16, least(128, power_of_two_from(shape->rows))),
                  tile_columns = most(16, least(128, power_of_two_from(shape->columns))),
                  block = most(32, least(128 / shape->element_bytes, power_of_two_from(shape->terms))),
                  tiles = divided_up(shape->rows, tile_rows) * divided_up(shape->columns, tile_columns),
                  slices = most(1, least(shape->multiprocessors / tiles, divided_up(shape->terms, block) / 4));
    snprintf(text, LB_LAUNCH_TEXT, "splitk:%d", (int)slices);
    return true;
}

/* As many shares as multiprocessors, of all tiles' blocks of terms one after the other. Osama, Merrill, Cecka, Garland
 * and Owens, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU"
 * (arXiv:2301.03598), section 4. */
static bool stream_k(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    const int64_t blocks =
        divided_up(shape->rows, 128) * divided_up(shape->columns, 128) * divided_up(shape->terms, 32);
    snprintf(text, LB_LAUNCH_TEXT, "streamk:%d", (int)least(shape->multiprocessors, blocks));
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A block of up to 512 threads takes one row, or as many as there are up to 16, each with a warp; a warp whose share
 * would be long is given the whole block again. PyTorch, ATen/native/cuda/Reduce.cuh (`set_block_dimension`,
 * `setReduceConfig`). Several blocks for one row are not told apart here: rows of 131072 elements and more. */
static bool block_of_threads(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    enum { THREADS = 512, WARP = 32, LONG = 256 };
    const int64_t across = shape->terms < THREADS ? power_of_two_to(shape->terms) : THREADS,
                  down = shape->rows < THREADS ? power_of_two_to(shape->rows) : THREADS;
    int64_t width = least(across, WARP);
    const int64_t height = least(down, THREADS / width);
    width = least(across, THREADS / height);
    const int64_t each = divided_up(shape->terms, width);
    const bool together = each >= least(height * 16, LONG);
    snprintf(text, LB_LAUNCH_TEXT, "butterfly:%d", (int)(together ? width * height : width));
    return true;
}

/* Clusters of blocks that are halved until they fit the multiprocessors: replay/fused/fused_norm.c knows the rule. */
static bool cluster(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    snprintf(text, LB_LAUNCH_TEXT, "butterfly,sms:%d", (int)shape->multiprocessors);
    return true;
}

/* A warp per row of up to 1024 elements, else a block whose threads the row's length decides: whatever the batch.
 * PyTorch, ATen/native/cuda/PersistentSoftmax.cuh and SoftMax.cu (`SoftMax_getBlockSize`). */
static bool persistent(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    const int64_t vector = 16 / shape->element_bytes;
    if (shape->terms <= 1024)
        snprintf(text, LB_LAUNCH_TEXT, "warp");
    else
        snprintf(text, LB_LAUNCH_TEXT, "two-pass,sum:butterfly:%dx%d",
                 (int)most(32, power_of_two_from(least(shape->terms / vector, 1024))), (int)vector);
    return true;
}

/* Up to 128 rows of a large vocabulary are cut in slices of 8192, more rows take a block each. FlashInfer, sampling.cuh
 * (`OnlineSoftmax`). */
static bool vocabulary_slices(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    if (shape->terms < 24576) return false;
    snprintf(text, LB_LAUNCH_TEXT, shape->rows <= 128 ? "online:8192" : "two-pass,sum:butterfly:1024x%d",
             (int)(16 / shape->element_bytes));
    return true;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void print_slices(int64_t slices, int64_t block, const char *options, char text[LB_LAUNCH_TEXT])
{
    if (slices > 1)
        snprintf(text, LB_LAUNCH_TEXT, "splitkv:%d,block:%d%s", (int)slices, (int)block, options);
    else
        snprintf(text, LB_LAUNCH_TEXT, "flash:%d%s", (int)block, options);
}

/* The fewest slices that fill the multiprocessors to 85 % of what the best number does. Numbers that cut the blocks of
 * keys no finer than one less does are left out. FlashAttention, csrc/flash_attn/flash_api.cpp
 * (`num_splits_heuristic`). */
static int64_t filling_slices(int64_t blocks_at_once, int64_t places, int64_t key_blocks, int64_t limit)
{
    double best = 0;
    if ((double)blocks_at_once >= 0.8 * (double)places) return 1;
    limit = least(limit, least(places, key_blocks));
    for (int pass = 0; pass < 2; pass++)
        for (int64_t n = 1; n <= limit; n++) {
            if (n > 1 && divided_up(key_blocks, n) == divided_up(key_blocks, n - 1)) continue;
            const double waves = (double)(blocks_at_once * n) / (double)places,
                         efficiency = waves / (double)divided_up(blocks_at_once * n, places);
            if (!pass && efficiency > best) best = efficiency;
            if (pass && efficiency >= 0.85 * best) return n;
        }
    return 1;
}

/* The same file, `set_params_splitkv` and `mha_fwd`: blocks of 64 queries; a single query's heads of one group are
 * queries of one head; two blocks to a multiprocessor. */
static bool flash_slices(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    const bool swapped = shape->queries == 1 && shape->heads > shape->key_heads;
    const int64_t block = shape->size <= 64    ? 256
                          : shape->size <= 128 ? 128
                                               : 64,
                  queries = swapped ? shape->heads / shape->key_heads : shape->queries,
                  heads = swapped ? shape->key_heads : shape->heads;
    const int64_t slices = filling_slices(shape->rows * heads * divided_up(queries, 64), 2 * shape->multiprocessors,
                                          divided_up(shape->keys, block), 128);
    print_slices(slices, block, ",exp:2", text);
    return true;
}

/* Decoding: the fewest pages to a slice with which all slices still fit the GPU at once; none where the batch fills it
 * by itself. FlashInfer, attention/scheduler.cuh (`PartitionPagedKVCacheBinarySearchMinNumPagePerBatch`): pages of 16
 * keys, at least 128 keys to a slice; two blocks to a multiprocessor are taken for granted, where FlashInfer asks the
 * driver. */
static bool page_slices(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    enum { PAGE = 16, FEWEST = 128 / PAGE };
    const int64_t places = 2 * shape->multiprocessors, pages = divided_up(shape->keys, PAGE);
    int64_t low = FEWEST, high = most(pages, FEWEST);
    if (shape->queries != 1) return false;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (shape->rows * shape->key_heads * divided_up(pages, middle) > places)
            low = middle + 1;
        else
            high = middle;
    }
    const bool full = shape->rows * shape->key_heads >= places;
    print_slices(full ? 1 : divided_up(pages, low), (full ? most(pages, 1) : low) * PAGE, ",exp:2", text);
    return true;
}

/* Decoding: partitions of 512 keys, but one for all where there are more than 512 heads in the batch and the keys fit
 * shared memory. vLLM, attention/ops/paged_attn.py (`forward_decode`). */
static bool partitions(const lb_launch_shape *shape, char text[LB_LAUNCH_TEXT])
{
    enum { PARTITION = 512, SHARED = 8192, HEADS = 512 };
    const int64_t n = divided_up(shape->keys, PARTITION);
    if (shape->queries != 1) return false;
    if (shape->keys <= SHARED && (n == 1 || shape->rows * shape->heads > HEADS))
        snprintf(text, LB_LAUNCH_TEXT, "flash:0,p:f32");
    else
        print_slices(n, PARTITION, ",p:f32", text);
    return true;
}

const lb_launch_rule *lb_launch_rules(void)
{
    static const lb_launch_rule rules[] = {{"splitk", LB_LAUNCH_PRODUCT, true, split_k},
                                           {"streamk", LB_LAUNCH_PRODUCT, true, stream_k},
                                           {"blocks", LB_LAUNCH_SUM, false, block_of_threads},
                                           {"butterfly", LB_LAUNCH_NORM, true, cluster},
                                           {"persistent", LB_LAUNCH_SOFTMAX, false, persistent},
                                           {"vocabulary", LB_LAUNCH_SOFTMAX, false, vocabulary_slices},
                                           {"flash-attention", LB_LAUNCH_ATTENTION, true, flash_slices},
                                           {"flashinfer", LB_LAUNCH_ATTENTION, true, page_slices},
                                           {"paged", LB_LAUNCH_ATTENTION, false, partitions},
                                           {NULL, LB_LAUNCH_KINDS, false, NULL}};
    return rules;
}
