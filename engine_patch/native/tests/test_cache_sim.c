/* SPDX-License-Identifier: Apache-2.0 */
/* The simulators on drawn streams: LRU against a plain list, the others where the answer is known beforehand. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "st_cache_sim.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { POSITIONS = 4000, PER_TOKEN = 3, KEYS = 700, COUNTERS = ST_SIM_PHASES * ST_SIM_CLASSES };

static uint32_t order[POSITIONS], keys[POSITIONS * PER_TOKEN], rows_of_keys[KEYS];
static uint64_t first[POSITIONS + 1];
static uint8_t decode[POSITIONS], class_of[KEYS], skip[KEYS];

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Low keys are common; the last key is always used, so that an array one short is noticed. */
static st_sim_stream draw_stream(uint64_t seed) {
    for (uint32_t i = 0; i < POSITIONS; i++) {
        order[i] = (uint32_t)(draw(&seed) % POSITIONS);
        decode[i] = draw(&seed) % 3 == 0;
        first[i + 1] = first[i] + PER_TOKEN;
        for (int k = 0; k < PER_TOKEN; k++) {
            uint64_t x = draw(&seed) % 1000;
            keys[i * PER_TOKEN + k] = (uint32_t)(x * x * x / 1000000 * KEYS / 1000);
        }
    }
    keys[order[POSITIONS - 1] * PER_TOKEN] = KEYS - 1;
    for (uint32_t key = 0; key < KEYS; key++) {
        class_of[key] = (uint8_t)(key % ST_SIM_CLASSES);
        rows_of_keys[key] = (uint32_t)key * 2654435761u; /* each its own */
        skip[key] = draw(&seed) % 5 == 0;
    }
    return (st_sim_stream){order, POSITIONS, first, keys, KEYS, decode, class_of, NULL};
}

static uint64_t total(const uint64_t *misses) {
    uint64_t sum = 0;
    for (int i = 0; i < COUNTERS; i++)
        sum += misses[i];
    return sum;
}

/* A list, most recent first. */
static void plain_lru(const st_sim_stream *stream, uint64_t rows, uint64_t *misses) {
    uint32_t list[KEYS];
    uint64_t count = 0;
    memset(misses, 0, sizeof(uint64_t) * COUNTERS);
    for (uint64_t i = 0; i < stream->token_count * PER_TOKEN; i++) {
        uint32_t position = stream->order[i / PER_TOKEN];
        uint32_t key = stream->keys[position * PER_TOKEN + i % PER_TOKEN];
        if (stream->skip && stream->skip[key])
            continue;
        uint64_t at = 0;
        while (at < count && list[at] != key)
            at++;
        if (at == count) {
            misses[(stream->decode[position] ? ST_SIM_CLASSES : 0) + stream->class_of[key]]++;
            at = count < rows ? count++ : count - 1;
        }
        memmove(list + 1, list, at * sizeof *list);
        list[0] = key;
    }
}

static void test_lru_equals_a_list(void) {
    const uint64_t rows[] = {1, 2, 50, 333, KEYS, UINT64_MAX};
    enum { SIZES = sizeof rows / sizeof *rows };
    for (uint64_t seed = 1; seed <= 6; seed++) {
        st_sim_stream stream = draw_stream(seed);
        stream.skip = seed % 2 ? NULL : skip;
        uint64_t found[SIZES][COUNTERS], expected[COUNTERS];
        CHECK(st_sim_lru(&stream, rows, SIZES, found[0]) == 0);
        for (int size = 0; size < SIZES; size++) {
            plain_lru(&stream, rows[size] < KEYS ? rows[size] : KEYS, expected);
            CHECK(memcmp(found[size], expected, sizeof expected) == 0);
        }
    }
}

