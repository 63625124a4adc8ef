/* SPDX-License-Identifier: Apache-2.0 */
/* The lookup core against a table whose every byte is a function of its row id, with injected faults. */
#include <fcntl.h>
#include <sys/mman.h>

#include "core.h"
#include "pattern_core.h"

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

static void test_files_and_memory(const char *directory, st_backend backend, uint32_t stripe_count, int own_reads) {
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
    int in_force = own_reads && st_core_backend(core, &reason) == ST_BACKEND_URING;
    CHECK(st_core_set_own_reads(core, own_reads) == in_force);
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

/* The second level: its rows are right through evictions, resizes and other sources, and it spares reads. */
static void test_second_level(st_backend backend) {
    st_layout layouts[2] = {layout_of(1, 1), layout_of(14, 1)};
    fault_plan plans[2];
    st_source *sources[2], *memory[2];
    for (int k = 0; k < 2; k++) {
        plans[k] = (fault_plan){.pages = make_pages(&layouts[k], seeds[k]), .page_count = layouts[k].page_count};
        CHECK(st_source_open_callback(read_page, &plans[k], &layouts[k], &sources[k]) == 0);
        CHECK(st_source_open_borrowed(plans[k].pages, &layouts[k], &memory[k]) == 0);
    }
    st_core *core = open_core(sources[0], sources[1], 100, 0, 1, backend);
    static const uint64_t sizes[] = {4000, 30000, 600, 0, 9000};
    st_layer_stats before, stats;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint32_t k = 0; k < 2; k++) {
            CHECK(st_core_set_host_rows(core, k, sizes[i]) == 0);
            CHECK(st_core_set_sources(core, k, i % 2 ? &memory[k] : &sources[k], 1, 1) == 0);
        }
        CHECK(st_core_stats(core, 0, &before) == 0);
        run_steps(core, 30, 0, 1);
        CHECK(st_core_stats(core, 0, &stats) == 0);
        CHECK(stats.host_rows == sizes[i] && stats.bad_records == 0);
        uint64_t hits = stats.host_hits - before.host_hits;
        CHECK(sizes[i] ? hits > 0 : hits == 0);
        CHECK(stats.pages - before.pages + hits <= stats.misses - before.misses);
    }
    /* Where all rows fit, the second time around nothing is read. */
    CHECK(st_core_set_host_rows(core, 0, 2 * ROWS) == 0 && st_core_set_cache_rows(core, 0, 0) == 0);
    CHECK(st_core_set_sources(core, 0, &sources[0], 1, 1) == 0);
    static int64_t ids[LOOKUPS_MAX];
    static uint8_t rows[(size_t)LOOKUPS_MAX * ROW_BYTES];
    const int64_t *pointers[2] = {ids, ids};
    for (int i = 0; i < LOOKUPS_MAX; i++)
        ids[i] = i;
    for (int turn = 0; turn < 4; turn++) {
        st_layer_result result;
        if (turn == 2) /* damage: found, and the source asked again */
            memset(core->layers[0].host_records, 0xA5, core->layers[0].host_map_bytes);
        CHECK(st_step_begin(core, pointers, (uint64_t[2]){LOOKUPS_MAX, 0}) == 0);
        CHECK(st_step_wait(core, 0, 5 * second_ns, &result) == 0);
        CHECK(st_step_gather(core, 0, rows, ROW_BYTES) == 0);
        check_rows(seeds[0], ids, LOOKUPS_MAX, 0, 1, rows);
        CHECK(turn == 0 || (result.host_hits == LOOKUPS_MAX && result.pages == 0));
        CHECK(st_step_end(core) == 0);
    }
    CHECK(st_core_stats(core, 0, &before) == 0 && before.bad_records == LOOKUPS_MAX);
    /* What was not read is not there. */
    CHECK(st_core_drop_cache(core, 0) == 0);
    __atomic_store_n(&plans[0].fail_kind, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&plans[0].fail_every, 1, __ATOMIC_RELAXED);
    for (int turn = 0; turn < 2; turn++) {
        st_layer_result result;
        CHECK(st_step_begin(core, pointers, (uint64_t[2]){40, 0}) == 0);
        CHECK(st_step_wait(core, 0, second_ns, &result) == -EIO && result.host_hits == 0);
        CHECK(st_step_end(core) == 0);
    }
    st_core_close(core);
    for (int k = 0; k < 2; k++) {
        st_source_close(sources[k]);
        st_source_close(memory[k]);
        free((void *)plans[k].pages);
    }
}

/* Directories of every alignment that the kernel may give, each next to a page of somebody else's that has to outlive it. */
static void test_a_closed_directory_takes_its_own_memory_alone(uint64_t slot_count) {
    enum { NEIGHBOURS = 512 }; /* of 4 KiB: a huge page */
    static uint8_t *neighbours[NEIGHBOURS];
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        st_directory directory;
        neighbours[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(neighbours[i] != MAP_FAILED);
        CHECK(st_directory_open(&directory, slot_count, ST_CACHE_CLOCK) == 0);
        st_directory_close(&directory);
    }
    unsigned char resident;
    for (uint32_t i = 0; i < NEIGHBOURS; i++)
        CHECK(mincore(neighbours[i], 4096, &resident) == 0 && munmap(neighbours[i], 4096) == 0);
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : "/tmp";
    test_a_closed_directory_takes_its_own_memory_alone(500000);
    test_a_closed_directory_takes_its_own_memory_alone(600000);
    test_bad_ids_start_nothing();
    test_faults_healed();
    test_failure_is_an_error_and_recovers();
    test_late_reader();
    test_second_level(ST_BACKEND_POSIX);
    test_second_level(ST_BACKEND_AUTO);
    test_files_and_memory(directory, ST_BACKEND_POSIX, 1, 0);
    test_files_and_memory(directory, ST_BACKEND_POSIX, 1, 1);
    test_files_and_memory(directory, ST_BACKEND_AUTO, 1, 0);
    test_files_and_memory(directory, ST_BACKEND_AUTO, 3, 1);
    puts("test_core: ok");
    return 0;
}
