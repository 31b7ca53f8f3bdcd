/* Digest trees: see lastbit/digest.h. Hashing itself is libxxhash's; what is ours is the order of leaves and words. */
#include "tensors/dense_pieces.h"

#define XXH_STATIC_LINKING_ONLY /* for a state on the stack: no allocation inside the host's process */
#include <xxhash.h>

/* The words that are hashed last. Short ones, nearly all, are hashed at once; a state costs ten times a small
 * tensor. */
typedef struct sequence {
    uint64_t words[64];
    size_t n;
    bool streaming;
    XXH3_state_t state;
} sequence;

static void sequence_flush(sequence *sequence)
{
    if (!sequence->streaming) XXH3_128bits_reset(&sequence->state);
    sequence->streaming = true;
    XXH3_128bits_update(&sequence->state, sequence->words, sequence->n * sizeof sequence->words[0]);
    sequence->n = 0;
}

static void sequence_add(sequence *sequence, uint64_t word)
{
    if (sequence->n == sizeof sequence->words / sizeof sequence->words[0]) sequence_flush(sequence);
    sequence->words[sequence->n++] = word;
}

static lb_digest sequence_end(sequence *sequence)
{
    XXH128_hash_t hash;
    if (sequence->streaming) {
        sequence_flush(sequence);
        hash = XXH3_128bits_digest(&sequence->state);
    } else {
        hash = XXH3_128bits(sequence->words, sequence->n * sizeof sequence->words[0]);
    }
    lb_digest digest = {hash.high64, hash.low64};
    if (lb_digest_is_none(digest)) digest.lo = 1; /* (0, 0) is taken */
    return digest;
}

static void sequence_begin(sequence *sequence, uint64_t total_bytes)
{
    sequence->n = 0;
    sequence->streaming = false;
    sequence_add(sequence, total_bytes);
}

uint64_t lb_digest_leaf(const void *bytes, size_t n, uint64_t number)
{
    return XXH3_64bits_withSeed(bytes, n, number);
}

static void add_leaves(sequence *sequence, const char *bytes, size_t n)
{
    for (uint64_t leaf = 0; n > 0; leaf++) {
        size_t take = n < LB_DIGEST_LEAF ? n : LB_DIGEST_LEAF;
        sequence_add(sequence, lb_digest_leaf(bytes, take, leaf));
        bytes += take;
        n -= take;
    }
}

lb_digest lb_digest_bytes(const void *bytes, size_t n)
{
    sequence sequence;
    sequence_begin(&sequence, n);
    add_leaves(&sequence, (const char *)bytes, n);
    return sequence_end(&sequence);
}

/* What makes it the digest of this shape. */
static void add_shape(sequence *sequence, const lb_tensor *tensor)
{
    sequence_add(sequence, tensor->dtype);
    sequence_add(sequence, (uint64_t)tensor->layout.ndim);
    for (int d = 0; d < tensor->layout.ndim; d++) sequence_add(sequence, (uint64_t)tensor->layout.shape[d]);
}

lb_digest lb_digest_of_leaves(const uint64_t *leaves, size_t n, const lb_tensor *tensor)
{
    sequence sequence;
    sequence_begin(&sequence, lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout)));
    for (size_t i = 0; i < n; i++) sequence_add(&sequence, leaves[i]);
    add_shape(&sequence, tensor);
    return sequence_end(&sequence);
}

lb_digest lb_digest_of_byte_leaves(const uint64_t *leaves, size_t n, uint64_t size)
{
    sequence sequence;
    sequence_begin(&sequence, size);
    for (size_t i = 0; i < n; i++) sequence_add(&sequence, leaves[i]);
    return sequence_end(&sequence);
}

lb_digest lb_digest_tensor(const lb_tensor *tensor)
{
    const lb_layout *layout = &tensor->layout;
    int64_t n = lb_layout_numel(layout);
    size_t width = lb_dtype_bits(tensor->dtype) / 8;
    bool dense = n >= 0 && lb_layout_is_contiguous(layout);
    /* No digest beats a wrong one: nonsense sizes, and strided elements smaller than a byte. */
    if (n < 0 || lb_dtype_bits(tensor->dtype) == 0 || (width == 0 && !dense)) return (lb_digest){0, 0};
    size_t size = lb_dtype_bytes(tensor->dtype, (size_t)n);

    sequence sequence;
    sequence_begin(&sequence, size);
    if (dense) {
        add_leaves(&sequence, (const char *)tensor->data, size);
    } else {
        lb_dense_pieces pieces;
        uint64_t leaf = 0;
        for (lb_dense_begin(&pieces, tensor); lb_dense_next(&pieces); leaf++)
            sequence_add(&sequence, lb_digest_leaf(pieces.bytes, pieces.elements * width, leaf));
    }
    add_shape(&sequence, tensor);
    return sequence_end(&sequence);
}

void lb_digest_format(lb_digest digest, char text[33])
{
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        uint64_t word = i < 16 ? digest.hi : digest.lo;
        text[i] = hex[word >> (60 - 4 * (i % 16)) & 15];
    }
    text[32] = '\0';
}

lb_status lb_digest_parse(const char *text, lb_digest *digest, lb_err *err)
{
    uint64_t word[2] = {0, 0};
    int i = 0;
    for (; i < 32 && text[i]; i++) {
        char c = text[i];
        int nibble = c >= '0' && c <= '9'   ? c - '0'
                     : c >= 'a' && c <= 'f' ? c - 'a' + 10
                     : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                            : -1;
        if (nibble < 0) break;
        word[i / 16] = word[i / 16] << 4 | (uint64_t)nibble;
    }
    if (i < 32 || text[32])
        return lb_fail(err, LB_ERR_INVALID, "'%.40s' is not a digest: 32 hexadecimal digits are", text);
    *digest = (lb_digest){word[0], word[1]};
    return LB_OK;
}
