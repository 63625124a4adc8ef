/* SPDX-License-Identifier: Apache-2.0 */
/* Which row is in which cache slot: a 16-way set-associative directory with CLOCK or S3-FIFO in each set.
 *
 * Memory grows with the cache, not with the table: 5 bytes per slot, 5.5 with S3-FIFO. A set's tags fill one cache line.
 * slot = set * 16 + way. Not thread-safe: the pass that uses it runs on one thread.
 *
 * S3-FIFO (Yang 2023), per set: new rows stand in a small queue of 4 ways. Its next row to go moves to the main queue
 * if it was used again, and else leaves the set; of the last 8 that left so the set keeps 8 bits of a hash, and one of
 * them that comes back goes to the main queue at once. The main queue is a CLOCK. A hit costs what CLOCK's costs.
 */
#ifndef ST_DIRECTORY_H
#define ST_DIRECTORY_H

#include <stdint.h>

#include "slacktier_io.h"

enum { ST_WAYS = 16 };

typedef struct st_set_meta {
    uint32_t step;   /* the masks below are of this step */
    uint16_t pinned; /* used in that step: not to be evicted in it */
    uint16_t fresh;  /* claimed in that step: its bytes are on their way */
    uint16_t used;   /* looked up again since it was put where it stands */
    uint16_t small;  /* in S3-FIFO's small queue; with CLOCK none is */
    uint8_t hand;
    uint8_t small_hand;
    uint16_t reserved;
} st_set_meta;

typedef struct st_directory {
    uint32_t set_count;        /* 0: no cache */
    uint32_t (*tags)[ST_WAYS]; /* row id + 1; 0 is an empty way */
    st_set_meta *meta;
    uint64_t *ghosts; /* of each set 8 hashes of 8 bits, the latest in the lowest byte; NULL: CLOCK */
    uint64_t evictions;
} st_directory;

enum { ST_CLAIMS_MAX = 64 }; /* rows of one call */

/* Bit i of each: row i of the call. A row in none of them is a hit. */
typedef struct st_claims {
    uint64_t misses;
    uint64_t repeats; /* of a miss of this step */
    uint64_t full;    /* every way of the row's set is pinned: its slot is meaningless */
} st_claims;

typedef enum st_found { ST_HIT, ST_REPEAT, ST_MISS, ST_FULL } st_found;

int st_directory_open(st_directory *directory, uint64_t slot_count, st_cache_policy policy);
void st_directory_close(st_directory *directory);
uint64_t st_directory_bytes(const st_directory *directory);

/* The sets of count rows, and their cache lines on the way: one block ahead of st_directory_claim hides the memory. */
void st_directory_prefetch(const st_directory *directory, const uint32_t *row_ids, uint32_t count, uint32_t *sets);

/* Find each of count <= ST_CLAIMS_MAX rows, or claim a slot for it; pins it for this step either way. In order: a row
 * that stands twice is a miss first and a repeat then. step is never 0. */
st_claims st_directory_claim(st_directory *directory, const uint32_t *row_ids, const uint32_t *sets, uint32_t count,
                             uint32_t step, uint32_t *slots);

/* The same for one row. */
st_found st_directory_claim_row(st_directory *directory, uint32_t row_id, uint32_t step, uint32_t *slot);

/* Forget a row whose bytes never arrived. */
void st_directory_forget(st_directory *directory, uint32_t slot);

/* The row in a slot, or -1. */
int64_t st_directory_row(const st_directory *directory, uint32_t slot);

#endif
