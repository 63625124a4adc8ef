/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the core share: tables of the pattern behind callbacks that misbehave, and steps whose every row is
 * compared with it. */
#ifndef TESTS_PATTERN_CORE_H
#define TESTS_PATTERN_CORE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "slacktier_io.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { ROWS = 20000, PAYLOAD = 256, SCALES = 8, ROW_BYTES = PAYLOAD + SCALES, LOOKUPS_MAX = 8192 };
static const uint64_t second_ns = 1000000000u;

/* A table in memory behind a callback that can be told to misbehave. */
typedef struct fault_plan {
    const uint8_t *pages;
    uint64_t page_count;
    int fail_every; /* every n-th read: */
    int fail_kind;  /* 1 EIO, 2 short, 3 another page, 4 flipped bit, 5 zero bytes, 6 garbage */
    uint32_t delay_us;
    int reads; /* atomic */
} fault_plan;

static inline int64_t read_page(void *context, uint64_t page_id, uint8_t *page) {
    fault_plan *plan = context;
    int n = __atomic_add_fetch(&plan->reads, 1, __ATOMIC_RELAXED);
    uint32_t delay_us = __atomic_load_n(&plan->delay_us, __ATOMIC_RELAXED);
    int fail_every = __atomic_load_n(&plan->fail_every, __ATOMIC_RELAXED);
    if (delay_us)
        usleep(delay_us);
    memcpy(page, plan->pages + page_id * ST_PAGE_BYTES, ST_PAGE_BYTES);
    if (fail_every == 0 || n % fail_every)
        return ST_PAGE_BYTES;
    switch (plan->fail_kind) {
    case 1: return -EIO;
    case 2: return 512;
    case 3: memcpy(page, plan->pages + (page_id + 1) % plan->page_count * ST_PAGE_BYTES, ST_PAGE_BYTES); break;
    case 4:
        for (int at = 20; at < ST_PAGE_BYTES; at += 272)
            page[at] ^= 4;
        break;
    case 5: return 0;
    case 6: memset(page, 0xA5, ST_PAGE_BYTES); break;
    }
    return ST_PAGE_BYTES;
}

static inline uint8_t *make_pages(const st_layout *layout, uint64_t seed) {
    uint8_t *weights = malloc((size_t)layout->row_count * PAYLOAD),
            *scales = malloc((size_t)layout->row_count * SCALES);
    uint8_t *pages = aligned_alloc(ST_PAGE_BYTES, layout->page_count * ST_PAGE_BYTES);
    CHECK(weights && scales && pages);
    st_pattern_fill(seed, 0, layout->row_count, PAYLOAD, SCALES, weights, scales);
    CHECK(st_pages_encode(layout, 0, layout->page_count, weights, scales, pages) == 0);
    free(weights);
    free(scales);
    return pages;
}

static inline st_layout layout_of(uint32_t layer_id, uint32_t stripe_count) {
    static const uint8_t uuid[16] = "slacktier-tests";
    st_layout layout;
    CHECK(st_layout_init(&layout, ROWS, PAYLOAD, SCALES, uuid, layer_id, 1, stripe_count) == 0);
    return layout;
}

static uint64_t random_state = 88172645463325252ull;
static inline uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* Skewed ids, so that there are hits, repeats and evictions; some padding. */
static inline void random_ids(int64_t *ids, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t r = random_next();
        ids[i] = r % 50 == 0 ? -1 : (int64_t)(r % 3 ? (r >> 8) % (ROWS / 16) : (r >> 8) % ROWS);
    }
}

static inline void check_rows(uint64_t seed, const int64_t *ids, uint64_t count, uint32_t rank, uint32_t tp,
                              const uint8_t *rows) {
    int64_t *expected = malloc(count * sizeof *expected);
    uint64_t first_bad = 0;
    for (uint64_t i = 0; i < count; i++)
        expected[i] = ids[i] >= 0 && (uint64_t)ids[i] % tp == rank ? ids[i] : -1;
    CHECK(st_pattern_check(seed, expected, count, PAYLOAD, SCALES, rows, ROW_BYTES, &first_bad) == 0);
    free(expected);
}

static inline st_core *open_core(st_source *a, st_source *b, uint64_t cache_rows, uint32_t rank, uint32_t tp,
                                 st_backend backend) {
    st_core_config config = {.layer_count = 2,
                             .rank = rank,
                             .tp = tp,
                             .io_threads = backend == ST_BACKEND_POSIX ? 4 : 2,
                             .queue_depth = 64,
                             .backend = backend,
                             .lookups_max = LOOKUPS_MAX};
    st_layer_config layers[2] = {{.cache_rows = cache_rows, .source_count = 1, .sources = {a}},
                                 {.cache_rows = cache_rows / 2, .source_count = 1, .sources = {b}}};
    st_core *core = NULL;
    CHECK(st_core_open(&config, layers, &core) == 0);
    return core;
}

static const uint64_t seeds[2] = {11, 14};

static inline void run_steps(st_core *core, int steps, uint32_t rank, uint32_t tp) {
    static int64_t ids[2][LOOKUPS_MAX];
    static uint8_t rows[(size_t)LOOKUPS_MAX * ROW_BYTES];
    for (int s = 0; s < steps; s++) {
        uint64_t counts[2] = {random_next() % 900, s % 20 == 19 ? LOOKUPS_MAX : random_next() % 900};
        const int64_t *pointers[2] = {ids[0], ids[1]};
        for (int k = 0; k < 2; k++)
            random_ids(ids[k], counts[k]);
        CHECK(st_step_begin(core, pointers, counts) == 0);
        for (uint32_t k = 0; k < 2; k++) {
            st_layer_result result;
            CHECK(st_step_wait(core, k, 5 * second_ns, &result) == 0);
            CHECK(result.hits + result.repeats + result.misses == result.owned);
            CHECK(result.pages <= result.misses);
            CHECK(st_step_gather(core, k, rows, ROW_BYTES) == 0);
            check_rows(seeds[k], ids[k], counts[k], rank, tp, rows);
        }
        CHECK(st_step_end(core) == 0);
    }
}

#endif
