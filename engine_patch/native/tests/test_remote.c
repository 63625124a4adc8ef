/* SPDX-License-Identifier: Apache-2.0 */
/* A remote source's link: what takes it down, who hears of it, and what brings it back. */
#include <pthread.h>

#include "pattern_core.h"
#include "remote.h"

typedef struct peer {
    int fetches, fetch_result, probe_result, closed;
} peer;

static int fetch(void *context, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                 uint64_t deadline_ns) {
    peer *self = context;
    uint8_t record[ST_PAGE_BYTES] = {0};
    __atomic_add_fetch(&self->fetches, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < count && self->fetch_result == 0; i++)
        arrived(sink, i, record);
    return self->fetch_result;
}

static int probe(void *context) {
    return ((peer *)context)->probe_result;
}

static void closed(void *context) {
    ((peer *)context)->closed++;
}

static void count_arrived(void *sink, uint32_t index, const uint8_t *record) {
    ++*(int *)sink;
}

static st_source *open_remote(peer *self, uint64_t timeout_ns, int up) {
    const st_remote remote = {.rows_max = 8, .timeout_ns = timeout_ns, .fetch = fetch, .probe = probe, .close = closed};
    const st_layout layout = layout_of(1, 1);
    st_source *source = NULL;
    CHECK(st_source_open_remote(&remote, self, &layout, up, &source) == 0);
    return source;
}

static void test_a_failed_fetch_takes_the_link_down_until_it_is_set_up(void) {
    peer self = {0};
    int arrived = 0;
    const uint32_t ids[2] = {3, 4};
    st_source *source = open_remote(&self, second_ns, 1);
    CHECK(st_link_fetch(source->link, ids, 2, count_arrived, &arrived, 0) == 0 && arrived == 2);
    CHECK(st_remote_wait_down(source, 1) == 0);
    self.fetch_result = -ECONNRESET;
    CHECK(st_link_fetch(source->link, ids, 2, count_arrived, &arrived, 0) == -ECONNRESET);
    self.fetch_result = 0;
    CHECK(st_link_fetch(source->link, ids, 2, count_arrived, &arrived, 0) == -ECONNRESET);
    CHECK(self.fetches == 2 && arrived == 2 && st_remote_state(source) == -ECONNRESET);
    CHECK(st_remote_wait_down(source, second_ns) == 1);
    st_remote_set_up(source);
    CHECK(st_remote_state(source) == 0);
    CHECK(st_link_fetch(source->link, ids, 2, count_arrived, &arrived, 0) == 0 && arrived == 4);
    st_source_close(source);
    CHECK(self.closed == 1);
}

static void test_a_dead_idle_link_is_found_by_its_probe(void) {
    peer self = {.probe_result = -ETIMEDOUT};
    st_source *source = open_remote(&self, second_ns, 1);
    CHECK(st_remote_wait_down(source, 1000) == 1);
    CHECK(st_remote_state(source) == -ETIMEDOUT);
    st_source_close(source);
}

static void *keep(void *argument) {
    st_source *source = argument;
    CHECK(st_remote_wait_down(source, 10 * second_ns) == 1);
    st_remote_set_up(source);
    CHECK(st_remote_wait_down(source, 10 * second_ns) == -ECANCELED);
    return NULL;
}

static void test_waiters_hear_of_each_change(void) {
    peer self = {.fetch_result = -EPIPE};
    st_source *source = open_remote(&self, 10 * second_ns, 1);
    pthread_t keeper;
    const uint32_t id = 1;
    CHECK(pthread_create(&keeper, NULL, keep, source) == 0);
    CHECK(st_link_fetch(source->link, &id, 1, count_arrived, NULL, 0) == -EPIPE);
    CHECK(st_link_await_up(source->link) == 0);
    st_remote_cancel(source);
    pthread_join(keeper, NULL);
    st_source_close(source);
}

static void test_nobody_waits_for_a_link_that_has_been_down_for_long(void) {
    peer self = {0};
    st_source *source = open_remote(&self, 1000, 0);
    CHECK(st_link_await_up(source->link) == -ENOTCONN);
    st_source_close(source);
}

int main(void) {
    test_a_failed_fetch_takes_the_link_down_until_it_is_set_up();
    test_a_dead_idle_link_is_found_by_its_probe();
    test_waiters_hear_of_each_change();
    test_nobody_waits_for_a_link_that_has_been_down_for_long();
    puts("test_remote: ok");
    return 0;
}
