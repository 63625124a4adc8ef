/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup core against a table whose every byte is a function of its row id, with injected faults. */
#include <errno.h>
#include <fcntl.h>
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

static int64_t read_page(void *context, uint64_t page_id, uint8_t *page) {
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

static uint8_t *make_pages(const st_layout *layout, uint64_t seed) {
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

static st_layout layout_of(uint32_t layer_id, uint32_t stripe_count) {
    static const uint8_t uuid[16] = "slacktier-tests";
    st_layout layout;
    CHECK(st_layout_init(&layout, ROWS, PAYLOAD, SCALES, uuid, layer_id, 1, stripe_count) == 0);
    return layout;
}

static uint64_t random_state = 88172645463325252ull;
static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* Skewed ids, so that there are hits, repeats and evictions; some padding. */
static void random_ids(int64_t *ids, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t r = random_next();
        ids[i] = r % 50 == 0 ? -1 : (int64_t)(r % 3 ? (r >> 8) % (ROWS / 16) : (r >> 8) % ROWS);
    }
}

static void check_rows(uint64_t seed, const int64_t *ids, uint64_t count, uint32_t rank, uint32_t tp,
                       const uint8_t *rows) {
    int64_t *expected = malloc(count * sizeof *expected);
    uint64_t first_bad = 0;
    for (uint64_t i = 0; i < count; i++)
        expected[i] = ids[i] >= 0 && (uint64_t)ids[i] % tp == rank ? ids[i] : -1;
    CHECK(st_pattern_check(seed, expected, count, PAYLOAD, SCALES, rows, ROW_BYTES, &first_bad) == 0);
    free(expected);
}

static st_core *open_core(st_source *a, st_source *b, uint64_t cache_rows, uint32_t rank, uint32_t tp,
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

static void run_steps(st_core *core, int steps, uint32_t rank, uint32_t tp) {
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

static void write_stripes(const char *prefix, const st_layout *layout, const uint8_t *pages, char paths[][256]) {
    for (uint32_t s = 0; s < layout->stripe_count; s++) {
        snprintf(paths[s], 256, "%s-%u-%u", prefix, layout->layer_id, s);
        int fd = open(paths[s], O_CREAT | O_TRUNC | O_WRONLY, 0600);
        CHECK(fd >= 0);
        for (uint64_t p = s; p < layout->page_count; p += layout->stripe_count)
            CHECK(pwrite(fd, pages + p * ST_PAGE_BYTES, ST_PAGE_BYTES,
                         (off_t)((ST_SUPERBLOCK_PAGES + p / layout->stripe_count) * ST_PAGE_BYTES)) == ST_PAGE_BYTES);
        close(fd);
    }
}

static void test_files_and_memory(const char *directory, st_backend backend, uint32_t stripe_count) {
    st_source *files[2], *memory[2], *emulated[2];
    char prefix[200];
    snprintf(prefix, sizeof prefix, "%s/region", directory);
    for (uint32_t k = 0; k < 2; k++) {
        st_layout layout = layout_of(k ? 14 : 1, stripe_count);
        uint8_t *pages = make_pages(&layout, seeds[k]);
        char paths[8][256];
        const char *pointers[8];
        write_stripes(prefix, &layout, pages, paths);
        for (uint32_t s = 0; s < stripe_count; s++)
            pointers[s] = paths[s];
        CHECK(st_source_open_files(pointers, stripe_count, &layout, &files[k]) == 0);
        CHECK(st_source_open_memory(pointers, stripe_count, &layout, &memory[k]) == 0);
        CHECK(st_source_open_emulated(memory[k], "test-core", &emulated[k]) == 0);
        for (uint32_t s = 0; s < stripe_count; s++)
            unlink(paths[s]);
        free(pages);
    }
    CHECK(st_delay_set("test-core", 50, 0.01, 0.001) == 0);
    st_core *core = open_core(files[0], files[1], 0, 0, 1, backend);
    int reason;
    CHECK(backend == ST_BACKEND_AUTO || st_core_backend(core, &reason) == backend);
    run_steps(core, 60, 0, 1);
    static const uint64_t sizes[] = {16, 1024, 5000, 100, 0, 40000, 300};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK(st_core_set_cache_rows(core, 0, sizes[i]) == 0);
        CHECK(st_core_set_cache_rows(core, 1, sizes[i] / 3) == 0);
        st_source **set = i % 3 == 0 ? memory : i % 3 == 1 ? emulated : files;
        for (uint32_t k = 0; k < 2; k++)
            CHECK(st_core_set_sources(core, k, &set[k], 1, (int)(i % 2)) == 0);
        run_steps(core, 40, 0, 1);
    }
    st_core_close(core);
    for (uint32_t rank = 0; rank < 3; rank++) {
        core = open_core(files[0], files[1], 600, rank, 3, backend);
        run_steps(core, 20, rank, 3);
        st_core_close(core);
    }
    for (uint32_t k = 0; k < 2; k++) {
        st_source_close(emulated[k]);
        st_source_close(memory[k]);
        st_source_close(files[k]);
    }
}

/* Faults that a second attempt or a second replica heals: no step fails, every row is right. */
static void test_faults_healed(void) {
    st_layout layouts[2] = {layout_of(1, 1), layout_of(14, 1)};
    uint8_t *pages[2] = {make_pages(&layouts[0], seeds[0]), make_pages(&layouts[1], seeds[1])};
    for (int kind = 1; kind <= 6; kind++) {
        fault_plan flaky[2], broken[2];
        st_source *first[2], *second[2];
        for (int k = 0; k < 2; k++) {
            flaky[k] = (fault_plan){
                .pages = pages[k], .page_count = layouts[k].page_count, .fail_every = 7, .fail_kind = kind};
            broken[k] = (fault_plan){
                .pages = pages[k], .page_count = layouts[k].page_count, .fail_every = 1, .fail_kind = kind};
            CHECK(st_source_open_callback(read_page, &broken[k], &layouts[k], &first[k]) == 0);
            CHECK(st_source_open_callback(read_page, &flaky[k], &layouts[k], &second[k]) == 0);
        }
        st_core *core = open_core(first[0], second[1], 800, 0, 1, ST_BACKEND_AUTO);
        st_source *replicas[2] = {first[0], second[0]};
        CHECK(st_core_set_sources(core, 0, replicas, 2, 0) == 0);
        replicas[0] = second[1], replicas[1] = first[1];
        CHECK(st_core_set_sources(core, 1, replicas, 2, 0) == 0);
        flaky[0].fail_every = 0; /* the last replica of layer 0 is sound */
        flaky[1].fail_every = 0;
        run_steps(core, 30, 0, 1);
        st_layer_stats stats;
        CHECK(st_core_stats(core, 0, &stats) == 0);
        CHECK(stats.failed_steps == 0 && stats.retries >= stats.pages && stats.pages > 0);
        st_core_close(core);
        for (int k = 0; k < 2; k++) {
            st_source_close(first[k]);
            st_source_close(second[k]);
        }
    }
    free(pages[0]);
    free(pages[1]);
}

/* No replica delivers: a named error, no row, and the next step is right again. */
static void test_failure_is_an_error_and_recovers(void) {
    st_layout layouts[2] = {layout_of(1, 1), layout_of(14, 1)};
    uint8_t *pages[2] = {make_pages(&layouts[0], seeds[0]), make_pages(&layouts[1], seeds[1])};
    static const int errors[] = {0, -EIO, -ENODATA, -EBADMSG, -EBADMSG, -ENODATA, -EBADMSG};
    for (int kind = 1; kind <= 6; kind++) {
        fault_plan plans[2];
        st_source *sources[2];
        for (int k = 0; k < 2; k++) {
            plans[k] = (fault_plan){.pages = pages[k], .page_count = layouts[k].page_count, .fail_kind = kind};
            CHECK(st_source_open_callback(read_page, &plans[k], &layouts[k], &sources[k]) == 0);
        }
        st_core *core = open_core(sources[0], sources[1], 800, 0, 1, ST_BACKEND_POSIX);
        run_steps(core, 5, 0, 1);
        __atomic_store_n(&plans[0].fail_every, 1, __ATOMIC_RELAXED);
        int64_t ids[3] = {15000, 15001, 19999};
        const int64_t *pointers[2] = {ids, ids};
        uint64_t counts[2] = {3, 3};
        uint8_t rows[3 * ROW_BYTES];
        st_layer_result result;
        CHECK(st_core_drop_cache(core, 0) == 0);
        CHECK(st_step_begin(core, pointers, counts) == 0);
        CHECK(st_step_wait(core, 0, second_ns, &result) == errors[kind]);
        CHECK(st_step_gather(core, 0, rows, ROW_BYTES) == -EAGAIN);
        CHECK(st_step_wait(core, 1, second_ns, &result) == 0);
        CHECK(st_step_end(core) == 0);
        st_fault_report report;
        CHECK(st_core_fault(core, 0, &report) == 0 && report.error == errors[kind]);
        __atomic_store_n(&plans[0].fail_every, 0, __ATOMIC_RELAXED);
        CHECK(st_step_begin(core, pointers, counts) == 0);
        CHECK(st_step_wait(core, 0, second_ns, &result) == 0);
        CHECK(result.hits == 0); /* what failed was not taken for a cached row */
        CHECK(st_step_gather(core, 0, rows, ROW_BYTES) == 0);
        check_rows(seeds[0], ids, 3, 0, 1, rows);
        CHECK(st_step_end(core) == 0);
        run_steps(core, 5, 0, 1);
        st_core_close(core);
        for (int k = 0; k < 2; k++)
            st_source_close(sources[k]);
    }
    free(pages[0]);
    free(pages[1]);
}

/* A reader that is late ends in -ETIMEDOUT; until it is back the core refuses steps; then it is right again. */
static void test_late_reader(void) {
    st_layout layouts[2] = {layout_of(1, 1), layout_of(14, 1)};
    uint8_t *pages[2] = {make_pages(&layouts[0], seeds[0]), make_pages(&layouts[1], seeds[1])};
    fault_plan plans[2];
    st_source *sources[2];
    for (int k = 0; k < 2; k++) {
        plans[k] = (fault_plan){.pages = pages[k], .page_count = layouts[k].page_count};
        CHECK(st_source_open_callback(read_page, &plans[k], &layouts[k], &sources[k]) == 0);
    }
    st_core *core = open_core(sources[0], sources[1], 800, 0, 1, ST_BACKEND_AUTO);
    int64_t ids[2] = {7, 12345};
    const int64_t *pointers[2] = {ids, ids};
    uint64_t counts[2] = {2, 0};
    st_layer_result result;
    __atomic_store_n(&plans[0].delay_us, 200000, __ATOMIC_RELAXED);
    CHECK(st_step_begin(core, pointers, counts) == 0);
    CHECK(st_step_wait(core, 0, second_ns / 50, &result) == -ETIMEDOUT);
    CHECK(st_step_end(core) == 0);
    CHECK(st_step_begin(core, pointers, counts) == -EBUSY);
    CHECK(st_core_set_cache_rows(core, 0, 16) == -EBUSY);
    __atomic_store_n(&plans[0].delay_us, 0, __ATOMIC_RELAXED);
    int rc, tries = 0;
    while ((rc = st_step_begin(core, pointers, counts)) == -EBUSY && tries++ < 1000)
        usleep(2000);
    CHECK(rc == 0);
    CHECK(st_step_wait(core, 0, second_ns, &result) == 0);
    CHECK(result.hits == 0);
    CHECK(st_step_end(core) == 0);
    run_steps(core, 5, 0, 1);
    st_core_close(core);
    for (int k = 0; k < 2; k++) {
        st_source_close(sources[k]);
        free(pages[k]);
    }
}

static void test_bad_ids_start_nothing(void) {
    st_layout layouts[2] = {layout_of(1, 1), layout_of(14, 1)};
    uint8_t *pages = make_pages(&layouts[0], seeds[0]);
    fault_plan plan = {.pages = pages, .page_count = layouts[0].page_count};
    st_source *sources[2];
    for (int k = 0; k < 2; k++)
        CHECK(st_source_open_callback(read_page, &plan, &layouts[k], &sources[k]) == 0);
    st_core *core = open_core(sources[0], sources[1], 0, 0, 1, ST_BACKEND_AUTO);
    int64_t good[1] = {1}, bad[3][1] = {{ROWS}, {-2}, {INT64_MIN}};
    uint64_t counts[2] = {1, 1};
    for (int i = 0; i < 3; i++) {
        const int64_t *pointers[2] = {good, bad[i]};
        CHECK(st_step_begin(core, pointers, counts) == -ERANGE);
    }
    uint64_t many[2] = {LOOKUPS_MAX + 1, 0};
    const int64_t *pointers[2] = {good, good};
    CHECK(st_step_begin(core, pointers, many) == -E2BIG);
    CHECK(plan.reads == 0);
    st_core_close(core);
    for (int k = 0; k < 2; k++)
        st_source_close(sources[k]);
    free(pages);
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : "/tmp";
    test_bad_ids_start_nothing();
    test_faults_healed();
    test_failure_is_an_error_and_recovers();
    test_late_reader();
    test_files_and_memory(directory, ST_BACKEND_POSIX, 1);
    test_files_and_memory(directory, ST_BACKEND_AUTO, 1);
    test_files_and_memory(directory, ST_BACKEND_AUTO, 3);
    puts("test_core: ok");
    return 0;
}
