/* See profile.h. The tensor is read once, row by row in portions that stay in the cache; each portion goes to its row,
 * to the columns that it crosses, and to the blocks of both.
 *
 * White noise: of a block of R rows and C columns with variance v and fourth moment k v^2, the sum of squares of a row
 * has the variance C (k - 1) v^2, that of a column R (k - 1) v^2. The measured variance over the expected one has the
 * standard error sqrt(2 / R) and sqrt(2 / C), the fourth moment sqrt(24 / (R C)) for normal numbers, for which it is 3,
 * and less for uniform ones, for which it is 1.8. */
#include "audit/profile.h"

#include <lastbit/digest.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PORTION = 4096, MOST_COLUMNS = 8 << 20, FEWEST_BLOCKS = 4 };

/* Sums of one block: of its squares and fourth powers, and of the squares of its rows' sums. */
typedef struct sums {
    double second, fourth, of_rows, of_rows_squared;
} sums;

typedef struct walk {
    const lb_tensor *t;
    int64_t n[LB_PROFILE_AXES]; /* slices of each axis */
    double *squares[LB_PROFILE_AXES];
    double *block_columns; /* sums of squares of the columns of the block at hand */
    sums *across;          /* of blocks of columns, by block */
    sums along;            /* of the block of rows at hand */
    int64_t height, width; /* rows, columns of a block; 0: none */
    lb_profile *out;
} walk;

int lb_profile_axis_of(const lb_layout *layout, int d)
{
    if (layout->ndim < 2) return LB_PROFILE_AXES - 1;
    if (d == 0) return 0;
    if (layout->ndim == 2) return 2;
    return d == 1 ? 1 : layout->ndim == 3 ? 2 : -1;
}

static void shape_of(const lb_layout *layout, int64_t n[LB_PROFILE_AXES])
{
    n[0] = n[1] = n[2] = 1;
    for (int d = 0; d < layout->ndim; d++)
        n[layout->ndim < 2 ? 2 : d == 0 ? 0 : d == 1 && layout->ndim > 2 ? 1 : 2] *= layout->shape[d];
}

/* A head's usual number of rows: the largest that leaves several blocks. */
static int64_t block_of(int64_t n, int64_t head)
{
    static const int64_t usual[] = {64, 32, 16};
    if (head > 0) return n % head == 0 && n / head >= 2 ? head : 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (n % usual[i] == 0 && n / usual[i] >= FEWEST_BLOCKS) return usual[i];
    return 0;
}

/* ---- noise ------------------------------------------------------------------------------------------------------- */

static double variance_of(const double *x, int64_t n)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    for (int64_t i = 0; i < n; i++) squares += (x[i] - sum / (double)n) * (x[i] - sum / (double)n);
    return n > 1 ? squares / (double)n : 0;
}

/* `rows`, `columns`: variances of the sums of squares of each row of the block, and of each column. */
static lb_profile_block judge_block(const sums *sums, double r, double c, double rows, double columns)
{
    const double n = r * c, v = sums->second / n, k = v > 0 ? sums->fourth / n / (v * v) : 0;
    if (!(v > 0) || k < 1.01) return (lb_profile_block){(float)sqrt(v), INFINITY};
    const double row = fabs(rows / (c * (k - 1) * v * v) - 1) / sqrt(2 / r),
                 column = fabs(columns / (r * (k - 1) * v * v) - 1) / sqrt(2 / c),
                 normal = fabs(k - 3) / (sqrt(24 / n) + 0.005), uniform = fabs(k - 1.8) / (sqrt(24 / n) + 0.005),
                 moment = normal < uniform ? normal : uniform;
    return (lb_profile_block){(float)sqrt(v), (float)fmax(fmax(row, column), moment)};
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

static void add_columns(walk *walk, int64_t first, const float *x, int64_t n, double *squares, uint64_t *hashes)
{
    for (int64_t i = 0; i < n; i++) squares[first + i] += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        hashes[first + i] = (uint32_t)(((uint32_t)hashes[first + i] ^ bits) * UINT32_C(0x9E3779B1));
        hashes[first + i] ^= (uint32_t)hashes[first + i] >> 15;
    }
    for (int64_t i = 0; walk->block_columns && i < n; i++)
        walk->block_columns[first + i] += (double)x[i] * (double)x[i];
}

