/* SPDX-License-Identifier: Apache-2.0 */
/* The step path with a GPU played by this program: it publishes ids, waits for the flag, copies the answer and lines into "device"
 * slots as the fill kernel does, and every gathered row must be the pattern's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "st_step_path.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { ROWS = 20000, PAYLOAD = 256, SCALES = 8, ROW_BYTES = PAYLOAD + SCALES, LINE = 272, LOOKUPS_MAX = 4096 };
enum { SLOTS_MAX = 24000, LAYERS = 2, ANSWER_BYTES = 64 + (4 + LINE) * LOOKUPS_MAX };
static const uint64_t second_ns = 1000000000u;
static const uint64_t seeds[LAYERS] = {11, 14};

typedef struct device {
    st_step_layer mail[LAYERS];
    uint8_t *slots[LAYERS], *answer[LAYERS]; /* answer: the copy */
    uint64_t count[LAYERS];
    uint32_t step, rank, tp;
    int32_t failed[LAYERS];
} device;

/* A table behind a callback that can be told to be late or to fail. */
typedef struct table {
    st_layout layout;
    uint8_t *pages;
    st_source *source;
    uint32_t delay_us, fail;
} table;

static int64_t read_page(void *context, uint64_t page_id, uint8_t *page) {
    table *self = context;
    uint32_t delay_us = __atomic_load_n(&self->delay_us, __ATOMIC_RELAXED);
    if (delay_us)
        usleep(delay_us);
    memcpy(page, self->pages + page_id * ST_PAGE_BYTES, ST_PAGE_BYTES);
    if (__atomic_load_n(&self->fail, __ATOMIC_RELAXED))
        page[30] ^= 1, page[3000] ^= 1, page[4000] ^= 1;
    return ST_PAGE_BYTES;
}

static void table_open(table *self, int index, int in_memory) {
    static const uint8_t uuid[16] = "slacktier-tests";
    memset(self, 0, sizeof *self);
    CHECK(st_layout_init(&self->layout, ROWS, PAYLOAD, SCALES, uuid, index ? 14 : 1, 1, 1) == 0);
    uint8_t *weights = malloc((size_t)ROWS * PAYLOAD), *scales = malloc((size_t)ROWS * SCALES);
    self->pages = aligned_alloc(ST_PAGE_BYTES, self->layout.page_count * ST_PAGE_BYTES);
    CHECK(weights && scales && self->pages);
    st_pattern_fill(seeds[index], 0, ROWS, PAYLOAD, SCALES, weights, scales);
    CHECK(st_pages_encode(&self->layout, 0, self->layout.page_count, weights, scales, self->pages) == 0);
    free(weights);
    free(scales);
    int rc = in_memory ? st_source_open_borrowed(self->pages, &self->layout, &self->source)
                       : st_source_open_callback(read_page, self, &self->layout, &self->source);
    CHECK(rc == 0);
}

static void table_close(table *self) {
    st_source_close(self->source);
    free(self->pages);
}

static st_core *core_open(table tables[LAYERS], uint64_t cache_rows, uint32_t rank, uint32_t tp) {
    st_core_config config = {.layer_count = LAYERS,
                             .rank = rank,
                             .tp = tp,
                             .io_threads = 2,
                             .queue_depth = 16,
                             .backend = ST_BACKEND_POSIX,
                             .spin_us = 50,
                             .lookups_max = LOOKUPS_MAX};
    st_layer_config layers[LAYERS];
    for (int k = 0; k < LAYERS; k++)
        layers[k] = (st_layer_config){.cache_rows = cache_rows, .source_count = 1, .sources = {tables[k].source}};
    st_core *core = NULL;
    CHECK(st_core_open(&config, layers, &core) == 0);
    return core;
}

