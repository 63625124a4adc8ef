/* SPDX-License-Identifier: Apache-2.0 */
#include "directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t huge_page_bytes = 2 << 20;

/* Rounded up to whole huge pages once there is half of one; the kernel fills no partial huge page. */
static size_t mapped_bytes(size_t byte_count) {
    size_t unit = byte_count >= huge_page_bytes / 2 ? huge_page_bytes : 4096;
    return (byte_count + unit - 1) / unit * unit;
}

/* Zeroed, on huge pages where there is enough to fill one: the pass touches random lines, and with small pages most of
 * them miss the TLB. Aligned by hand, since mmap aligns to small pages only. */
static void *map_zeroed(size_t byte_count) {
    size_t kept = mapped_bytes(byte_count), padded = kept + huge_page_bytes;
    uint8_t *memory = mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    uint8_t *aligned = (uint8_t *)(((uintptr_t)memory + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes);
    if (aligned > memory)
        munmap(memory, (size_t)(aligned - memory));
    munmap(aligned + kept, padded - kept - (size_t)(aligned - memory));
    madvise(aligned, kept, MADV_HUGEPAGE);
    return aligned;
}

int st_directory_open(st_directory *directory, uint64_t slot_count, st_cache_policy policy) {
    memset(directory, 0, sizeof *directory);
    if (slot_count == 0)
        return 0;
    uint64_t set_count = (slot_count + ST_WAYS - 1) / ST_WAYS;
    if (set_count > (1u << 27)) /* slots stay below 2^31: the top bit marks a spill */
        return -E2BIG;
    directory->set_count = (uint32_t)set_count;
    directory->tags = map_zeroed(set_count * sizeof *directory->tags);
    directory->meta = map_zeroed(set_count * sizeof *directory->meta);
    if (policy == ST_CACHE_S3FIFO)
        directory->ghosts = map_zeroed(set_count * sizeof *directory->ghosts);
    if (!directory->tags || !directory->meta || (policy == ST_CACHE_S3FIFO && !directory->ghosts)) {
        st_directory_close(directory);
        return -ENOMEM;
    }
    return 0;
}

void st_directory_close(st_directory *directory) {
    if (directory->tags)
        munmap(directory->tags, mapped_bytes(directory->set_count * sizeof *directory->tags));
    if (directory->meta)
        munmap(directory->meta, mapped_bytes(directory->set_count * sizeof *directory->meta));
    if (directory->ghosts)
        munmap(directory->ghosts, mapped_bytes(directory->set_count * sizeof *directory->ghosts));
    memset(directory, 0, sizeof *directory);
}

uint64_t st_directory_bytes(const st_directory *directory) {
    uint64_t ghost_bytes = directory->ghosts ? sizeof *directory->ghosts : 0;
    return directory->set_count * (sizeof *directory->tags + sizeof *directory->meta + ghost_bytes);
}

/* What the AVX variants call is compiled into them. Left a function of its own, the compiler writes it with legacy SSE
 * instructions, and each of these waits for the upper halves of the AVX registers: a miss then cost four times as much.
 * For the same reason each variant clears those halves before it returns. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE uint32_t set_of(const st_directory *directory, uint32_t row_id) {
    uint32_t hash = row_id;
    hash = (hash ^ (hash >> 16)) * 0x85EBCA6Bu;
    hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
    hash ^= hash >> 16;
    return (uint32_t)(((uint64_t)hash * directory->set_count) >> 32);
}

/* Bit w set where tags[w] == key. */
static inline uint32_t match_portable(const uint32_t tags[ST_WAYS], uint32_t key) {
    uint32_t mask = 0;
    for (uint32_t way = 0; way < ST_WAYS; way++)
        mask |= (uint32_t)(tags[way] == key) << way;
    return mask;
}

/* The ways that the hand passes on its way to `way`. */
ALWAYS_INLINE uint32_t ways_passed(uint32_t hand, uint32_t way) {
    uint32_t below_way = (1u << way) - 1, from_hand = 0xFFFFu << hand;
    return way >= hand ? below_way & from_hand : (below_way | from_hand) & 0xFFFFu;
}

/* The first of ways that the hand meets; there is one. */
ALWAYS_INLINE uint32_t next_way(uint32_t ways, uint32_t hand) {
    uint32_t ahead = ways >> hand << hand;
    return (uint32_t)__builtin_ctz(ahead ? ahead : ways);
}

/* CLOCK's choice among free_ways; there is one. Without the hand's loop, whose steps would be branches that nobody can
 * predict: if every way is used, the hand clears all and stops at the first. */
ALWAYS_INLINE uint32_t clock_way(st_set_meta *meta, uint32_t free_ways) {
    uint32_t unused = free_ways & ~(uint32_t)meta->used;
    uint32_t way = next_way(unused ? unused : free_ways, meta->hand);
    meta->used &= (uint16_t)~(unused ? free_ways & ways_passed(meta->hand, way) : free_ways);
    meta->hand = (uint8_t)((way + 1) % ST_WAYS);
    return way;
}

enum { SMALL_WAYS = 4 };

/* The sets come from another mix of the row id: within a set these bits tell rows apart. */
ALWAYS_INLINE uint8_t ghost_of(uint32_t row_id) {
    return (uint8_t)(row_id * 0x9E3779B1u >> 24);
}

ALWAYS_INLINE int is_ghost(uint64_t ghosts, uint8_t ghost) {
    const uint64_t ones = 0x0101010101010101u;
    uint64_t zero_where_equal = ghosts ^ (ones * ghost);
    return ((zero_where_equal - ones) & ~zero_where_equal & (ones << 7)) != 0;
}

/* S3-FIFO's choice among free_ways; there is one. Ends: each further turn has moved a row out of the small queue. */
ALWAYS_INLINE uint32_t s3fifo_way(st_directory *directory, uint32_t set, uint32_t free_ways) {
    st_set_meta *meta = &directory->meta[set];
    for (;;) {
        uint32_t small = free_ways & meta->small, main = free_ways & ~(uint32_t)meta->small;
        if (!small || (main && __builtin_popcount(meta->small) < SMALL_WAYS))
            return clock_way(meta, main);
        uint32_t way = next_way(small, meta->small_hand);
        uint16_t bit = (uint16_t)(1u << way);
        meta->small_hand = (uint8_t)((way + 1) % ST_WAYS);
        if (!(meta->used & bit)) {
            directory->ghosts[set] = directory->ghosts[set] << 8 | ghost_of(directory->tags[set][way] - 1);
            return way;
        }
        meta->small &= (uint16_t)~bit;
        meta->used &= (uint16_t)~bit;
    }
}

/* The way, as a mask, that a row which is not there gets; 0: all are pinned. empty holds the set's empty ways. */
ALWAYS_INLINE uint32_t claim_way(st_directory *directory, uint32_t row_id, uint32_t set, uint32_t empty) {
    st_set_meta *meta = &directory->meta[set];
    uint32_t way;
    uint32_t free_ways = ~(uint32_t)meta->pinned & 0xFFFFu;
    int was_here = directory->ghosts && is_ghost(directory->ghosts[set], ghost_of(row_id));
    empty &= free_ways;
    if (empty)
        way = (uint32_t)__builtin_ctz(empty);
    else if (!free_ways)
        return 0;
    else {
        way = directory->ghosts ? s3fifo_way(directory, set, free_ways) : clock_way(meta, free_ways);
        directory->evictions++;
    }
    uint16_t bit = (uint16_t)(1u << way);
    if (directory->ghosts)
        meta->small = (uint16_t)(was_here ? meta->small & ~bit : meta->small | bit);
    directory->tags[set][way] = row_id + 1;
    meta->pinned |= bit;
    meta->fresh |= bit;
    meta->used &= (uint16_t)~bit;
    return bit;
}

/* The same loops for each instruction set, since a compare that is not inlined costs as much as the rest of a hit, and
 * without a vector multiply the hashes cost as much again. */
#define VARIANT(name) name##_portable
#define TARGET
#define MATCH(tags, key) match_portable(tags, key)
#define DONE()
#include "directory_claim.h"

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static inline uint32_t match_avx2(const uint32_t tags[ST_WAYS], uint32_t key) {
    __m256i wanted = _mm256_set1_epi32((int)key);
    __m256i low = _mm256_cmpeq_epi32(_mm256_load_si256((const __m256i *)tags), wanted);
    __m256i high = _mm256_cmpeq_epi32(_mm256_load_si256((const __m256i *)(tags + 8)), wanted);
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(low)) |
           (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8;
}
#define VARIANT(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#define MATCH(tags, key) match_avx2(tags, key)
#define DONE() _mm256_zeroupper()
#include "directory_claim.h"

#define VARIANT(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#define MATCH(tags, key) (uint32_t)_mm512_cmpeq_epi32_mask(_mm512_load_si512(tags), _mm512_set1_epi32((int)(key)))
#define DONE() _mm256_zeroupper()
#include "directory_claim.h"
#endif

static struct {
    void (*prefetch)(const st_directory *, const uint32_t *, uint32_t, uint32_t *);
    st_claims (*claim)(st_directory *, const uint32_t *, const uint32_t *, uint32_t, uint32_t, uint32_t *);
} variant = {prefetch_portable, claim_portable};

__attribute__((constructor)) static void choose_variant(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        variant.prefetch = prefetch_avx512;
        variant.claim = claim_avx512;
    } else if (__builtin_cpu_supports("avx2")) {
        variant.prefetch = prefetch_avx2;
        variant.claim = claim_avx2;
    }
#endif
}

void st_directory_prefetch(const st_directory *directory, const uint32_t *row_ids, uint32_t count, uint32_t *sets) {
    variant.prefetch(directory, row_ids, count, sets);
}

st_claims st_directory_claim(st_directory *directory, const uint32_t *row_ids, const uint32_t *sets, uint32_t count,
                             uint32_t step, uint32_t *slots) {
    return variant.claim(directory, row_ids, sets, count, step, slots);
}

st_found st_directory_claim_row(st_directory *directory, uint32_t row_id, uint32_t step, uint32_t *slot) {
    uint32_t set = set_of(directory, row_id);
    st_claims claims = variant.claim(directory, &row_id, &set, 1, step, slot);
    return claims.full ? ST_FULL : claims.misses ? ST_MISS : claims.repeats ? ST_REPEAT : ST_HIT;
}

void st_directory_forget(st_directory *directory, uint32_t slot) {
    directory->tags[slot / ST_WAYS][slot % ST_WAYS] = 0;
}

int64_t st_directory_row(const st_directory *directory, uint32_t slot) {
    return (int64_t)directory->tags[slot / ST_WAYS][slot % ST_WAYS] - 1;
}