/* Sums in eight lanes, which do not wait for each other. */
static void add_powers(const float *x, int64_t n, double *second, double *fourth)
{
    enum { LANES = 8 };
    double squares[LANES] = {0}, powers[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const double square = (double)x[i + k] * (double)x[i + k];
            squares[k] += square, powers[k] += square * square;
        }
    for (; i < n; i++) {
        const double square = (double)x[i] * (double)x[i];
        squares[0] += square, powers[0] += square * square;
    }
    for (int k = 0; k < LANES; k++) *second += squares[k], *fourth += powers[k];
}

/* The part of a row that lies in each block of columns. */
static void add_across(walk *walk, int64_t first, const float *x, int64_t n, double *row, double *all_second,
                       double *all_fourth)
{
    for (int64_t i = 0, end; i < n; i = end) {
        const int64_t block = (first + i) / walk->width, edge = (block + 1) * walk->width - first;
        double second = 0, fourth = 0;
        end = edge < n ? edge : n;
        add_powers(x + i, end - i, &second, &fourth);
        walk->across[block].second += second, walk->across[block].fourth += fourth;
        row[block] += second;
        *all_second += second, *all_fourth += fourth;
    }
}

/* Row `i` of all, which is row `j` of axis 1 in slice i / n[1] of axis 0. */
static void add_row(walk *walk, int64_t i, double *row)
{
    const int64_t j = i % walk->n[1], slice = i / walk->n[1], wide = walk->n[2];
    const size_t bytes = lb_dtype_bits(walk->t->dtype) / 8;
    lb_profile_axis *axes = walk->out->axes;
    double second = 0, fourth = 0;
    uint64_t hash = 0;
    float x[PORTION];
    if (walk->across) memset(row, 0, (size_t)(wide / walk->width) * sizeof *row);
    for (int64_t at = 0; at < wide; at += PORTION) {
        const int64_t n = wide - at < PORTION ? wide - at : PORTION;
        lb_load_f32(x, walk->t->dtype, (const char *)walk->t->data + (size_t)(i * wide + at) * bytes, (size_t)n);
        if (walk->across)
            add_across(walk, at, x, n, row, &second, &fourth);
        else
            add_powers(x, n, &second, &fourth);
        hash = hash * UINT64_C(0xFF51AFD7ED558CCD) ^ lb_digest_leaf(x, (size_t)n * sizeof *x, 0);
        if (walk->squares[2]) add_columns(walk, at, x, n, walk->squares[2], axes[2].hashes);
    }
    walk->along.second += second, walk->along.fourth += fourth;
    walk->along.of_rows += second, walk->along.of_rows_squared += second * second;
    for (int64_t k = 0; walk->across && k < wide / walk->width; k++)
        walk->across[k].of_rows += row[k], walk->across[k].of_rows_squared += row[k] * row[k];
    if (walk->squares[0])
        walk->squares[0][slice] += second,
            axes[0].hashes[slice] = axes[0].hashes[slice] * UINT64_C(0xC4CEB9FE1A85EC53) ^ hash;
    if (walk->squares[1])
        walk->squares[1][j] += second, axes[1].hashes[j] = axes[1].hashes[j] * UINT64_C(0xC4CEB9FE1A85EC53) ^ hash;
}

static double spread_of(const sums *sums, double rows)
{
    const double mean = sums->of_rows / rows, variance = sums->of_rows_squared / rows - mean * mean;
    return variance > 0 ? variance : 0;
}

static void end_block(walk *walk, int64_t block)
{
    const double r = (double)walk->height, c = (double)walk->n[2];
    walk->out->sides[0].list[block] =
        judge_block(&walk->along, r, c, spread_of(&walk->along, r), variance_of(walk->block_columns, walk->n[2]));
    memset(walk->block_columns, 0, (size_t)walk->n[2] * sizeof *walk->block_columns);
    walk->along = (sums){0};
}