static void device_open(device *gpu, uint32_t rank, uint32_t tp) {
    memset(gpu, 0, sizeof *gpu);
    gpu->rank = rank;
    gpu->tp = tp;
    for (int k = 0; k < LAYERS; k++) {
        st_step_layer *layer = &gpu->mail[k];
        layer->mail = aligned_alloc(64, sizeof *layer->mail);
        layer->row_ids = malloc(LOOKUPS_MAX * sizeof *layer->row_ids);
        layer->answer = aligned_alloc(64, ANSWER_BYTES);
        layer->line_bytes = LINE;
        gpu->slots[k] = malloc((size_t)SLOTS_MAX * ROW_BYTES);
        gpu->answer[k] = aligned_alloc(64, ANSWER_BYTES);
        CHECK(layer->mail && layer->row_ids && layer->answer && gpu->slots[k] && gpu->answer[k]);
    }
}

static void device_close(device *gpu) {
    for (int k = 0; k < LAYERS; k++) {
        free(gpu->mail[k].mail);
        free(gpu->mail[k].row_ids);
        free(gpu->mail[k].answer);
        free(gpu->slots[k]);
        free(gpu->answer[k]);
    }
}

static uint8_t *row_of(device *gpu, int k, uint32_t ref) {
    if (ref & 0x80000000u)
        return gpu->answer[k] + st_answer_lines(gpu->count[k]) + (size_t)(ref & 0x7FFFFFFFu) * LINE;
    return gpu->slots[k] + (size_t)ref * ROW_BYTES;
}

/* Wait for the flag as the stream does, copy the answer, then do what the fill kernel does. */
static void fill(device *gpu, int k) {
    st_step_layer *layer = &gpu->mail[k];
    for (uint64_t until_ns = st_now_ns() + 20 * second_ns; !__atomic_load_n(&layer->mail->ready, __ATOMIC_ACQUIRE);)
        CHECK(st_now_ns() < until_ns);
    __atomic_store_n(&layer->mail->ready, 0, __ATOMIC_RELEASE);
    uint64_t lines_at = st_answer_lines(gpu->count[k]);
    memcpy(gpu->answer[k], layer->answer, lines_at);
    const st_answer_head *head = (const st_answer_head *)gpu->answer[k];
    gpu->failed[k] = head->failed;
    if (head->failed == 0) /* late reads of a failed step may still write lines; a GPU copies them and uses none */
        memcpy(gpu->answer[k] + lines_at, layer->answer + lines_at, (size_t)head->line_count * LINE);
    CHECK(head->failed || head->line_count <= gpu->count[k]);
    for (uint32_t i = 0; gpu->failed[k] == 0 && i < head->line_count; i++) {
        const uint8_t *line = gpu->answer[k] + lines_at + (size_t)i * LINE;
        uint32_t ref;
        memcpy(&ref, line + ROW_BYTES, sizeof ref);
        CHECK(!(ref & 0x80000000u) || (ref & 0x7FFFFFFFu) == i);
        if (!(ref & 0x80000000u))
            memcpy(row_of(gpu, k, ref), line, ROW_BYTES);
    }
}

/* Gather into rows and compare; counts a layer that failed instead. */
static void gather_and_check(device *gpu, int k, const int64_t *ids, uint64_t count) {
    static uint8_t rows[(size_t)LOOKUPS_MAX * ROW_BYTES];
    static int64_t expected[LOOKUPS_MAX];
    uint64_t first_bad;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t ref = ((const uint32_t *)(gpu->answer[k] + sizeof(st_answer_head)))[i];
        expected[i] = ids[i] >= 0 && ids[i] % gpu->tp == gpu->rank ? ids[i] : -1;
        CHECK((ref == 0xFFFFFFFFu) == (expected[i] < 0));
        if (ref == 0xFFFFFFFFu)
            memset(rows + i * ROW_BYTES, 0, ROW_BYTES);
        else
            memcpy(rows + i * ROW_BYTES, row_of(gpu, k, ref), ROW_BYTES);
    }
    CHECK(st_pattern_check(seeds[k], expected, count, PAYLOAD, SCALES, rows, ROW_BYTES, &first_bad) == 0);
}

