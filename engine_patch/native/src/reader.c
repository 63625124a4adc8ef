/* SPDX-License-Identifier: Apache-2.0 */
/* Reader threads: claim published page reads and take them through their slots (slots.c). */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"

enum {
    CLAIM_MEMORY = 8, /* reads that are copies: small shares, so that all readers get some */
    POSIX_THREADS_DEFAULT = 16
};

struct st_reader {
    st_core *core;
    pthread_t thread;
    int started;
    st_slots slots;
    uint32_t ready; /* futex: 1 once the thread has a ring, needs none, or has failed to get one */
    int ring_error;
};
typedef struct st_reader reader;

uint64_t st_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void st_futex_wait(uint32_t *word, uint32_t value, uint64_t timeout_ns) {
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns ? &timeout : NULL, NULL, 0);
}

void st_futex_wake(uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

void st_readers_notify(st_core *core, uint32_t count) {
    __atomic_add_fetch(&core->work, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&core->sleepers, __ATOMIC_SEQ_CST) == 0)
        return;
    uint32_t per_thread = core->backend == ST_BACKEND_URING ? ST_CLAIM_MAX : 1;
    st_futex_wake(&core->work, count ? (int)((count + per_thread - 1) / per_thread) : 1);
}

void st_readers_wake(st_core *core) {
    if (__atomic_load_n(&core->sleepers, __ATOMIC_SEQ_CST) == 0)
        return;
    __atomic_add_fetch(&core->work, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&core->work, INT_MAX);
}

static const uint8_t *page_in_memory(const st_layer *layer, const st_job *job) {
    return layer->sources[job->replica]->memory + (uint64_t)layer->reads[job->read].page_id * ST_PAGE_BYTES;
}

static void prefetch_page(const st_layer *layer, uint32_t layer_index, uint32_t read) {
    st_job job = st_first_try(layer, layer_index, read);
    st_prefetch_read(layer, &job, page_in_memory(layer, &job));
}

/* Reads from memory: copied here and now; those that fail go the way of all others. */
static void copy_reads(reader *self, uint32_t layer_index, uint32_t first, uint32_t count) {
    st_layer *layer = &self->core->layers[layer_index];
    uint32_t copied = 0, rows = 0;
    for (uint32_t i = 0; i < count && i < ST_PREFETCH_READS; i++)
        prefetch_page(layer, layer_index, first + i);
    for (uint32_t i = 0; i < count; i++) {
        st_job job = st_first_try(layer, layer_index, first + i);
        st_fault_report why;
        if (i + ST_PREFETCH_READS < count)
            prefetch_page(layer, layer_index, first + i + ST_PREFETCH_READS);
        int rc = st_deliver_page(layer, &job, page_in_memory(layer, &job), &why);
        if (rc >= 0) {
            copied++;
            rows += (uint32_t)rc;
        } else if (st_job_retry(layer, &job, &why)) {
            st_slots_start(&self->slots, &job);
        }
    }
    if (copied)
        st_complete(layer, layer->start, copied, rows);
}

static uint32_t claim_limit(const reader *self, uint32_t layer_index) {
    const st_core *core = self->core;
    uint32_t limit = core->backend == ST_BACKEND_POSIX ? 1 : ST_CLAIM_MAX;
    if (__atomic_load_n(&core->layers[layer_index].copies, __ATOMIC_RELAXED))
        limit = CLAIM_MEMORY;
    return self->slots.free_count < limit ? self->slots.free_count : limit;
}

/* What lanes could not deliver. */
static uint32_t start_passed_on(reader *self) {
    st_job jobs[ST_CLAIM_MAX];
    uint32_t limit = self->core->backend == ST_BACKEND_POSIX ? 1 : ST_CLAIM_MAX;
    uint32_t count =
        st_inbox_take(&self->core->inbox, jobs, self->slots.free_count < limit ? self->slots.free_count : limit);
    for (uint32_t i = 0; i < count; i++)
        st_slots_start(&self->slots, &jobs[i]);
    return count;
}

