/* Launch rules: what libraries' own descriptions say of some shapes. */
#include "invariance/launch_rule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const lb_launch_rule *rule(const char *name)
{
    const lb_launch_rule *r = lb_launch_rules();
    while (r->name && strcmp(r->name, name)) r++;
    assert_non_null(r->name);
    return r;
}

static void assert_launch(const char *name, lb_launch_shape shape, const char *expected)
{
    char text[LB_LAUNCH_TEXT];
    assert_true(rule(name)->choose(&shape, text));
    assert_string_equal(text, expected);
}

#define PRODUCT(ROWS, COLUMNS, TERMS, SMS)                                                                             \
    (lb_launch_shape)                                                                                                  \
    {                                                                                                                  \
        .rows = ROWS, .columns = COLUMNS, .terms = TERMS, .element_bytes = 2, .multiprocessors = SMS                   \
    }
#define DECODE(ROWS, HEADS, KEY_HEADS, KEYS, SIZE, SMS)                                                                \
    (lb_launch_shape)                                                                                                  \
    {                                                                                                                  \
        .rows = ROWS, .heads = HEADS, .key_heads = KEY_HEADS, .queries = 1, .keys = KEYS, .size = SIZE,                \
        .element_bytes = 2, .multiprocessors = SMS                                                                     \
    }

static void split_k_fills_the_multiprocessors(void **state)
{
    (void)state;
    assert_launch("splitk", PRODUCT(1, 4096, 4096, 132), "splitk:4");    /* 32 tiles */
    assert_launch("splitk", PRODUCT(128, 4096, 4096, 132), "splitk:4");  /* as many, of more rows */
    assert_launch("splitk", PRODUCT(256, 4096, 4096, 132), "splitk:2");  /* 64 */
    assert_launch("splitk", PRODUCT(1024, 4096, 4096, 132), "splitk:1"); /* 256: more than enough */
    assert_launch("splitk", PRODUCT(1, 128, 4096, 132), "splitk:16");    /* four blocks of 64 terms at least */
    assert_launch("splitk", PRODUCT(1, 128, 100, 132), "splitk:1");
}

static void stream_k_has_a_share_per_multiprocessor(void **state)
{
    (void)state;
    assert_launch("streamk", PRODUCT(64, 4096, 4096, 132), "streamk:132");
    assert_launch("streamk", PRODUCT(64, 128, 1024, 132), "streamk:32"); /* one tile of 32 blocks */
    assert_launch("streamk", PRODUCT(200, 128, 1024, 132), "streamk:64");
}

static void flash_attention_fills_to_85_percent_of_the_best(void **state)
{
    (void)state;
    /* Its own example: of 48 blocks at 108 places, 2 splits (0.89) and not 3 (0.67). */
    assert_launch("flash-attention", DECODE(3, 16, 16, 1 << 14, 64, 54), "splitkv:2,block:256,exp:2");
    /* 0.8 of the places are enough; 87 blocks of 108 are that. */
    assert_launch("flash-attention", DECODE(87, 1, 1, 1 << 14, 128, 54), "flash:128,exp:2");
    assert_launch("flash-attention", DECODE(86, 1, 1, 1 << 14, 128, 54), "splitkv:5,block:128,exp:2");
    /* Heads that share keys are queries of one head, up to 64 of them in a block. */
    assert_launch("flash-attention", DECODE(3, 128, 16, 1 << 14, 64, 54), "splitkv:2,block:256,exp:2");
    assert_launch("flash-attention", DECODE(1, 8, 8, 200, 64, 132), "flash:256,exp:2"); /* one block of keys */
}

static void flashinfer_takes_the_fewest_pages_that_fit(void **state)
{
    (void)state;
    assert_launch("flashinfer", DECODE(4, 8, 8, 1024, 64, 132), "splitkv:8,block:128,exp:2");
    assert_launch("flashinfer", DECODE(16, 8, 8, 1024, 64, 132), "splitkv:2,block:512,exp:2");
    assert_launch("flashinfer", DECODE(33, 8, 8, 1024, 64, 132), "flash:1024,exp:2");
    lb_launch_shape prefill = DECODE(4, 8, 8, 1024, 64, 132);
    char text[LB_LAUNCH_TEXT];
    prefill.queries = 5;
    assert_false(rule("flashinfer")->choose(&prefill, text));
}

static void paged_attention_has_partitions_of_512_keys(void **state)
{
    (void)state;
    assert_launch("paged", DECODE(64, 8, 8, 1024, 64, 132), "splitkv:2,block:512,p:f32");
    assert_launch("paged", DECODE(65, 8, 8, 1024, 64, 132), "flash:0,p:f32"); /* 520 heads */
    assert_launch("paged", DECODE(1, 8, 8, 512, 64, 132), "flash:0,p:f32");
    assert_launch("paged", DECODE(65, 8, 8, 8193, 64, 132), "splitkv:17,block:512,p:f32");
}

static void rows_get_fewer_threads_the_more_there_are(void **state)
{
    (void)state;
    assert_launch("blocks", PRODUCT(1, 1, 1024, 132), "butterfly:512");
    assert_launch("blocks", PRODUCT(3, 1, 1024, 132), "butterfly:256");
    assert_launch("blocks", PRODUCT(16, 1, 1024, 132), "butterfly:32");
    assert_launch("blocks", PRODUCT(5000, 1, 1024, 132), "butterfly:32");
    assert_launch("blocks", PRODUCT(5000, 1, 8192, 132), "butterfly:512"); /* a warp would have 256 each */
    assert_launch("blocks", PRODUCT(5000, 1, 20, 132), "butterfly:16");
}

static void softmax_looks_at_the_row_or_at_the_batch(void **state)
{
    (void)state;
    assert_launch("persistent", PRODUCT(1, 1, 1024, 132), "warp");
    assert_launch("persistent", PRODUCT(4096, 1, 1024, 132), "warp");
    assert_launch("persistent", PRODUCT(1, 1, 4096, 132), "two-pass,sum:butterfly:512x8");
    assert_launch("vocabulary", PRODUCT(128, 1, 32000, 132), "online:8192");
    assert_launch("vocabulary", PRODUCT(129, 1, 32000, 132), "two-pass,sum:butterfly:1024x8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_k_fills_the_multiprocessors),
        cmocka_unit_test(stream_k_has_a_share_per_multiprocessor),
        cmocka_unit_test(flash_attention_fills_to_85_percent_of_the_best),
        cmocka_unit_test(flashinfer_takes_the_fewest_pages_that_fit),
        cmocka_unit_test(paged_attention_has_partitions_of_512_keys),
        cmocka_unit_test(rows_get_fewer_threads_the_more_there_are),
        cmocka_unit_test(softmax_looks_at_the_row_or_at_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
