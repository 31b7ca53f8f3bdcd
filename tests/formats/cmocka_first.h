/* cmocka wants these four before itself. */
#ifndef LB_TESTS_CMOCKA_FIRST_H
#define LB_TESTS_CMOCKA_FIRST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#endif