static void run_step(device *gpu, int64_t *const ids[LAYERS], const uint64_t counts[LAYERS]) {
    gpu->step++;
    for (int k = 0; k < LAYERS; k++) {
        gpu->count[k] = counts[k];
        memcpy(gpu->mail[k].row_ids, ids[k], counts[k] * sizeof(int64_t));
        __atomic_store_n(&gpu->mail[k].mail->published, counts[k] << 32 | gpu->step, __ATOMIC_RELEASE);
    }
    for (int k = 0; k < LAYERS; k++)
        fill(gpu, k);
    for (int k = 0; k < LAYERS; k++)
        if (gpu->failed[k] == 0)
            gather_and_check(gpu, k, ids[k], counts[k]);
}

static uint64_t random_state = 88172645463325252ull;
static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static void run_random_steps(device *gpu, int steps) {
    static int64_t storage[LAYERS][LOOKUPS_MAX];
    int64_t *const ids[LAYERS] = {storage[0], storage[1]};
    for (int s = 0; s < steps; s++) {
        uint64_t counts[LAYERS];
        for (int k = 0; k < LAYERS; k++) {
            counts[k] = s % 9 == 8 ? LOOKUPS_MAX : random_next() % 700;
            for (uint64_t i = 0; i < counts[k]; i++) {
                uint64_t r = random_next();
                ids[k][i] = r % 50 == 0 ? -1 : (int64_t)(r % 3 ? (r >> 8) % (ROWS / 16) : (r >> 8) % ROWS);
            }
        }
        run_step(gpu, ids, counts);
        CHECK(gpu->failed[0] == 0 && gpu->failed[1] == 0);
    }
}

static st_step_path *path_open(st_core *core, device *gpu, uint64_t timeout_ns) {
    st_step_settings settings = {.timeout_ns = timeout_ns, .spin_ns = 200000, .idle_poll_ns = 1000000};
    st_step_path *path = NULL;
    CHECK(st_step_path_open(core, gpu->mail, &settings, &path) == 0);
    return path;
}

static void test_rows_through_evictions_spills_and_control(int in_memory, uint32_t rank, uint32_t tp) {
    table tables[LAYERS];
    device gpu;
    for (int k = 0; k < LAYERS; k++)
        table_open(&tables[k], k, in_memory);
    device_open(&gpu, rank, tp);
    st_core *core = core_open(tables, 600, rank, tp);
    st_step_path *path = path_open(core, &gpu, 10 * second_ns);
    run_random_steps(&gpu, 40);
    static const uint64_t sizes[] = {16, 0, SLOTS_MAX - 16, 300};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK(st_step_path_pause(path, second_ns) == 0);
        CHECK(st_core_set_cache_rows(core, 0, sizes[i]) == 0);
        CHECK(st_core_set_cache_rows(core, 1, sizes[i] / 3) == 0);
        st_step_path_resume(path);
        run_random_steps(&gpu, 20);
    }
    st_step_status status;
    st_step_path_status(path, &status);
    CHECK(status.steps == gpu.step && status.failed_steps == 0 && status.error == 0);
    st_step_record records[8];
    CHECK(st_step_path_records(path, records, 8) == 8 && records[7].step == gpu.step);
    CHECK(records[7].hits[0] + records[7].repeats[0] + records[7].misses[0] == records[7].owned[0]);
    st_step_path_close(path);
    st_core_close(core);
    device_close(&gpu);
    for (int k = 0; k < LAYERS; k++)
        table_close(&tables[k]);
}

