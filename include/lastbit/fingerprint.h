/* Fingerprints: 128 bits of a tensor's numbers, each with its place, that add up over shards.
 *
 * Simplest use:
 *
 *     lb_fingerprint whole = LB_FINGERPRINT_INIT;
 *     const int64_t shape[] = {32, 16}, upper[] = {0, 0}, lower[] = {16, 0};  // x: rows 0 to 15 of it, y: 16 to 31
 *     char text[33];
 *     LB_TRY(lb_fingerprint_block(LB_FINGERPRINT_RAW, x, shape, upper, &whole, err));
 *     LB_TRY(lb_fingerprint_block(LB_FINGERPRINT_RAW, y, shape, lower, &whole, err));
 *     lb_fingerprint_format(whole, text);
 *
 * A digest (digest.h) says whether two buffers hold the same bytes. A fingerprint is a sum over elements, so that the
 * fingerprints of any parts that tile a tensor add up to the tensor's, however it is cut: FSDP over 8 ranks, tensor
 * parallelism by rows or by columns, one file. With w the bits of an element, i its index in the whole tensor
 * (row-major, from 0) and all arithmetic modulo 2^64:
 *
 *     a = sum of mix(w ^ ((i + 1) * P1 + tag * P2), p1, p2)       P1 = 0x9E3779B185EBCA87   p1 = 0x9E3779B1
 *     b = sum of mix(w ^ ((i + 1) * P2 + tag * P3), p3, p5)       P2 = 0xC2B2AE3D27D4EB4F   p2 = 0x85EBCA77
 *                                                                 P3 = 0x165667B19E3779F9   p3 = 0xC2B2AE3D
 *                                                                                           p5 = 0x165667B1
 *     mix(x, p, q): x ^= x >> 32; x *= p; x ^= x >> 29; x *= q; x ^= x >> 32
 *
 * The constants are the primes of xxHash (PRIME64_1, 2 and 3, PRIME32_1, 2, 3 and 5: Collet, doc/xxhash_spec.md), which
 * have mixed bits since 2012; those of 32 bits keep a product at two multiplications of vector units. The scheme
 * "multiply and shift twice" is that of MurmurHash3's finaliser (Appleby). For a given i, w -> mix is one to one: a
 * change of one element always changes both sums, and other changes go unseen with a probability of about 2^-128. A
 * sum has no order, so that ranks and threads add in any. It finds accidents, not adversaries.
 *
 *   LB_FINGERPRINT_RAW       w: the bits as they are, zero-extended; tag: the dtype's code. -0 is not 0.
 *   LB_FINGERPRINT_NUMBERS   w: the bits of the number as f64, tag 0, so that a bf16 tensor and its f32 copy agree.
 *                            Every NaN is 0x7FF8000000000000 and -0 is 0, since casts keep neither (e4m3fnuz has no
 *                            -0). Integers of 64 bits beyond 2^53 are rounded.
 *
 * A complex element is two: i becomes 2 i for its real part and 2 i + 1 for its imaginary part. The shape is no part of
 * it, since row-major indices do not change when a tensor is viewed in another shape (flat, as FSDP1 holds it): code
 * that compares tensors also compares their shapes. Elements that are zero count, so that a part that is absent and a
 * part of zeros differ.
 */
#ifndef LASTBIT_FINGERPRINT_H
#define LASTBIT_FINGERPRINT_H

#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lb_fingerprint {
    uint64_t a, b;
} lb_fingerprint;
#define LB_FINGERPRINT_INIT {0, 0} /* of no element */

typedef enum lb_fingerprint_form { LB_FINGERPRINT_RAW, LB_FINGERPRINT_NUMBERS } lb_fingerprint_form;

static inline bool lb_fingerprint_equal(lb_fingerprint x, lb_fingerprint y)
{
    return x.a == y.a && x.b == y.b;
}
/* Of two parts that share no element. */
static inline lb_fingerprint lb_fingerprint_add(lb_fingerprint x, lb_fingerprint y)
{
    x.a += y.a, x.b += y.b;
    return x;
}

/* Adds `n` dense elements, of which the first is number `first` of the whole tensor. A valid dtype; elements of e2m1
 * begin at a low nibble. The same bits on every processor and in any thread. */
LB_API void lb_fingerprint_add_run(lb_fingerprint_form form, lb_dtype dtype, const void *elements, size_t n,
                                   uint64_t first, lb_fingerprint *sum);
/* Adds a block, which may be strided, of a tensor of the shape `whole` (as many dimensions), in which the block's first
 * element stands at `start`. LB_ERR_INVALID where it leaves the whole or either has no valid shape, LB_ERR_UNSUPPORTED
 * for rows of e2m1 that begin within a byte; `sum` is then as it was. */
LB_API lb_status lb_fingerprint_block(lb_fingerprint_form form, const lb_tensor *block, const int64_t *whole,
                                      const int64_t *start, lb_fingerprint *sum, lb_err *err);
/* Of a whole tensor. */
LB_API lb_status lb_fingerprint_tensor(lb_fingerprint_form form, const lb_tensor *tensor, lb_fingerprint *fingerprint,
                                       lb_err *err);
/* A summand for one fingerprint of many tensors: mixed with XXH3-64 of the name, so that two tensors that exchange
 * their numbers are seen. */
LB_API lb_fingerprint lb_fingerprint_named(lb_fingerprint fingerprint, const char *name);

/* 32 hexadecimal digits and a NUL: a, then b. */
LB_API void lb_fingerprint_format(lb_fingerprint fingerprint, char text[33]);
LB_API lb_status lb_fingerprint_parse(const char *text, lb_fingerprint *fingerprint, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
