/* See allowed_tf32.h. Names of settings are those of capture/lastbit/receipt.py. */
#include "session/allowed_tf32.h"

#include <lastbit/json_text.h>
#include <string.h>

static bool says(const json_t *torch, const char *key, const char *word)
{
    const char *text = json_string_value(json_object_get(torch, key));
    return text && strcmp(text, word) == 0;
}

lb_allowed_tf32 lb_allowed_tf32_of(lb_capture *capture, int32_t rank)
{
    const char *table = lb_capture_table(capture, rank, "receipt");
    json_t *receipt = table ? json_loads(table, 0, NULL) : NULL;
    const json_t *torch = json_object_get(receipt, "torch");
    const lb_allowed_tf32 allowed = {
        .products = json_is_true(json_object_get(torch, "tf32_matmul")) ||
                    says(torch, "fp32_precision_matmul", "tf32") || says(torch, "matmul_precision", "high") ||
                    says(torch, "matmul_precision", "medium"),
        .convolutions =
            json_is_true(json_object_get(torch, "tf32_cudnn")) || says(torch, "fp32_precision_conv", "tf32"),
    };
    json_decref(receipt);
    return allowed;
}
