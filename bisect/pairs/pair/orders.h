/* Names of the summation orders that a search tries, grouped into families; each search concatenates the families that
 * it needs. Likely orders come first: where several orders have the same tree of additions, the result is named after
 * the first. Orders of sums over ranks are in orders/collective_order.h. */
#ifndef LB_BISECT_ORDERS_H
#define LB_BISECT_ORDERS_H

#define LB_ORDERS_PLAIN                                                                                                \
    "torch:1 torch:2 torch:4 torch:3 torch:8 torch:6 torch:16 torch:12 cascade:8 sequential pairwise numpy "           \
    "exact"
/* With a parameter, which a few elements fit by chance (cascade:8 is what torch itself does with rows). */
#define LB_ORDERS_CASCADE "cascade:4 cascade:16 cascade:1"
#define LB_ORDERS_LANES "lanes:4 lanes:8 lanes:16 lanes:32 lanes:2 lanes:64 lanes:128 lanes:256"
#define LB_ORDERS_BLOCKED                                                                                              \
    "blocked:8 blocked:16 blocked:32 blocked:64 blocked:128 blocked:256 blocked:512 blocked:1024 "                     \
    "blocked:4 blocked:48 blocked:96 blocked:192 blocked:320 blocked:384 blocked:2048 "                                \
    "blocked:4096"
#define LB_ORDERS_OF_PRODUCTS                                                                                          \
    "dpbf16 torchdot tdpbf16 tdpbf16:2 tdpbf16:3 tdpbf16:4 tdpbf16:5 tdpbf16:6 tdpbf16:7 tdpbf16:8"
/* Of products, MKL's: of matrices, then of single rows with each set of instructions. */
#define LB_ORDERS_OF_ROWS                                                                                              \
    "halved:192 lanes:1 folded:4,aligned:0,tail:after,rounded folded:16,head:1,tail:again eights "                     \
    "folded:8,pairs folded:4,head:1,tail:after,rounded folded:4,tail:after,rounded"
#define LB_ORDERS_SPLITK                                                                                               \
    "splitk:2 splitk:3 splitk:4 splitk:5 splitk:6 splitk:7 splitk:8 splitk:12 splitk:16 splitk:32 splitk:64"
#define LB_ORDERS_BUTTERFLY                                                                                            \
    "butterfly:32 butterfly:64 butterfly:128 butterfly:256 butterfly:512 butterfly:1024 "                              \
    "butterfly:32x4 butterfly:64x4 butterfly:128x4 butterfly:256x4 butterfly:512x4 butterfly:32x8 "                    \
    "butterfly:64x8 butterfly:128x8 butterfly:256x8 butterfly:512x8"

#endif
