/* What tests of the writer of files begin with: a folder of their own, calls that can be made to fail, and one report
 * for all of a test. */
#ifndef LB_TESTS_OUTPUT_TESTS_H
#define LB_TESTS_OUTPUT_TESTS_H

#include "cmocka_first.h"

#include "failing_calls.h"
#include "scratch_folder.h"

#include <lastbit/output.h>

static lb_err err;
#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        if ((expression) != LB_OK) fail_msg("%s", err.message);                                                        \
    } while (0)

static int begin(void **state)
{
    no_failures();
    err = (lb_err)LB_ERR_INIT;
    return make_scratch(state);
}

#endif
