/* Numbers of NCCL's types, read, rounded and joined by arithmetic of the stand-in's own. */
#ifndef LB_TESTS_STANDIN_NUMBERS_H
#define LB_TESTS_STANDIN_NUMBERS_H
#include <stdbool.h>
#include <stdint.h>

/* Of integers of any width `i`, of f64 `d`, of narrower floats `f`. */
typedef union element {
    float f;
    double d;
    int64_t i;
} element;

/* Bytes of an element, by type. */
static const int standin_widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

element standin_load(int dtype, const void *from);
void standin_store(int dtype, void *to, element e);
element standin_rounded(int dtype, element e);
/* Not f64. */
bool standin_is_float(int dtype);
/* The result of one addition, multiplication, maximum or minimum, rounded to the type. */
element standin_join(int dtype, int op, element a, element b);

#endif
