/* Solving by one column of the triangle after the other: see triangle.h. */
#include "algebra/triangle.h"

void lb_triangle_solve(lb_matrix_columns a, bool upper, bool unit, double *x)
{
    for (int64_t k = 0; k < a.n; k++) {
        const int64_t j = upper ? a.n - 1 - k : k;
        const double *column = a.x + j * a.m;
        if (!unit) x[j] /= column[j];
        if (upper)
            lb_matrix_add_scaled(x, -x[j], column, j);
        else
            lb_matrix_add_scaled(x + j + 1, -x[j], column + j + 1, a.n - j - 1);
    }
}

void lb_triangle_solve_transposed(lb_matrix_columns a, bool upper, bool unit, double *x)
{
    for (int64_t k = 0; k < a.n; k++) {
        const int64_t j = upper ? k : a.n - 1 - k;
        const double *column = a.x + j * a.m;
        x[j] -= upper ? lb_matrix_dot(column, x, j) : lb_matrix_dot(column + j + 1, x + j + 1, a.n - j - 1);
        if (!unit) x[j] /= column[j];
    }
}

bool lb_triangle_is_singular(lb_matrix_columns a)
{
    const int64_t k = a.m < a.n ? a.m : a.n;
    for (int64_t j = 0; j < k; j++)
        if (a.x[j * a.m + j] == 0) return true;
    return false;
}