/* Claim what there is, the first layer's first; how many reads were claimed. */
static uint32_t claim_and_start(reader *self) {
    st_core *core = self->core;
    uint32_t total = start_passed_on(self);
    for (uint32_t k = 0; k < core->layer_count; k++) {
        st_layer *layer = &core->layers[k];
        uint32_t first, count;
        uint32_t limit = claim_limit(self, k);
        if (limit == 0)
            break;
        if (__atomic_load_n(&layer->start_lane, __ATOMIC_RELAXED) || (count = st_claim(layer, limit, &first)) == 0)
            continue;
        /* Only now, with reads of the step claimed, do the sources stay as they are. */
        if (layer->sources[layer->start]->kind == ST_SOURCE_MEMORY && layer->host_rows == 0)
            copy_reads(self, k, first, count);
        else
            st_slots_start_claimed(&self->slots, k, first, count);
        total += count;
        k = UINT32_MAX; /* look at the first layer again before a later one gets more */
    }
    return total;
}

static void *reader_main(void *argument) {
    reader *self = argument;
    st_core *core = self->core;
#ifdef ST_HAVE_URING
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN,
                                     0};
    /* Opened here: with SINGLE_ISSUER the ring belongs to the thread that made it. start_threads hears whether it could. */
    self->slots.may_poll = 1;
    if (core->backend == ST_BACKEND_URING)
        self->ring_error = st_slots_open_ring(&self->slots, flags);
#endif
    __atomic_store_n(&self->ready, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&self->ready, 1);
    while (!__atomic_load_n(&core->stop, __ATOMIC_ACQUIRE)) {
        uint32_t seen_work = __atomic_load_n(&core->work, __ATOMIC_SEQ_CST);
        uint32_t claimed = claim_and_start(self);
#ifdef ST_HAVE_URING
        if (self->slots.in_flight) {
            st_slots_submit_and_reap(&self->slots);
            continue;
        }
#endif
        if (claimed == 0)
            st_idle(&core->work, &core->sleepers, seen_work, core->spin_us);
    }
#ifdef ST_HAVE_URING
    st_slots_close_ring(&self->slots);
#endif
    return NULL;
}

/* Can this process have a ring at all? -EPERM and -ENOSYS are what sandboxes answer. */
static int probe_uring(void) {
#ifdef ST_HAVE_URING
    struct io_uring ring;
    int rc = io_uring_queue_init(2, &ring, 0);
    if (rc == 0)
        io_uring_queue_exit(&ring);
    return rc;
#else
    return -ENOSYS;
#endif
}

static int reader_init(st_core *core, reader *self) {
    self->core = core;
    int rc = st_slots_open(&self->slots, core, core->queue_depth);
    if (rc == 0)
        rc = -pthread_create(&self->thread, NULL, reader_main, self);
    self->started = rc == 0;
    return rc;
}

static void stop_threads(st_core *core) {
    __atomic_store_n(&core->stop, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&core->work, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&core->work, INT_MAX);
    for (uint32_t i = 0; i < core->reader_count; i++) {
        reader *self = &core->readers[i];
        if (self->started)
            pthread_join(self->thread, NULL);
        st_slots_close(&self->slots);
    }
    free(core->readers);
    core->readers = NULL;
    core->reader_count = 0;
    core->stop = 0;
}

/* Threads of core->backend, each with what it needs; 0, or why not, and then none is left. */
static int start_threads(st_core *core, uint32_t io_threads) {
    if (io_threads == 0)
        io_threads = core->backend == ST_BACKEND_URING ? 1 : POSIX_THREADS_DEFAULT;
    core->readers = calloc(io_threads, sizeof *core->readers);
    if (!core->readers)
        return -ENOMEM;
    int rc = 0;
    for (core->reader_count = 0; rc == 0 && core->reader_count < io_threads; core->reader_count++)
        rc = reader_init(core, &core->readers[core->reader_count]);
    for (uint32_t i = 0; i < core->reader_count; i++) {
        reader *self = &core->readers[i];
        while (self->started && __atomic_load_n(&self->ready, __ATOMIC_SEQ_CST) == 0)
            st_futex_wait(&self->ready, 0, 0);
        rc = rc < 0 ? rc : self->ring_error;
    }
    if (rc < 0)
        stop_threads(core);
    return rc;
}

int st_readers_start(st_core *core, uint32_t io_threads, uint32_t backend) {
    if (backend != ST_BACKEND_POSIX) {
        core->backend = ST_BACKEND_URING;
        core->backend_reason = probe_uring();
        if (core->backend_reason == 0) /* a ring of full size may be refused all the same */
            core->backend_reason = start_threads(core, io_threads);
        if (core->backend_reason == 0 || backend == ST_BACKEND_URING)
            return core->backend_reason;
    }
    core->backend = ST_BACKEND_POSIX;
    return start_threads(core, io_threads);
}

void st_readers_stop(st_core *core) {
    stop_threads(core);
}
