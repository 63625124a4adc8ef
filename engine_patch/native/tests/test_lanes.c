/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that read from remote sources, alone and among others: right rows or a named error, whatever the peer does. */
#include <pthread.h>

#include "core.h"
#include "pattern_core.h"
#include "st_remote.h"

/* A peer that holds a table, and its keeper. */
typedef struct peer {
    st_layout layout;
    uint8_t *pages;
    st_source *source;
    pthread_t keeper;
    /* atomic */
    int link_error; /* what every n-th fetch does to the link */
    int lie;        /* of every n-th record: 1 flipped bit, 2 another row, 3 none, 4 zeros */
    int every;
    int refuses; /* new connections */
    int fetches, rows, most_rows;
    uint32_t delay_us;
} peer;

static int load(const int *value) {
    return __atomic_load_n(value, __ATOMIC_RELAXED);
}

static void store(int *value, int to) {
    __atomic_store_n(value, to, __ATOMIC_RELAXED);
}

static void answer(peer *self, uint32_t row_id, int lie, st_remote_arrived arrived, void *sink, uint32_t index) {
    uint8_t record[ST_PAGE_BYTES] = {0};
    uint64_t sent = lie == 2 ? (row_id + 1) % ROWS : row_id;
    if (lie == 3)
        return;
    if (lie != 4)
        memcpy(record,
               st_page_record(&self->layout, self->pages + sent / self->layout.rows_per_page * ST_PAGE_BYTES, sent),
               self->layout.record_bytes);
    if (lie == 1)
        record[row_id % PAYLOAD] ^= 16;
    arrived(sink, index, record);
}

static int fetch(void *context, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                 uint64_t deadline_ns) {
    peer *self = context;
    int n = __atomic_add_fetch(&self->fetches, 1, __ATOMIC_RELAXED), every = load(&self->every);
    uint32_t delay_us = __atomic_load_n(&self->delay_us, __ATOMIC_RELAXED);
    int fails = every && load(&self->link_error) && n % every == 0;
    if ((int)count > self->most_rows)
        self->most_rows = (int)count;
    if (delay_us)
        usleep(delay_us);
    for (uint32_t i = count; i-- > (fails ? count / 2 : 0);) /* in an order of its own; half of them, then nothing */
        answer(self, row_ids[i], every && (int)i % every == 0 ? load(&self->lie) : 0, arrived, sink, i);
    __atomic_add_fetch(&self->rows, (int)count, __ATOMIC_RELAXED);
    return fails ? load(&self->link_error) : 0;
}

static void *keep(void *argument) {
    peer *self = argument;
    int rc;
    while ((rc = st_remote_wait_down(self->source, second_ns / 100)) != -ECANCELED) {
        if (rc == 1 && load(&self->refuses))
            usleep(1000);
        else if (rc == 1)
            st_remote_set_up(self->source);
    }
    return NULL;
}

static void peer_open(peer *self, uint32_t layer_id, uint64_t seed, uint32_t rows_max) {
    *self = (peer){.layout = layout_of(layer_id, 1)};
    self->pages = make_pages(&self->layout, seed);
    const st_remote remote = {.rows_max = rows_max, .timeout_ns = second_ns / 10, .fetch = fetch};
    CHECK(st_source_open_remote(&remote, self, &self->layout, 1, &self->source) == 0);
    CHECK(pthread_create(&self->keeper, NULL, keep, self) == 0);
}

static void peer_close(peer *self) {
    st_remote_cancel(self->source);
    pthread_join(self->keeper, NULL);
    st_source_close(self->source);
    free(self->pages);
}

static void peers_open(peer peers[4], uint32_t rows_max) {
    for (int i = 0; i < 4; i++)
        peer_open(&peers[i], i % 2 ? 14 : 1, seeds[i % 2], rows_max);
}

static void peers_close(peer peers[4]) {
    for (int i = 0; i < 4; i++)
        peer_close(&peers[i]);
}

static st_layer_stats stats_of(const st_core *core, uint32_t layer) {
    st_layer_stats stats;
    CHECK(st_core_stats(core, layer, &stats) == 0);
    return stats;
}

