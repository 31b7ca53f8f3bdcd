/* Pickles that end too early, and pickles that are wrong otherwise. */
#include "cmocka_first.h"

#include "foreign/pickle_tree.h"

#include <stdlib.h>
#include <string.h>

/* {"layers.0.w": [1, 2.5, None, True], "b.": ("x.", {"y.": 7}), "module": …} as Python's pickle writes it: full stops,
 * which are also the opcode that ends a pickle, stand all over it. */
static const char framed[] = /* protocol 4 */
    "\200\004\225\110\000\000\000\000\000\000\000\175\224\050\214\012\154\141\171\145\162\163\056\060"
    "\056\167\224\135\224\050\113\001\107\100\004\000\000\000\000\000\000\116\210\145\214\002\142\056"
    "\224\214\002\170\056\224\175\224\214\002\171\056\224\113\007\163\206\224\214\006\155\157\144\165"
    "\154\145\224\217\224\050\113\003\220\165\056";
static const char plain[] = /* protocol 2 */
    "\200\002\175\161\000\050\130\012\000\000\000\154\141\171\145\162\163\056\060\056\167\161\001\135"
    "\161\002\050\113\001\107\100\004\000\000\000\000\000\000\116\210\145\130\002\000\000\000\142\056"
    "\161\003\130\002\000\000\000\170\056\161\004\175\161\005\130\002\000\000\000\171\056\161\006\113"
    "\007\163\206\161\007\130\006\000\000\000\155\157\144\165\154\145\161\010\130\001\000\000\000\163"
    "\161\011\165\056";

/* A copy without room behind it, so that reading further is seen. */
static bool is_cut(const char *bytes, size_t size)
{
    char *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    const bool cut = lb_pickle_is_cut(copy, size);
    free(copy);
    return cut;
}

static void a_pickle_that_was_cut_anywhere_says_so(void **state)
{
    (void)state;
    for (size_t size = 0; size < sizeof framed - 1; size++) assert_true(is_cut(framed, size));
    for (size_t size = 0; size < sizeof plain - 1; size++) assert_true(is_cut(plain, size));
    assert_false(is_cut(framed, sizeof framed - 1));
    assert_false(is_cut(plain, sizeof plain - 1));
}

static void a_wrong_length_within_a_whole_frame_is_no_cut(void **state)
{
    (void)state;
    char wrong[sizeof framed];
    memcpy(wrong, framed, sizeof framed);
    char *text = memchr(wrong, '\214', sizeof framed);
    assert_non_null(text);
    text[1] = (char)250; /* SHORT_BINUNICODE longer than the file */
    assert_false(is_cut(wrong, sizeof framed - 1));
    wrong[2 + 9] = (char)0xff; /* no opcode */
    assert_false(is_cut(wrong, sizeof framed - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pickle_that_was_cut_anywhere_says_so),
        cmocka_unit_test(a_wrong_length_within_a_whole_frame_is_no_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
