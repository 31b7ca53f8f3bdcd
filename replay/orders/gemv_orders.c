/* Kernels for one row: see gemv_orders.h. Up to COLUMNS results are computed side by side, each by the operations that
 * its order has. */
#include "orders/gemv_orders.h"

#include <lastbit/processor.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { COLUMNS = 32 };

#define PER_ISA(...) LB_PER_ISA(__VA_ARGS__) /* expands NAME before the name is pasted */
#define REAL_TEMPLATE "orders/gemv_orders_real.h"
#include "functions/real_template.h"