static void read_all(walk *walk, double *row)
{
    const int64_t rows = walk->n[0] * walk->n[1];
    for (int64_t i = 0; i < rows; i++) {
        add_row(walk, i, row);
        if (walk->height && (i + 1) % walk->height == 0) end_block(walk, i / walk->height);
    }
    for (int64_t k = 0; walk->across && k < walk->n[2] / walk->width; k++)
        walk->out->sides[1].list[k] =
            judge_block(&walk->across[k], (double)rows, (double)walk->width, spread_of(&walk->across[k], (double)rows),
                        variance_of(walk->squares[2] + k * walk->width, walk->width));
    const double all = (double)rows * (double)walk->n[2];
    for (int axis = 0; axis < LB_PROFILE_AXES; axis++)
        for (int64_t i = 0; walk->squares[axis] && i < walk->n[axis]; i++)
            walk->out->axes[axis].sizes[i] = (float)sqrt(walk->squares[axis][i] / (all / (double)walk->n[axis]));
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

static bool has_profile(const lb_tensor *t)
{
    return lb_layout_numel(&t->layout) >= 2 && lb_dtype_bits(t->dtype) >= 8 && !lb_dtype_is_complex(t->dtype);
}

static bool make_blocks(lb_profile_blocks *blocks, int64_t all, int64_t width)
{
    if (!width) return true;
    *blocks = (lb_profile_blocks){all / width, width, calloc((size_t)(all / width), sizeof *blocks->list)};
    return blocks->list != NULL;
}

bool lb_profile_room(lb_profile *profile, const lb_tensor *tensor, int64_t head, bool experts)
{
    int64_t n[LB_PROFILE_AXES];
    bool made = true;
    *profile = (lb_profile){0};
    if (!has_profile(tensor)) return true;
    shape_of(&tensor->layout, n);
    for (int axis = 0; axis < LB_PROFILE_AXES; axis++) {
        if (n[axis] < 2 || n[axis] > MOST_COLUMNS) continue;
        profile->axes[axis] = (lb_profile_axis){n[axis], calloc((size_t)n[axis], sizeof(float)),
                                                calloc((size_t)n[axis], sizeof(uint64_t))};
        made &= profile->axes[axis].sizes && profile->axes[axis].hashes;
    }
    if (profile->axes[0].n && profile->axes[2].n) {
        const bool matrix = n[1] == 1;
        made &= make_blocks(&profile->sides[0], n[0] * n[1],
                            experts && n[1] > 1 ? n[1]
                            : matrix            ? block_of(n[0], head)
                                                : 0);
        made &= make_blocks(&profile->sides[1], n[2], matrix ? block_of(n[2], head) : 0);
    }
    if (!made) lb_profile_release(profile);
    return made;
}

/* What is summed on the way. */
static bool make_sums(walk *walk)
{
    bool made = true;
    for (int axis = 0; axis < LB_PROFILE_AXES; axis++) {
        if (!walk->out->axes[axis].n) continue;
        walk->squares[axis] = calloc((size_t)walk->n[axis], sizeof(double));
        made &= walk->squares[axis] != NULL;
    }
    walk->height = walk->out->sides[0].width, walk->width = walk->out->sides[1].width;
    if (walk->height) made &= (walk->block_columns = calloc((size_t)walk->n[2], sizeof(double))) != NULL;
    if (walk->width) made &= (walk->across = calloc((size_t)walk->out->sides[1].n, sizeof *walk->across)) != NULL;
    return made;
}

bool lb_profile_init(lb_profile *profile, const lb_tensor *tensor, int64_t head, bool experts)
{
    const int64_t all = lb_layout_numel(&tensor->layout);
    lb_tensor dense = *tensor;
    walk walk = {.t = &dense, .out = profile};
    void *copy = NULL;
    *profile = (lb_profile){0};
    shape_of(&tensor->layout, walk.n);
    if (!has_profile(tensor)) return true;
    bool made = lb_profile_room(profile, tensor, head, experts);
    if (made && !lb_layout_is_contiguous(&tensor->layout)) {
        copy = malloc(lb_dtype_bytes(tensor->dtype, (size_t)all));
        made = copy && lb_tensor_gather(tensor, copy, NULL) == LB_OK;
        dense.data = copy;
    }
    made = made && make_sums(&walk);
    double *row = made && walk.across ? malloc((size_t)profile->sides[1].n * sizeof *row) : NULL;
    made = made && (!walk.across || row);
    if (made) read_all(&walk, row);
    for (int axis = 0; axis < LB_PROFILE_AXES; axis++) free(walk.squares[axis]);
    free(walk.block_columns), free(walk.across), free(row), free(copy);
    if (!made) lb_profile_release(profile);
    return made;
}

void lb_profile_release(lb_profile *profile)
{
    for (int axis = 0; axis < LB_PROFILE_AXES; axis++)
        free(profile->axes[axis].sizes), free(profile->axes[axis].hashes);
    for (int side = 0; side < LB_PROFILE_SIDES; side++) free(profile->sides[side].list);
    *profile = (lb_profile){0};
}