static void test_a_step_is_one_request_per_layer(void) {
    peer peers[4];
    peers_open(peers, 8192);
    st_core *core = open_core(peers[0].source, peers[1].source, 800, 0, 1, ST_BACKEND_AUTO);
    run_steps(core, 60, 0, 1);
    for (uint32_t k = 0; k < 2; k++) {
        st_layer_stats stats = stats_of(core, k);
        CHECK(load(&peers[k].fetches) <= 60 && stats.retries == 0 && stats.failed_steps == 0);
        CHECK(stats.replica_rows[0] == stats.misses && (uint64_t)load(&peers[k].rows) == stats.misses);
    }
    st_core_close(core);
    peers_close(peers);
}

static void test_a_request_holds_no_more_than_the_peer_takes(void) {
    peer peers[4];
    peers_open(peers, 40);
    st_core *core = open_core(peers[0].source, peers[1].source, 0, 0, 1, ST_BACKEND_AUTO);
    run_steps(core, 20, 0, 1);
    CHECK(peers[0].most_rows <= 40 && peers[0].most_rows > 20 && load(&peers[0].fetches) > 20);
    st_core_close(core);
    peers_close(peers);
}

/* Each lie and each loss of the link, with a second replica that is a remote, a callback, or memory. */
static void test_another_replica_heals_what_a_peer_does(void) {
    peer peers[4];
    peers_open(peers, 8192);
    for (int kind = 0; kind < 15; kind++) {
        int lie = kind % 5, local = kind / 5;
        st_source *second[2];
        fault_plan plans[2];
        for (int k = 0; k < 2; k++) {
            plans[k] = (fault_plan){.pages = peers[k].pages, .page_count = peers[k].layout.page_count};
            if (local == 0)
                st_source_retain(second[k] = peers[2 + k].source);
            else if (local == 1)
                CHECK(st_source_open_callback(read_page, &plans[k], &peers[k].layout, &second[k]) == 0);
            else
                CHECK(st_source_open_borrowed(peers[k].pages, &peers[k].layout, &second[k]) == 0);
        }
        st_core *core = open_core(peers[0].source, peers[1].source, 800, 0, 1, ST_BACKEND_AUTO);
        for (uint32_t k = 0; k < 2; k++)
            CHECK(st_core_set_sources(core, k, (st_source *[]){peers[k].source, second[k]}, 2, 0) == 0);
        for (int k = 0; k < 2; k++) {
            store(&peers[k].lie, lie);
            store(&peers[k].link_error, lie ? 0 : -ECONNRESET);
            store(&peers[k].every, 3);
        }
        run_steps(core, 30, 0, 1);
        for (uint32_t k = 0; k < 2; k++) {
            st_layer_stats stats = stats_of(core, k);
            CHECK(stats.failed_steps == 0 && stats.retries > 0);
            CHECK(stats.replica_rows[1] > 0 || lie == 0); /* a connection that is back at once is asked again */
            CHECK(stats.replica_rows[0] + stats.replica_rows[1] == stats.misses);
            CHECK(lie == 0 || lie == 3 ? stats.read_errors > 0 : stats.bad_records > 0);
            store(&peers[k].every, 0);
        }
        st_core_close(core);
        st_source_close(second[0]);
        st_source_close(second[1]);
    }
    peers_close(peers);
}

static void test_a_local_replica_falls_back_to_a_remote_one(void) {
    peer peers[4];
    peers_open(peers, 8192);
    fault_plan plans[2];
    st_source *first[2];
    for (int k = 0; k < 2; k++) {
        plans[k] = (fault_plan){.pages = peers[k].pages,
                                .page_count = peers[k].layout.page_count,
                                .fail_every = 1 + k * 3,
                                .fail_kind = 1 + k * 3};
        CHECK(st_source_open_callback(read_page, &plans[k], &peers[k].layout, &first[k]) == 0);
    }
    st_core *core = open_core(first[0], first[1], 800, 0, 1, ST_BACKEND_POSIX);
    for (uint32_t k = 0; k < 2; k++)
        CHECK(st_core_set_sources(core, k, (st_source *[]){first[k], peers[k].source}, 2, 0) == 0);
    run_steps(core, 30, 0, 1);
    st_layer_stats stats = stats_of(core, 0);
    CHECK(stats.failed_steps == 0 && stats.replica_rows[0] == 0 && stats.replica_rows[1] == stats.misses);
    st_core_close(core);
    for (int k = 0; k < 2; k++)
        st_source_close(first[k]);
    peers_close(peers);
}

