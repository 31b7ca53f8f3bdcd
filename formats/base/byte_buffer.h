/* Bytes that grow, with msgpack-c as one of the writers. Failure to grow is remembered, so that a row of appends needs
 * one check at its end. */
#ifndef LB_BYTE_BUFFER_H
#define LB_BYTE_BUFFER_H

#include <lastbit/digest.h>

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

typedef struct byte_buffer {
    char *bytes;
    size_t size, capacity;
    bool failed;
} byte_buffer;

/* `n` more bytes to be filled by the caller; NULL when out of memory. */
static inline char *buffer_extend(byte_buffer *b, size_t n)
{
    if (b->failed || n > SIZE_MAX / 2 - b->size) return b->failed = true, NULL;
    if (!b->bytes || b->size + n > b->capacity) {
        size_t wanted = b->capacity ? b->capacity : 256;
        while (wanted < b->size + n) wanted *= 2;
        char *grown = (char *)realloc(b->bytes, wanted);
        if (!grown) return b->failed = true, NULL;
        b->bytes = grown;
        b->capacity = wanted;
    }
    char *end = b->bytes + b->size;
    b->size += n;
    return end;
}

static inline void buffer_add(byte_buffer *b, const void *bytes, size_t n)
{
    char *to = buffer_extend(b, n);
    if (to && n) memcpy(to, bytes, n);
}

/* Little-endian, as everything in an archive. */
static inline void buffer_add_u64(byte_buffer *b, uint64_t number)
{
    buffer_add(b, &number, sizeof number);
}
static inline void buffer_add_u8(byte_buffer *b, uint8_t number)
{
    buffer_add(b, &number, 1);
}

/* A digest as it stands in files: 16 bytes in the order of its text form. */
static inline void digest_to_bytes(lb_digest digest, void *bytes)
{
    uint64_t words[2] = {__builtin_bswap64(digest.hi), __builtin_bswap64(digest.lo)};
    memcpy(bytes, words, sizeof words);
}

static inline lb_digest digest_from_bytes(const void *bytes)
{
    uint64_t words[2];
    memcpy(words, bytes, sizeof words);
    return (lb_digest){__builtin_bswap64(words[0]), __builtin_bswap64(words[1])};
}

static inline void buffer_add_digest(byte_buffer *b, lb_digest digest)
{
    char *to = buffer_extend(b, 16);
    if (to) digest_to_bytes(digest, to);
}

static inline void buffer_clear(byte_buffer *b)
{
    b->size = 0, b->failed = false;
}

static inline void buffer_release(byte_buffer *b)
{
    free(b->bytes);
    *b = (byte_buffer){NULL, 0, 0, false};
}

static inline int buffer_write(void *data, const char *bytes, size_t n)
{
    byte_buffer *b = (byte_buffer *)data;
    buffer_add(b, bytes, n);
    return b->failed ? -1 : 0;
}

static inline msgpack_packer buffer_packer(byte_buffer *b)
{
    msgpack_packer packer;
    msgpack_packer_init(&packer, b, buffer_write);
    return packer;
}

static inline void pack_text(msgpack_packer *p, const char *text)
{
    size_t n = strlen(text);
    msgpack_pack_str(p, n);
    msgpack_pack_str_body(p, text, n);
}

static inline void pack_int(msgpack_packer *p, const char *key, int64_t number)
{
    pack_text(p, key);
    msgpack_pack_int64(p, number);
}

static inline void pack_bin(msgpack_packer *p, const char *key, const void *bytes, size_t n)
{
    pack_text(p, key);
    msgpack_pack_bin(p, n);
    if (n) msgpack_pack_bin_body(p, bytes, n);
}

#endif
