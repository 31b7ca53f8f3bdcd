/* Names of communicators, made of their members' ranks in the job, so that they are the same on all ranks and in every
 * run: "0-3", "1,3", and "0-1#2" for the second of those members. */
#ifndef LB_CAPTURE_MEMBER_NAMES_H
#define LB_CAPTURE_MEMBER_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum { LB_MEMBER_NAME = 96 };

/* How often each was given; all of them belong to one rank. */
typedef struct lb_member_names {
    struct lb_member_name *first;
} lb_member_names;

/* The next name of these members. */
void lb_member_names_give(lb_member_names *names, const int32_t *members, int n, char name[LB_MEMBER_NAME]);
/* 64 bits of bytes, FNV-1a. */
uint64_t lb_member_names_hash(const void *bytes, size_t n);

#endif