/* While a link is down, steps begin at the next replica and do not ask the first. */
static void test_a_link_that_stays_down_is_not_asked(void) {
    peer peers[4];
    peers_open(peers, 8192);
    st_core *core = open_core(peers[0].source, peers[1].source, 0, 0, 1, ST_BACKEND_AUTO);
    for (uint32_t k = 0; k < 2; k++)
        CHECK(st_core_set_sources(core, k, (st_source *[]){peers[k].source, peers[2 + k].source}, 2, 0) == 0);
    store(&peers[0].refuses, 1);
    store(&peers[0].link_error, -ETIMEDOUT);
    store(&peers[0].every, 1);
    run_steps(core, 1, 0, 1);
    int fetches = load(&peers[0].fetches);
    uint64_t retries = stats_of(core, 0).retries;
    run_steps(core, 20, 0, 1);
    CHECK(load(&peers[0].fetches) == fetches && stats_of(core, 0).retries == retries);
    store(&peers[0].every, 0);
    store(&peers[0].refuses, 0);
    while (st_remote_state(peers[0].source) < 0)
        usleep(1000);
    run_steps(core, 5, 0, 1);
    CHECK(load(&peers[0].fetches) > fetches);
    st_core_close(core);
    peers_close(peers);
}

static int one_step(st_core *core, int64_t first_id) {
    int64_t ids[3] = {first_id, first_id + 1, first_id + 500};
    const int64_t *pointers[2] = {ids, ids};
    uint64_t counts[2] = {3, 3};
    uint8_t rows[3 * ROW_BYTES];
    st_layer_result result;
    CHECK(st_step_begin(core, pointers, counts) == 0);
    int rc = st_step_wait(core, 0, 5 * second_ns, &result);
    if (rc == 0) {
        CHECK(st_step_gather(core, 0, rows, ROW_BYTES) == 0);
        check_rows(seeds[0], ids, 3, 0, 1, rows);
    } else {
        CHECK(st_step_gather(core, 0, rows, ROW_BYTES) == -EAGAIN);
    }
    CHECK(st_step_wait(core, 1, 5 * second_ns, &result) == 0);
    CHECK(st_step_end(core) == 0);
    return rc;
}

/* A lone remote: a connection that comes back at once is waited for; one that does not ends in its errno, in time. */
static void test_a_lone_remote_heals_or_fails_by_name(void) {
    peer peers[4];
    peers_open(peers, 8192);
    st_core *core = open_core(peers[0].source, peers[1].source, 800, 0, 1, ST_BACKEND_AUTO);
    store(&peers[0].link_error, -ECONNRESET);
    store(&peers[0].every, 2); /* the second fetch loses the connection, the third is fine */
    for (int i = 0; i < 20; i++)
        CHECK(one_step(core, 3 * i) == 0);
    store(&peers[0].refuses, 1);
    store(&peers[0].every, 1);
    uint64_t start_ns = st_now_ns();
    CHECK(one_step(core, 1000) == -ECONNRESET);
    CHECK(one_step(core, 2000) == -ECONNRESET);
    CHECK(st_now_ns() - start_ns < second_ns);
    st_fault_report report;
    CHECK(st_core_fault(core, 0, &report) == 0 && report.error == -ECONNRESET && report.row_id >= 2000);
    store(&peers[0].every, 0);
    store(&peers[0].refuses, 0);
    while (st_remote_state(peers[0].source) < 0)
        usleep(1000);
    CHECK(one_step(core, 1000) == 0);
    store(&peers[0].every, 1);
    store(&peers[0].link_error, 0);
    for (int lie = 1; lie <= 4; lie++) {
        store(&peers[0].lie, lie);
        CHECK(one_step(core, 3000) == (lie == 3 ? -EIO : -EBADMSG));
    }
    store(&peers[0].every, 0);
    CHECK(one_step(core, 3000) == 0);
    st_core_close(core);
    peers_close(peers);
}

