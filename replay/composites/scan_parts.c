/* Parts of scans: see scan_parts.h. */
#include "composites/scan_parts.h"

uint32_t lb_scan_maker(const lb_recogniser *recogniser, lb_reading *reading)
{
    static const char *const copies[] = {"_to_copy", "clone", "contiguous", NULL};
    uint32_t maker = reading->op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, *reading);
    while (maker != LB_NONE && lb_recogniser_is_any(recogniser, maker, copies) &&
           lb_recogniser_arg(recogniser, maker, 0).op != LB_NONE) {
        *reading = lb_recogniser_arg(recogniser, maker, 0);
        maker = lb_recogniser_maker(recogniser, *reading);
    }
    return maker;
}

uint32_t lb_scan_maker_of_arg(const lb_recogniser *recogniser, uint32_t op, uint32_t i)
{
    lb_reading reading = lb_recogniser_arg(recogniser, op, i);
    return lb_scan_maker(recogniser, &reading);
}

const lb_layout *lb_scan_layout(const lb_recogniser *recogniser, uint32_t value)
{
    return &lb_recogniser_value(recogniser, value)->layout;
}

bool lb_scan_is_product(const lb_recogniser *recogniser, uint32_t op)
{
    static const char *const names[] = {"bmm", "mm", NULL};
    return lb_recogniser_is_any(recogniser, op, names);
}

bool lb_scan_is_exp(const lb_recogniser *recogniser, uint32_t op)
{
    return lb_recogniser_is(recogniser, op, "exp");
}

bool lb_scan_factors(const lb_recogniser *recogniser, lb_reading reading, lb_reading *leaves, uint32_t *n,
                     uint32_t room)
{
    lb_reading behind = reading;
    const uint32_t maker = lb_scan_maker(recogniser, &behind);
    if (maker != LB_NONE && lb_recogniser_is(recogniser, maker, "mul") &&
        lb_recogniser_arg(recogniser, maker, 1).op != LB_NONE)
        return lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, maker, 0), leaves, n, room) &&
               lb_scan_factors(recogniser, lb_recogniser_arg(recogniser, maker, 1), leaves, n, room);
    if (*n == room) return false;
    leaves[(*n)++] = reading;
    return true;
}
