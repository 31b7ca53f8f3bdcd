/* Parts of scans: see scan_parts.h. */
#include "composites/scan_parts.h"

uint32_t lb_scan_maker(const lb_recogniser *t, lb_reading *r)
{
    static const char *const copies[] = {"_to_copy", "clone", "contiguous", NULL};
    uint32_t maker = r->op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, *r);
    while (maker != LB_NONE && lb_recogniser_is_any(t, maker, copies) && lb_recogniser_arg(t, maker, 0).op != LB_NONE) {
        *r = lb_recogniser_arg(t, maker, 0);
        maker = lb_recogniser_maker(t, *r);
    }
    return maker;
}

uint32_t lb_scan_maker_of_arg(const lb_recogniser *t, uint32_t op, uint32_t i)
{
    lb_reading r = lb_recogniser_arg(t, op, i);
    return lb_scan_maker(t, &r);
}

const lb_layout *lb_scan_layout(const lb_recogniser *t, uint32_t value)
{
    return &lb_recogniser_value(t, value)->layout;
}

bool lb_scan_is_product(const lb_recogniser *t, uint32_t op)
{
    static const char *const names[] = {"bmm", "mm", NULL};
    return lb_recogniser_is_any(t, op, names);
}

bool lb_scan_is_exp(const lb_recogniser *t, uint32_t op)
{
    return lb_recogniser_is(t, op, "exp");
}

bool lb_scan_factors(const lb_recogniser *t, lb_reading r, lb_reading *leaves, uint32_t *n, uint32_t room)
{
    lb_reading behind = r;
    const uint32_t maker = lb_scan_maker(t, &behind);
    if (maker != LB_NONE && lb_recogniser_is(t, maker, "mul") && lb_recogniser_arg(t, maker, 1).op != LB_NONE)
        return lb_scan_factors(t, lb_recogniser_arg(t, maker, 0), leaves, n, room) &&
               lb_scan_factors(t, lb_recogniser_arg(t, maker, 1), leaves, n, room);
    if (*n == room) return false;
    leaves[(*n)++] = r;
    return true;
}
