/* Byte planes and zstd: see coding.h. */
#include "archive/coding.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* for ZSTD_getFrameHeader */
#include <zstd.h>
#include <zstd_errors.h>

static bool is_known(lb_coding coding)
{
    return coding == 0 || coding == 1 || coding == 2 || coding == 4 || coding == 8 || coding == 16;
}

lb_coding lb_coding_for(lb_dtype dtype)
{
    size_t bits = lb_dtype_bits(lb_dtype_part(dtype));
    return bits > 8 ? (lb_coding)(bits / 8) : 1;
}

/* What these frames say they hold, and at most can: a block gives up to 128 KiB. False when they are no zstd frames
 * that state their size. (ZSTD_decompressBound believes the stated size.) */
static bool measure_frames(const unsigned char *at, size_t left, uint64_t *stated, uint64_t *most)
{
    *stated = *most = 0;
    while (left > 0) {
        ZSTD_frameHeader header;
        if (ZSTD_getFrameHeader(&header, at, left) != 0 || header.frameType != ZSTD_frame || header.headerSize > left ||
            header.frameContentSize == ZSTD_CONTENTSIZE_UNKNOWN ||
            __builtin_add_overflow(*stated, header.frameContentSize, stated))
            return false;
        at += header.headerSize;
        left -= header.headerSize;
        for (bool last = false; !last;) {
            if (left < 3) return false;
            uint32_t block = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16, size = block >> 3;
            last = block & 1;
            if ((block >> 1 & 3) == 1) size = 1; /* one byte, repeated */
            if (size > left - 3) return false;
            at += 3 + size;
            left -= 3 + size;
            *most += ZSTD_BLOCKSIZE_MAX;
        }
        if (header.checksumFlag && left < 4) return false;
        at += header.checksumFlag ? 4 : 0;
        left -= header.checksumFlag ? 4 : 0;
    }
    return true;
}

lb_status lb_coding_check(lb_coding coding, const void *stored, size_t stored_size, uint64_t size, const char *what,
                          lb_err *err)
{
    uint64_t stated, most;
    if (!is_known(coding))
        return lb_fail(err, LB_ERR_VERSION, "%s: coding %u is not known here: use a newer lastbit", what,
                       (unsigned)coding);
    if (coding == 0) {
        if (stored_size == size) return LB_OK;
        return lb_fail(err, LB_ERR_CORRUPT, "%s: %zu bytes stored as they are, size says %" PRIu64, what, stored_size,
                       size);
    }
    if (!measure_frames((const unsigned char *)stored, stored_size, &stated, &most))
        return lb_fail(err, LB_ERR_CORRUPT, "%s: %zu stored bytes are no zstd frames that state their size", what,
                       stored_size);
    if (stated == size && size <= most) return LB_OK;
    return lb_fail(err, LB_ERR_CORRUPT,
                   "%s: size says %" PRIu64 ", zstd says %" PRIu64 ", its blocks hold at most %" PRIu64, what, size,
                   stated, most);
}

static void split_planes(const unsigned char *in, unsigned char *out, size_t size, size_t w)
{
    size_t n = size / w;
    for (size_t k = 0; k < w; k++)
        for (size_t i = 0; i < n; i++) out[k * n + i] = in[i * w + k];
    memcpy(out + n * w, in + n * w, size - n * w);
}

static void join_planes(const unsigned char *in, unsigned char *out, size_t size, size_t w)
{
    size_t n = size / w;
    enum { STRIP = 4096 }; /* elements: the planes of a strip stay in the cache while each is spread */
    for (size_t from = 0; from < n; from += STRIP) {
        size_t to = n - from < STRIP ? n : from + STRIP;
        for (size_t k = 0; k < w; k++)
            for (size_t i = from; i < to; i++) out[i * w + k] = in[k * n + i];
    }
    memcpy(out + n * w, in + n * w, size - n * w);
}

/* What zstd refused: memory that it did not get says nothing of the bytes. */
static lb_status refuse(size_t code, const char *what, lb_err *err)
{
    if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation)
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory for zstd", what);
    return lb_fail(err, LB_ERR_CORRUPT, "%s: zstd: %s", what, ZSTD_getErrorName(code));
}

lb_status lb_coding_encode(const void *bytes, size_t size, int level, lb_coding *coding, void **stored,
                           size_t *stored_size, lb_err *err)
{
    *stored = NULL;
    *stored_size = size;
    lb_coding wanted = *coding;
    *coding = 0;
    if (wanted == 0 || size < 64) return LB_OK;
    size_t room = ZSTD_compressBound(size);
    unsigned char *planes = wanted > 1 ? (unsigned char *)malloc(size) : NULL;
    void *out = malloc(room);
    if (!out || (wanted > 1 && !planes)) {
        free(planes), free(out);
        return lb_fail(err, LB_ERR_NOMEM, "no memory to compress %zu bytes", size);
    }
    if (planes) split_planes((const unsigned char *)bytes, planes, size, wanted);
    size_t n = ZSTD_compress(out, room, planes ? planes : bytes, size, level);
    free(planes);
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation) { /* what is written depends on the bytes alone */
        free(out);
        return refuse(n, "a blob", err);
    }
    if (ZSTD_isError(n) || n > size - size / 8) {
        free(out);
        return LB_OK;
    }
    void *fitted = realloc(out, n);
    *stored = fitted ? fitted : out;
    *stored_size = n;
    *coding = wanted;
    return LB_OK;
}

