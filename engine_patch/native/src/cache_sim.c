/* SPDX-License-Identifier: Apache-2.0 */
/* Cache simulators over renamed rows: st_cache_sim.h says what is counted. */
#include "directory.h"
#include "sim_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTERS = ST_SIM_PHASES * ST_SIM_CLASSES };

static void count_miss(const st_sim_stream *stream, uint32_t key, int is_decode, uint64_t *misses) {
    misses[(is_decode ? ST_SIM_CLASSES : 0) + stream->class_of[key]]++;
}

/* ---- LRU ---- */

/* Which lookups are some key's latest: one bit per lookup, a Fenwick tree over blocks of 512 bits. */
enum { BLOCK_BITS = 512, BLOCK_WORDS = BLOCK_BITS / 64 };

typedef struct timeline {
    uint64_t *bits;
    uint32_t *tree; /* 1-based */
    uint64_t block_count;
} timeline;

static int timeline_open(timeline *line, uint64_t lookup_count) {
    line->block_count = lookup_count / BLOCK_BITS + 1;
    line->bits = calloc(line->block_count * BLOCK_WORDS, sizeof *line->bits);
    line->tree = calloc(line->block_count + 1, sizeof *line->tree);
    return line->bits && line->tree ? 0 : -ENOMEM;
}

static void timeline_close(timeline *line) {
    free(line->bits);
    free(line->tree);
}

static void timeline_flip(timeline *line, uint64_t when, uint32_t delta) {
    line->bits[when / 64] ^= 1ull << (when % 64);
    for (uint64_t node = when / BLOCK_BITS + 1; node <= line->block_count; node += node & -node)
        line->tree[node] += delta;
}

/* Marks at or before `when`. */
static uint64_t timeline_prefix(const timeline *line, uint64_t when) {
    uint64_t count = 0;
    for (uint64_t node = when / BLOCK_BITS; node; node -= node & -node)
        count += line->tree[node];
    uint64_t word = when / BLOCK_BITS * BLOCK_WORDS;
    for (; word < when / 64; word++)
        count += (uint64_t)__builtin_popcountll(line->bits[word]);
    return count + (uint64_t)__builtin_popcountll(line->bits[word] << (63 - when % 64));
}

static uint64_t lookup_count_of(const st_sim_stream *stream) {
    uint64_t count = 0;
    for (uint64_t at = 0; at < stream->token_count; at++)
        count += stream->first[stream->order[at] + 1] - stream->first[stream->order[at]];
    return count;
}

int st_sim_lru(const st_sim_stream *stream, const uint64_t *rows, uint32_t size_count, uint64_t *misses) {
    uint64_t lookup_count = lookup_count_of(stream);
    if (size_count == 0 || size_count > ST_SIM_SIZES_MAX)
        return -EINVAL;
    if (lookup_count >= UINT32_MAX)
        return -EFBIG;
    timeline line = {0};
    uint32_t *latest = calloc(stream->key_count + 1, sizeof *latest); /* 1 + index of the key's latest lookup */
    int rc = latest ? timeline_open(&line, lookup_count) : -ENOMEM;
    /* by_rank[i]: lookups that miss at the first i sizes and hit at the others, so that each touches one counter. */
    uint64_t by_rank[ST_SIM_SIZES_MAX + 1][COUNTERS] = {{0}};
    uint64_t now = 0, live = 0;
    if (rc == 0) {
        FOR_EACH_LOOKUP(stream, {
            uint32_t rank = size_count;
            if (latest[key]) {
                uint64_t when = latest[key] - 1;
                uint64_t others = live - timeline_prefix(&line, when);
                for (rank = 0; rank < size_count && others >= rows[rank];)
                    rank++;
                timeline_flip(&line, when, (uint32_t)-1);
            } else {
                live++;
            }
            count_miss(stream, key, is_decode, by_rank[rank]);
            timeline_flip(&line, now, 1);
            latest[key] = (uint32_t)++now;
        })
        memset(misses, 0, sizeof(uint64_t) * COUNTERS * size_count);
        for (uint32_t size = 0; size < size_count; size++)
            for (uint32_t rank = size + 1; rank <= size_count; rank++)
                for (int counter = 0; counter < COUNTERS; counter++)
                    misses[size * COUNTERS + counter] += by_rank[rank][counter];
    }
    timeline_close(&line);
    free(latest);
    return rc;
}

/* ---- CLOCK ---- */

enum { RESIDENT = 1, USED = 2 };

int st_sim_clock(const st_sim_stream *stream, uint64_t rows, uint64_t *misses) {
    if (rows == 0)
        return -EINVAL;
    /* A cache larger than all keys never evicts: no need to allocate it. */
    uint64_t slot_count = rows < stream->key_count ? rows : stream->key_count;
    uint32_t *ring = malloc((slot_count + 1) * sizeof *ring);
    uint8_t *state = calloc(stream->key_count + 1, 1);
    int rc = ring && state ? 0 : -ENOMEM;
    memset(misses, 0, sizeof(uint64_t) * COUNTERS);
    if (rc == 0) {
        uint64_t filled = 0, hand = 0;
        FOR_EACH_LOOKUP(stream, {
            if (state[key]) {
                state[key] = RESIDENT | USED;
                continue;
            }
            count_miss(stream, key, is_decode, misses);
            state[key] = RESIDENT;
            if (filled < slot_count) {
                ring[filled++] = key;
                continue;
            }
            while (state[ring[hand]] & USED) {
                state[ring[hand]] = RESIDENT;
                hand = hand + 1 == slot_count ? 0 : hand + 1;
            }
            state[ring[hand]] = 0;
            ring[hand] = key;
            hand = hand + 1 == slot_count ? 0 : hand + 1;
        })
    }
    free(ring);
    free(state);
    return rc;
}