static void test_cache_of_everything_misses_each_row_once(void) {
    st_sim_stream stream = draw_stream(7);
    const uint64_t bounds[] = {0, POSITIONS};
    uint32_t lookups, distinct;
    CHECK(st_sim_distinct(&stream, bounds, 1, ST_SIM_ALL, NULL, &lookups, &distinct) == 0);
    CHECK(lookups == POSITIONS * PER_TOKEN && distinct > KEYS / 4);
    uint64_t misses[COUNTERS];
    CHECK(st_sim_clock(&stream, KEYS, misses) == 0 && total(misses) == distinct);
    CHECK(st_sim_clock(&stream, UINT32_MAX, misses) == 0 && total(misses) == distinct);
    CHECK(st_sim_s3fifo(&stream, 10 * KEYS, misses) == 0 && total(misses) == distinct);
    for (st_cache_policy policy = ST_CACHE_CLOCK; policy <= ST_CACHE_S3FIFO; policy++)
        CHECK(st_sim_directory(&stream, rows_of_keys, policy, 64 * KEYS, misses) == 0 && total(misses) == distinct);
}

static void test_cache_of_one_row_hits_only_what_was_asked_for_last(void) {
    st_sim_stream stream = draw_stream(8);
    uint64_t lru[COUNTERS], misses[COUNTERS];
    plain_lru(&stream, 1, lru);
    CHECK(st_sim_clock(&stream, 1, misses) == 0 && memcmp(misses, lru, sizeof lru) == 0);
    CHECK(st_sim_s3fifo(&stream, 1, misses) == 0 && memcmp(misses, lru, sizeof lru) == 0);
    for (st_cache_policy policy = ST_CACHE_CLOCK; policy <= ST_CACHE_S3FIFO; policy++) /* one set of 16 ways at least */
        CHECK(st_sim_directory(&stream, rows_of_keys, policy, 1, misses) == 0 && total(misses) < total(lru));
}

static void test_impossible_sizes_are_refused_and_empty_streams_are_not(void) {
    st_sim_stream stream = draw_stream(9);
    uint64_t misses[COUNTERS], none = 0;
    CHECK(st_sim_clock(&stream, 0, misses) == -EINVAL);
    CHECK(st_sim_s3fifo(&stream, 0, misses) == -EINVAL);
    CHECK(st_sim_directory(&stream, rows_of_keys, ST_CACHE_CLOCK, 0, misses) == -EINVAL);
    CHECK(st_sim_lru(&stream, &none, 0, misses) == -EINVAL);
    stream.token_count = 0;
    CHECK(st_sim_clock(&stream, 5, misses) == 0 && total(misses) == 0);
    CHECK(st_sim_lru(&stream, &none, 1, misses) == 0 && total(misses) == 0);
}

static void test_row_index_gives_one_key_per_row_through_growth(void) {
    enum { COUNT = 300000 };
    uint32_t *rows = malloc(COUNT * sizeof *rows), *found = malloc(COUNT * sizeof *found);
    uint64_t seed = 3;
    st_row_index *index = st_row_index_open();
    CHECK(rows && found && index);
    for (uint32_t i = 0; i < COUNT; i++)
        rows[i] = i % 3 ? (uint32_t)draw(&seed) : UINT32_MAX - i % 7;
    CHECK(st_row_index_add(index, rows, COUNT, found) == 0);
    uint64_t count = st_row_index_count(index);
    uint32_t *back = malloc(count * sizeof *back);
    CHECK(back);
    st_row_index_rows(index, back);
    uint32_t next = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK(found[i] <= next && back[found[i]] == rows[i]);
        next += found[i] == next;
    }
    CHECK(next == count);
    st_row_index_close(index);
    free(rows);
    free(found);
    free(back);
}

int main(void) {
    test_lru_equals_a_list();
    test_cache_of_everything_misses_each_row_once();
    test_cache_of_one_row_hits_only_what_was_asked_for_last();
    test_impossible_sizes_are_refused_and_empty_streams_are_not();
    test_row_index_gives_one_key_per_row_through_growth();
    printf("test_cache_sim: ok\n");
    return 0;
}