lb_status lb_coding_decode(lb_coding coding, const void *stored, size_t stored_size, void *bytes, size_t size,
                           const char *what, lb_err *err)
{
    unsigned char *planes = coding > 1 ? (unsigned char *)malloc(size ? size : 1) : NULL;
    if (coding > 1 && !planes) return lb_fail(err, LB_ERR_NOMEM, "%s: no memory to decompress %zu bytes", what, size);
    size_t n = ZSTD_decompress(planes ? planes : bytes, size, stored, stored_size);
    lb_status status = LB_OK;
    if (ZSTD_isError(n))
        status = refuse(n, what, err);
    else if (n != size)
        status = lb_fail(err, LB_ERR_CORRUPT, "%s: zstd gave %zu bytes, expected %zu", what, n, size);
    else if (planes)
        join_planes(planes, (unsigned char *)bytes, size, coding);
    free(planes);
    return status;
}

/* ---- piece by piece ---------------------------------------------------------------------------------------------- */

enum { WINDOW_LOG_MAX = 25, PIECE = LB_DIGEST_LEAF };

/* What is decoded, from some place on. */
typedef struct piece_reader {
    ZSTD_DStream *stream;
    ZSTD_inBuffer in;
    const char *what;
} piece_reader;

static lb_status read_piece(piece_reader *reader, void *bytes, size_t n, lb_err *err)
{
    ZSTD_outBuffer out = {bytes, n, 0};
    while (out.pos < n) {
        const size_t before = out.pos, at = reader->in.pos,
                     left = ZSTD_decompressStream(reader->stream, &out, &reader->in);
        if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
            return lb_fail(err, LB_ERR_UNSUPPORTED, "%s: zstd: its window is larger than 32 MB", reader->what);
        if (ZSTD_isError(left)) return refuse(left, reader->what, err);
        if (out.pos == before && reader->in.pos == at)
            return lb_fail(err, LB_ERR_CORRUPT, "%s: zstd: gave fewer bytes than its size says", reader->what);
    }
    return LB_OK;
}

/* A reader whose next byte is number `from`. `piece` has room for PIECE bytes. */
static lb_status piece_reader_open(piece_reader *reader, uint64_t from, unsigned char *piece, lb_err *err)
{
    reader->stream = ZSTD_createDStream();
    if (!reader->stream || ZSTD_isError(ZSTD_DCtx_setParameter(reader->stream, ZSTD_d_windowLogMax, WINDOW_LOG_MAX)))
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", reader->what);
    for (uint64_t n; from > 0; from -= n) {
        n = from < PIECE ? from : PIECE;
        LB_TRY(read_piece(reader, piece, n, err));
    }
    return LB_OK;
}

/* `r` of every plane; `elements` of w bytes, joined. */
static lb_status read_elements(piece_reader *reader, size_t w, unsigned char *bytes, size_t elements,
                               unsigned char *piece, lb_err *err)
{
    if (w == 1) return read_piece(reader, bytes, elements, err);
    for (size_t k = 0; k < w; k++) {
        LB_TRY(read_piece(&reader[k], piece, elements, err));
        for (size_t i = 0; i < elements; i++) bytes[i * w + k] = piece[i];
    }
    return LB_OK;
}

/* All pieces in order: into `bytes`, or hashed into `leaves` where that is NULL. `room` has 2 PIECE. */
static lb_status read_pieces(piece_reader *reader, size_t width, uint64_t size, unsigned char *bytes, uint64_t *leaves,
                             unsigned char *room, lb_err *err)
{
    unsigned char *piece = room + PIECE;
    const uint64_t n = size / width;
    for (size_t k = 0; k < width; k++) LB_TRY(piece_reader_open(&reader[k], k * n, piece, err));
    for (uint64_t at = 0; at < size; at += PIECE) {
        const size_t wanted = size - at < PIECE ? (size_t)(size - at) : PIECE, whole = wanted / width * width;
        unsigned char *to = bytes ? bytes + at : room;
        LB_TRY(read_elements(reader, width, to, whole / width, piece, err));
        if (whole < wanted)
            LB_TRY(read_piece(&reader[width - 1], to + whole, wanted - whole, err)); /* behind the last plane */
        if (!bytes) leaves[at / PIECE] = lb_digest_leaf(to, wanted, at / PIECE);
    }
    return LB_OK;
}

static lb_status run_pieces(const lb_coded *coded, unsigned char *bytes, uint64_t *leaves, lb_err *err)
{
    unsigned char *room = (unsigned char *)malloc(2 * PIECE);
    piece_reader readers[16];
    for (size_t k = 0; k < coded->coding; k++)
        readers[k] = (piece_reader){NULL, {coded->stored, coded->stored_size, 0}, coded->what};
    const lb_status status = room ? read_pieces(readers, coded->coding, coded->size, bytes, leaves, room, err)
                                  : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", coded->what);
    for (size_t k = 0; k < coded->coding; k++) ZSTD_freeDStream(readers[k].stream);
    free(room);
    return status;
}

lb_status lb_coding_decode_pieces(const lb_coded *coded, void *bytes, lb_err *err)
{
    return run_pieces(coded, (unsigned char *)bytes, NULL, err);
}

lb_status lb_coding_digest(const lb_coded *coded, lb_digest *digest, lb_err *err)
{
    const uint64_t n = (coded->size + PIECE - 1) / PIECE;
    uint64_t *leaves = (uint64_t *)malloc((n + 1) * sizeof *leaves);
    const lb_status status =
        leaves ? run_pieces(coded, NULL, leaves, err) : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", coded->what);
    if (status == LB_OK) *digest = lb_digest_of_byte_leaves(leaves, n, coded->size);
    free(leaves);
    return status;
}
