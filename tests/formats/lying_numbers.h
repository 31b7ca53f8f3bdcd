/* Numbers that say little in as many bytes as a size, an offset or a length may have. */
#ifndef LB_TESTS_LYING_NUMBERS_H
#define LB_TESTS_LYING_NUMBERS_H
#include <stdint.h>
#include <string.h>

static void lie(uint8_t *at, size_t room, unsigned which)
{
    static const uint8_t lies[][8] = {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
                                      {0},
                                      {0x7f, 0xff, 0xff, 0xff},
                                      {0xff, 0xff, 0xff, 0x7f},
                                      {0xdd, 0xff, 0xff, 0xff, 0xff},
                                      {0xdf, 0x7f, 0xff, 0xff, 0xff},
                                      {0xc6, 0xff, 0xff, 0xff, 0xff},
                                      {'9', '9', '9', '9', '9', '9', '9', '9'}};
    static const uint8_t widths[] = {8, 8, 4, 4, 5, 5, 5, 8};
    size_t n = widths[which % 8];
    memcpy(at, lies[which % 8], n < room ? n : room);
}
#endif