static void test_the_second_level_spares_requests(void) {
    peer peers[4];
    peers_open(peers, 8192);
    st_core *core = open_core(peers[0].source, peers[1].source, 100, 0, 1, ST_BACKEND_AUTO);
    for (uint32_t k = 0; k < 2; k++)
        CHECK(st_core_set_host_rows(core, k, 5000) == 0);
    run_steps(core, 40, 0, 1);
    st_layer_stats stats = stats_of(core, 0);
    CHECK(stats.host_hits > 0 && (uint64_t)load(&peers[0].rows) == stats.misses - stats.host_hits);
    st_core_close(core);
    peers_close(peers);
}

/* Sources change between steps all the time; each step reads from those that are in force. */
static void test_sources_are_switched_under_load(void) {
    peer peers[4];
    peers_open(peers, 8192);
    st_source *memory[2];
    for (int k = 0; k < 2; k++)
        CHECK(st_source_open_borrowed(peers[k].pages, &peers[k].layout, &memory[k]) == 0);
    st_core *core = open_core(memory[0], memory[1], 300, 0, 1, ST_BACKEND_AUTO);
    for (int i = 0; i < 60; i++) {
        for (uint32_t k = 0; k < 2; k++) {
            st_source *choices[3] = {memory[k], peers[k].source, peers[2 + k].source};
            uint32_t count = 1 + (uint32_t)(random_next() % 3), from = (uint32_t)(random_next() % 3);
            st_source *chosen[3] = {choices[from], choices[(from + 1) % 3], choices[(from + 2) % 3]};
            CHECK(st_core_set_sources(core, k, chosen, count, (int)(random_next() % 2)) == 0);
        }
        run_steps(core, 2, 0, 1);
    }
    CHECK(stats_of(core, 0).failed_steps == 0 && stats_of(core, 0).retries == 0);
    st_core_close(core);
    for (int k = 0; k < 2; k++)
        st_source_close(memory[k]);
    peers_close(peers);
}

/* A core may be closed while a peer still keeps a request waiting. */
static void test_close_waits_for_a_slow_fetch(void) {
    peer peers[4];
    peers_open(peers, 8192);
    st_core *core = open_core(peers[0].source, peers[1].source, 0, 0, 1, ST_BACKEND_AUTO);
    CHECK(st_core_set_sources(core, 0, (st_source *[]){peers[0].source, peers[2].source}, 2, 0) == 0);
    __atomic_store_n(&peers[0].delay_us, 50000, __ATOMIC_RELAXED);
    store(&peers[0].link_error, -ETIMEDOUT);
    store(&peers[0].every, 1);
    int64_t ids[2] = {7, 12345};
    const int64_t *pointers[2] = {ids, ids};
    uint64_t counts[2] = {2, 0};
    st_layer_result result;
    CHECK(st_step_begin(core, pointers, counts) == 0);
    CHECK(st_step_wait(core, 0, 1000, &result) == -ETIMEDOUT);
    CHECK(st_step_end(core) == 0);
    CHECK(st_core_set_sources(core, 0, &peers[2].source, 1, 0) == -EBUSY);
    st_core_close(core);
    peers_close(peers);
}

int main(void) {
    test_a_step_is_one_request_per_layer();
    test_a_request_holds_no_more_than_the_peer_takes();
    test_another_replica_heals_what_a_peer_does();
    test_a_local_replica_falls_back_to_a_remote_one();
    test_a_link_that_stays_down_is_not_asked();
    test_a_lone_remote_heals_or_fails_by_name();
    test_the_second_level_spares_requests();
    test_sources_are_switched_under_load();
    test_close_waits_for_a_slow_fetch();
    puts("test_lanes: ok");
    return 0;
}
