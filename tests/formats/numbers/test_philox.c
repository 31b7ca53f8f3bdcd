/* The numbers of stochastic rounding: Random123's known answers, and the vector code against single blocks. */
#include "cmocka_first.h"

#include <lastbit/processor.h>

#include <string.h>

#include "numbers/philox.h"

/* Random123 1.14, tests/kat_vectors: "philox4x32 10", counter words then key words then result words. */
static void known_answers_of_random123(void **state)
{
    (void)state;
    static const struct {
        uint64_t counter, stream, key;
        uint32_t words[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t words[4];
        lb_philox(known[i].key, known[i].counter, known[i].stream, words);
        assert_memory_equal(words, known[i].words, sizeof words);
    }
}

static void every_element_draws_its_own_word_under_every_instruction_set(void **state)
{
    (void)state;
    static const uint64_t counters[] = {0, 1, 3, 509, (1ull << 34) - 6, UINT64_MAX - 40};
    static const size_t counts[] = {1, 4, 61, 200, LB_PHILOX_DRAWN};
    for (size_t c = 0; c < sizeof counters / sizeof *counters; c++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            for (int isa = LB_ISA_SCALAR; isa <= LB_ISA_AVX512; isa++) {
                const lb_cast cast = {.rounding = LB_STOCHASTIC, .seed = 0xfedcba9876543210, .counter = counters[c]};
                random_source source = {.cast = &cast};
                lb_processor_limit((lb_isa)isa);
                const uint32_t *drawn = random_draw(&source, 2, counts[k]);
                for (size_t i = 0; i < counts[k]; i++) {
                    uint32_t words[4];
                    const uint64_t number = counters[c] + 2 + i;
                    lb_philox(cast.seed, (counters[c] + 2) / 4 + ((counters[c] + 2) % 4 + i) / 4, 0, words);
                    assert_int_equal(drawn[i], words[number % 4]);
                }
            }
    lb_processor_limit(LB_ISA_AVX512);
}

static void other_roundings_draw_nothing(void **state)
{
    (void)state;
    const lb_cast cast = {.rounding = LB_RZ};
    random_source source = {.cast = &cast};
    assert_null(random_draw(&source, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers_of_random123),
        cmocka_unit_test(every_element_draws_its_own_word_under_every_instruction_set),
        cmocka_unit_test(other_roundings_draw_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