static void test_faults_are_named_and_forgotten(void) {
    table tables[LAYERS];
    device gpu;
    for (int k = 0; k < LAYERS; k++)
        table_open(&tables[k], k, 0);
    device_open(&gpu, 0, 1);
    st_core *core = core_open(tables, 2000, 0, 1);
    st_step_path *path = path_open(core, &gpu, 10 * second_ns);
    int64_t storage[LAYERS][256];
    int64_t *const ids[LAYERS] = {storage[0], storage[1]};
    const uint64_t counts[LAYERS] = {256, 256};
    for (int i = 0; i < 256; i++)
        storage[0][i] = storage[1][i] = i * 15;
    __atomic_store_n(&tables[1].fail, 1, __ATOMIC_RELAXED);
    run_step(&gpu, ids, counts);
    CHECK(gpu.failed[0] == 0 && gpu.failed[1] == -EBADMSG);
    st_step_status status;
    while (st_step_path_status(path, &status), status.steps < gpu.step)
        usleep(100);
    CHECK(status.error == -EBADMSG && status.layer == 1 && status.failed_step == 1);
    __atomic_store_n(&tables[1].fail, 0, __ATOMIC_RELAXED);
    run_step(&gpu, ids, counts); /* right, so nothing of the failed step was taken for cached */
    CHECK(gpu.failed[0] == 0 && gpu.failed[1] == 0);
    for (int i = 0; i < 256; i++)
        storage[0][i] = storage[1][i] = 5000 + i;
    storage[1][200] = ROWS; /* outside the table, found when reads are on their way */
    run_step(&gpu, ids, counts);
    CHECK(gpu.failed[1] == -ERANGE);
    storage[1][200] = 7;
    run_step(&gpu, ids, counts);
    CHECK(gpu.failed[0] == 0 && gpu.failed[1] == 0);
    st_step_path_clear(path);
    st_step_path_status(path, &status);
    CHECK(status.error == 0 && status.failed_steps == 2);
    st_step_path_close(path);
    st_core_close(core);
    device_close(&gpu);
    for (int k = 0; k < LAYERS; k++)
        table_close(&tables[k]);
}

static void test_late_reader_is_a_timeout_and_no_hang(void) {
    table tables[LAYERS];
    device gpu;
    for (int k = 0; k < LAYERS; k++)
        table_open(&tables[k], k, 0);
    device_open(&gpu, 0, 1);
    st_core *core = core_open(tables, 2000, 0, 1);
    st_step_path *path = path_open(core, &gpu, second_ns / 10);
    int64_t storage[LAYERS][8];
    int64_t *const ids[LAYERS] = {storage[0], storage[1]};
    const uint64_t counts[LAYERS] = {8, 8};
    for (int i = 0; i < 8; i++)
        storage[0][i] = storage[1][i] = 100 + i;
    __atomic_store_n(&tables[0].delay_us, 400000, __ATOMIC_RELAXED);
    run_step(&gpu, ids, counts);
    CHECK(gpu.failed[0] == -ETIMEDOUT);
    run_step(&gpu, ids, counts);
    CHECK(gpu.failed[0] == -EBUSY && gpu.failed[1] == -EBUSY);
    __atomic_store_n(&tables[0].delay_us, 0, __ATOMIC_RELAXED);
    int tries = 0;
    do {
        usleep(20000);
        run_step(&gpu, ids, counts);
    } while (gpu.failed[0] == -EBUSY && tries++ < 200);
    CHECK(gpu.failed[0] == 0 && gpu.failed[1] == 0);
    st_step_status status;
    st_step_path_status(path, &status);
    CHECK(status.error == -ETIMEDOUT && status.layer == 0);
    CHECK(status.sleeps > 0); /* it does not burn a core between steps */
    st_step_path_arm(path);
    run_random_steps(&gpu, 5);
    st_step_path_close(path);
    st_core_close(core);
    device_close(&gpu);
    for (int k = 0; k < LAYERS; k++)
        table_close(&tables[k]);
}

int main(void) {
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        test_rows_through_evictions_spills_and_control(in_memory, 0, 1);
        test_rows_through_evictions_spills_and_control(in_memory, 2, 3);
    }
    test_faults_are_named_and_forgotten();
    test_late_reader_is_a_timeout_and_no_hang();
    printf("test_step_path: ok\n");
    return 0;
}
