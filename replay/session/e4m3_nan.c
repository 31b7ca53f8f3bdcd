/* See e4m3_nan.h. Names are those of capture/lastbit/receipt.py. */
#include "session/e4m3_nan.h"

#include <lastbit/json_text.h>
#include <stdio.h>

bool lb_e4m3_nan_of(lb_capture *capture, int32_t rank)
{
    const char *table = lb_capture_table(capture, rank, "receipt");
    json_t *receipt = table ? json_loads(table, 0, NULL) : NULL;
    const json_t *versions = json_object_get(receipt, "versions");
    const char *torch = json_string_value(json_object_get(versions, "torch"));
    int major = 0, minor = 0;
    const bool known = torch && sscanf(torch, "%d.%d", &major, &minor) == 2;
    json_decref(receipt);
    return known && (major < 2 || (major == 2 && minor < 13));
}