/* ---- S3-FIFO ---- */

/* A first-in first-out queue of keys in a ring. */
typedef struct fifo {
    uint32_t *keys;
    uint64_t slot_count, head, count;
} fifo;

static void fifo_push(fifo *queue, uint32_t key) {
    uint64_t tail = queue->head + queue->count++;
    queue->keys[tail < queue->slot_count ? tail : tail - queue->slot_count] = key;
}

static uint32_t fifo_pop(fifo *queue) {
    uint32_t key = queue->keys[queue->head];
    queue->head = queue->head + 1 == queue->slot_count ? 0 : queue->head + 1;
    queue->count--;
    return key;
}

enum { PROMOTE_HITS = 2, HITS_MAX = 3 };

typedef struct s3fifo {
    fifo small, main;
    uint64_t main_rows;
    uint8_t *state;     /* [key] 0 absent, else 1 + hits since it was put in its queue, capped */
    uint32_t *ghost_at; /* [key] serial number of its latest move to the ghost queue, 0 none */
    uint32_t ghost_serial;
} s3fifo;

static int s3fifo_open(s3fifo *cache, uint64_t rows, uint64_t key_count) {
    uint64_t small_rows = rows / 10 ? rows / 10 : 1;
    uint64_t slot_count = rows + 1 < key_count + 1 ? rows + 1 : key_count + 1;
    cache->main_rows = rows > small_rows ? rows - small_rows : 0;
    cache->small.slot_count = cache->main.slot_count = slot_count;
    cache->small.keys = malloc(slot_count * sizeof(uint32_t));
    cache->main.keys = malloc(slot_count * sizeof(uint32_t));
    cache->state = calloc(key_count + 1, 1);
    cache->ghost_at = calloc(key_count + 1, sizeof(uint32_t));
    return cache->small.keys && cache->main.keys && cache->state && cache->ghost_at ? 0 : -ENOMEM;
}

static void s3fifo_close(s3fifo *cache) {
    free(cache->small.keys);
    free(cache->main.keys);
    free(cache->state);
    free(cache->ghost_at);
}

static int in_ghost(const s3fifo *cache, uint32_t key) {
    return cache->ghost_at[key] && cache->ghost_serial - cache->ghost_at[key] < cache->main_rows;
}

/* Frees one row: from main while it holds more than its share, else from small, promoting what was used. */
static void s3fifo_evict(s3fifo *cache) {
    for (;;) {
        int from_main = cache->main.count > cache->main_rows || cache->small.count == 0;
        uint32_t key = fifo_pop(from_main ? &cache->main : &cache->small);
        int hits = cache->state[key] - 1;
        if (from_main && hits) {
            cache->state[key]--;
            fifo_push(&cache->main, key);
        } else if (!from_main && hits >= PROMOTE_HITS) {
            cache->state[key] = 1;
            fifo_push(&cache->main, key);
        } else {
            cache->state[key] = 0;
            if (!from_main)
                cache->ghost_at[key] = ++cache->ghost_serial;
            return;
        }
    }
}

int st_sim_s3fifo(const st_sim_stream *stream, uint64_t rows, uint64_t *misses) {
    if (rows == 0)
        return -EINVAL;
    s3fifo cache = {0};
    int rc = s3fifo_open(&cache, rows, stream->key_count);
    memset(misses, 0, sizeof(uint64_t) * COUNTERS);
    if (rc == 0) {
        FOR_EACH_LOOKUP(stream, {
            if (cache.state[key]) {
                if (cache.state[key] <= HITS_MAX)
                    cache.state[key]++;
                continue;
            }
            count_miss(stream, key, is_decode, misses);
            int seen_lately = in_ghost(&cache, key);
            if (cache.small.count + cache.main.count == rows)
                s3fifo_evict(&cache);
            cache.ghost_at[key] = 0;
            cache.state[key] = 1;
            fifo_push(seen_lately ? &cache.main : &cache.small, key);
        })
    }
    s3fifo_close(&cache);
    return rc;
}

/* ---- the directory of the row cache ---- */

int st_sim_directory(const st_sim_stream *stream, const uint32_t *row_of, st_cache_policy policy, uint64_t rows,
                     uint64_t *misses) {
    st_directory directory;
    int rc = rows ? st_directory_open(&directory, rows, policy) : -EINVAL;
    memset(misses, 0, sizeof(uint64_t) * COUNTERS);
    if (rc < 0)
        return rc;
    uint32_t step = 0;
    FOR_EACH_LOOKUP(stream, {
        uint32_t slot;
        step = step == UINT32_MAX ? 1 : step + 1; /* a step per lookup: nothing is pinned when the next one comes */
        if (st_directory_claim_row(&directory, row_of[key], step, &slot) == ST_MISS)
            count_miss(stream, key, is_decode, misses);
    })
    st_directory_close(&directory);
    return 0;
}
