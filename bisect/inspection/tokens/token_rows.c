/* Elements by token: see token_rows.h. */
#include "tokens/token_rows.h"

#include <math.h>
#include <string.h>

static int64_t product(const lb_layout *layout, int from)
{
    int64_t n = 1;
    for (int d = from; d < layout->ndim; d++) n *= layout->shape[d];
    return n;
}

bool lb_token_rows_of(const lb_layout *layout, int64_t rows, int64_t columns, bool weighed, lb_token_rows *shape)
{
    const int64_t *sizes = layout->shape;
    const int n = layout->ndim;
    bool square = false;
    if (n < 2) return false;
    if (sizes[0] == rows && sizes[1] == columns)
        *shape = (lb_token_rows){rows, 1, columns, product(layout, 2), false};
    else if (n == 4 && sizes[0] == rows && sizes[2] == columns)
        *shape = (lb_token_rows){rows, sizes[1], columns, sizes[3], false}, square = sizes[3] == columns;
    else if (n == 3 && sizes[1] == columns && sizes[0] % rows == 0)
        *shape = (lb_token_rows){rows, sizes[0] / rows, columns, sizes[2], false}, square = sizes[2] == columns;
    else if (n == 3 && sizes[0] == rows && sizes[2] == columns)
        *shape = (lb_token_rows){rows, sizes[1], columns, 1, false};
    else if (n >= 3 && sizes[0] == columns && sizes[1] == rows)
        *shape = (lb_token_rows){rows, 1, columns, product(layout, 2), true};
    else if (sizes[0] == rows * columns)
        *shape = (lb_token_rows){rows, 1, columns, product(layout, 1), false};
    else
        return false;
    square |= shape->heads == 1 && shape->inner == columns && n > 2;
    return (!square || weighed) && lb_layout_numel(layout) > 0;
}

/* Of (-1, 1), a function of the position alone. */
static double sign_of(int64_t i)
{
    uint64_t x = (uint64_t)i * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0xD1B54A32D192ED03); /* splitmix64 */
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-52 - 1;
}

static void add(lb_token_sum *sum, double x, int64_t i)
{
    if (!(fabs(x) < 1e30)) return;
    sum->sum += x * sign_of(i), sum->norm += x * x;
}

lb_token_sum lb_token_rows_sum(const double *numbers, int64_t n, int64_t stride)
{
    lb_token_sum sum = {0, 0};
    for (int64_t i = 0; i < n; i++) add(&sum, numbers[i * stride], i);
    sum.norm = sqrt(sum.norm);
    return sum;
}

void lb_token_rows_add_up(const lb_token_rows *shape, const double *numbers, lb_token_sum *sums)
{
    for (int64_t i = 0; i < shape->rows * shape->columns; i++) sums[i] = (lb_token_sum){0, 0};
    for (int64_t row = 0; row < shape->rows; row++)
        for (int64_t head = 0; head < shape->heads; head++)
            for (int64_t column = 0; column < shape->columns; column++) {
                const int64_t at = shape->tokens_first ? column * shape->rows + row
                                                       : (row * shape->heads + head) * shape->columns + column;
                const double *x = numbers + at * shape->inner;
                for (int64_t i = 0; i < shape->inner; i++)
                    add(&sums[row * shape->columns + column], x[i], head * shape->inner + i);
            }
    for (int64_t i = 0; i < shape->rows * shape->columns; i++) sums[i].norm = sqrt(sums[i].norm);
}

double lb_token_rows_gap(const lb_token_sum *a, const lb_token_sum *b)
{
    const double size = fmax(a->norm, b->norm);
    return size > 0 ? fabs(a->sum - b->sum) / size : 0;
}
