/* SPDX-License-Identifier: Apache-2.0 */
/* Reader threads: claim published page reads, read them, check every wanted record, put the rows in place.
 *
 * Both back ends share the job's life: start -> (in flight) -> deliver | next attempt | fail. A job that is not
 * exactly one checked page is retried on the same replica, then on the next ones, then reported.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "jobs.h"

#ifdef ST_HAVE_URING
#include <liburing.h>
#endif

enum {
    CLAIM_MAX = 64,
    CLAIM_MEMORY = 8, /* reads that are copies: small shares, so that all readers get some */
    PREFETCH_READS = 3,
    LINE_BYTES = 64,
    POSIX_THREADS_DEFAULT = 16
};

struct st_reader {
    st_core *core;
    pthread_t thread;
    int started;
    uint8_t *buffers; /* queue_depth pages */
    st_job *jobs;     /* one per buffer */
    uint32_t *free_slots;
    uint32_t free_count;
    uint32_t in_flight;
    uint32_t files_generation;
    int use_fixed_buffers, use_fixed_files;
#ifdef ST_HAVE_URING
    struct io_uring ring;
#endif
    int ring_open;
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
    uint32_t per_thread = core->backend == ST_BACKEND_URING ? CLAIM_MAX : 1;
    st_futex_wake(&core->work, count ? (int)((count + per_thread - 1) / per_thread) : 1);
}

void st_readers_wake(st_core *core) {
    if (__atomic_load_n(&core->sleepers, __ATOMIC_SEQ_CST) == 0)
        return;
    __atomic_add_fetch(&core->work, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&core->work, INT_MAX);
}

static void release_slot(reader *self, uint32_t slot) {
    self->free_slots[self->free_count++] = slot;
}

/* A read came back with got bytes in the slot's buffer: exactly one page, or it failed. */
static int read_outcome(st_layer *layer, const st_job *job, const uint8_t *page, int64_t got, st_fault_report *why) {
    if (got == ST_PAGE_BYTES)
        return st_deliver_page(layer, job, page, why);
    *why = st_read_fault(layer, job, got < 0 ? (int)got : -ENODATA, got);
    return why->error;
}

static int64_t read_blocking(const st_source *source, uint64_t page_id, uint8_t *buffer) {
    if (source->kind == ST_SOURCE_CALLBACK)
        return source->read(source->context, page_id, buffer);
    for (;;) {
        ssize_t got =
            pread(st_source_fd(source, page_id), buffer, ST_PAGE_BYTES, (off_t)st_source_offset(source, page_id));
        if (got >= 0 || errno != EINTR)
            return got < 0 ? -errno : got;
    }
}

#ifdef ST_HAVE_URING
/* The sources change between steps only, so nothing of ours is in flight when the generation has moved. */
static void register_files(reader *self) {
    st_core *core = self->core;
    if (self->use_fixed_files)
        io_uring_unregister_files(&self->ring);
    self->use_fixed_files =
        core->file_count && io_uring_register_files(&self->ring, core->files, core->file_count) == 0;
    self->files_generation = core->files_generation;
}

static void queue_read(reader *self, const st_layer *layer, uint32_t slot, uint64_t page_id) {
    const st_job *work = &self->jobs[slot];
    const st_source *source = layer->sources[work->replica];
    uint8_t *buffer = self->buffers + (size_t)slot * ST_PAGE_BYTES;
    uint64_t offset = st_source_offset(source, page_id);
    int fd = st_source_fd(source, page_id);
    if (self->files_generation != self->core->files_generation)
        register_files(self);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&self->ring); /* never NULL: the ring has an entry per slot */
    if (self->use_fixed_files)
        fd = (int)(layer->fixed_base[work->replica] + page_id % source->layout.stripe_count);
    if (self->use_fixed_buffers)
        io_uring_prep_read_fixed(sqe, fd, buffer, ST_PAGE_BYTES, offset, 0);
    else
        io_uring_prep_read(sqe, fd, buffer, ST_PAGE_BYTES, offset);
    if (self->use_fixed_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, slot);
    self->in_flight++;
}
#endif

/* Run the slot's job until it is in flight, over, or somebody else's. */
static void start(reader *self, uint32_t slot) {
    st_job *job = &self->jobs[slot];
    st_layer *layer = &self->core->layers[job->layer];
    uint64_t page_id = layer->reads[job->read].page_id;
    uint8_t *buffer = self->buffers + (size_t)slot * ST_PAGE_BYTES;
    st_fault_report why;
    int rc;
    do {
        const st_source *source = layer->sources[job->replica];
        if (source->kind == ST_SOURCE_REMOTE) {
            st_job_dispatch(self->core, job);
            break;
        }
        if (source->kind == ST_SOURCE_MEMORY) {
            rc = st_deliver_page(layer, job, source->memory + page_id * ST_PAGE_BYTES, &why);
#ifdef ST_HAVE_URING
        } else if (source->kind == ST_SOURCE_FILES && self->ring_open) {
            queue_read(self, layer, slot, page_id);
            return;
#endif
        } else {
            rc = read_outcome(layer, job, buffer, read_blocking(source, page_id, buffer), &why);
        }
        if (rc >= 0) {
            st_complete(layer, job->replica, 1, (uint32_t)rc);
            break;
        }
    } while (st_job_retry(layer, job, &why));
    release_slot(self, slot);
}

static void start_new(reader *self, const st_job *job) {
    uint32_t slot = self->free_slots[--self->free_count];
    self->jobs[slot] = *job;
    start(self, slot);
}

/* Bring a read's header and first wanted record towards this core: the copies wait for DRAM, not for each other. */
static void prefetch_read(const st_layer *layer, const st_source *source, uint32_t read) {
    const uint8_t *page = source->memory + (uint64_t)layer->reads[read].page_id * ST_PAGE_BYTES;
    const uint8_t *record = st_page_record(&source->layout, page, layer->wants[layer->reads[read].first_want].row_id);
    __builtin_prefetch(page);
    for (uint32_t at = 0; at < source->layout.record_bytes + LINE_BYTES; at += LINE_BYTES)
        __builtin_prefetch(record + at);
}

/* Reads from memory: copied here and now; those that fail go the way of all others. */
static void copy_reads(reader *self, uint32_t layer_index, uint32_t first, uint32_t count) {
    st_layer *layer = &self->core->layers[layer_index];
    const st_source *source = layer->sources[layer->start];
    uint32_t copied = 0, rows = 0;
    for (uint32_t i = 0; i < count && i < PREFETCH_READS; i++)
        prefetch_read(layer, source, first + i);
    for (uint32_t i = 0; i < count; i++) {
        st_job job = {.layer = layer_index, .read = first + i, .replica = (uint8_t)layer->start};
        st_fault_report why;
        if (i + PREFETCH_READS < count)
            prefetch_read(layer, source, first + i + PREFETCH_READS);
        uint64_t page_id = layer->reads[first + i].page_id;
        int rc = st_deliver_page(layer, &job, source->memory + page_id * ST_PAGE_BYTES, &why);
        if (rc >= 0) {
            copied++;
            rows += (uint32_t)rc;
        } else if (st_job_retry(layer, &job, &why)) {
            start_new(self, &job);
        }
    }
    if (copied)
        st_complete(layer, layer->start, copied, rows);
}

static uint32_t claim_limit(const reader *self, uint32_t layer_index) {
    const st_core *core = self->core;
    uint32_t limit = core->backend == ST_BACKEND_POSIX ? 1 : CLAIM_MAX;
    if (__atomic_load_n(&core->layers[layer_index].copies, __ATOMIC_RELAXED))
        limit = CLAIM_MEMORY;
    return self->free_count < limit ? self->free_count : limit;
}

/* What lanes could not deliver. */
static uint32_t start_passed_on(reader *self) {
    st_job jobs[CLAIM_MAX];
    uint32_t limit = self->core->backend == ST_BACKEND_POSIX ? 1 : CLAIM_MAX;
    uint32_t count = st_inbox_take(&self->core->inbox, jobs, self->free_count < limit ? self->free_count : limit);
    for (uint32_t i = 0; i < count; i++)
        start_new(self, &jobs[i]);
    return count;
}

/* Start the claimed reads, those that the second level answers last: they are copies, while the others' devices work. */
static void start_claimed(reader *self, uint32_t layer_index, uint32_t first, uint32_t count) {
    st_layer *layer = &self->core->layers[layer_index];
    uint32_t answered[CLAIM_MAX], answered_count = 0, hits = 0;
    for (uint32_t read = first; read < first + count; read++) {
        if (st_is_on_host(layer, read))
            answered[answered_count++] = read;
        else
            start_new(self, &(st_job){.layer = layer_index, .read = read, .replica = (uint8_t)layer->start});
    }
    for (uint32_t i = 0; i < answered_count; i++) {
        if (st_deliver_from_host(layer, answered[i]))
            hits++;
        else
            start_new(self, &(st_job){.layer = layer_index, .read = answered[i], .replica = (uint8_t)layer->start});
    }
    if (hits)
        st_complete_from_host(layer, hits);
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
            start_claimed(self, k, first, count);
        total += count;
        k = UINT32_MAX; /* look at the first layer again before a later one gets more */
    }
    return total;
}

#ifdef ST_HAVE_URING
static void reap(reader *self) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    uint32_t slots[256];
    int32_t results[256];
    io_uring_for_each_cqe(&self->ring, head, cqe) {
        slots[seen] = (uint32_t)cqe->user_data;
        results[seen] = cqe->res;
        if (++seen == 256)
            break;
    }
    io_uring_cq_advance(&self->ring, seen);
    self->in_flight -= seen;
    for (unsigned i = 0; i < seen; i++) {
        st_job *job = &self->jobs[slots[i]];
        st_layer *layer = &self->core->layers[job->layer];
        const uint8_t *page = self->buffers + (size_t)slots[i] * ST_PAGE_BYTES;
        st_fault_report why;
        int rc = read_outcome(layer, job, page, results[i], &why);
        if (rc >= 0) {
            release_slot(self, slots[i]);
            st_complete(layer, job->replica, 1, (uint32_t)rc);
        } else if (st_job_retry(layer, job, &why)) {
            start(self, slots[i]);
        } else {
            release_slot(self, slots[i]);
        }
    }
}

/* Submit, and wait for at least one completion; what is queued stays queued if the kernel is short of memory. */
static void submit_and_reap(reader *self) {
    io_uring_submit_and_wait(&self->ring, 1);
    reap(self);
}
#endif

#ifdef ST_HAVE_URING
static int ring_open(reader *self) {
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN,
                                     0};
    int rc = -EINVAL;
    for (unsigned i = 0; rc == -EINVAL && i < sizeof flags / sizeof *flags; i++)
        rc = io_uring_queue_init(self->core->queue_depth, &self->ring, flags[i]);
    if (rc < 0)
        return rc;
    struct iovec all = {self->buffers, (size_t)self->core->queue_depth * ST_PAGE_BYTES};
    self->use_fixed_buffers = io_uring_register_buffers(&self->ring, &all, 1) == 0; /* a short memlock: go without */
    self->ring_open = 1;
    return 0;
}
#endif

static void *reader_main(void *argument) {
    reader *self = argument;
    st_core *core = self->core;
#ifdef ST_HAVE_URING
    /* Opened here: with SINGLE_ISSUER the ring belongs to the thread that made it. start_threads hears whether it could. */
    if (core->backend == ST_BACKEND_URING)
        self->ring_error = ring_open(self);
#endif
    __atomic_store_n(&self->ready, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&self->ready, 1);
    while (!__atomic_load_n(&core->stop, __ATOMIC_ACQUIRE)) {
        uint32_t seen_work = __atomic_load_n(&core->work, __ATOMIC_SEQ_CST);
        uint32_t claimed = claim_and_start(self);
#ifdef ST_HAVE_URING
        if (self->in_flight) {
            submit_and_reap(self);
            continue;
        }
#endif
        if (claimed == 0)
            st_idle(&core->work, &core->sleepers, seen_work, core->spin_us);
    }
#ifdef ST_HAVE_URING
    /* The kernel writes into the buffers until the last read is back, and closing the ring does not wait for it. */
    while (self->in_flight)
        submit_and_reap(self);
    if (self->ring_open)
        io_uring_queue_exit(&self->ring);
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
    self->files_generation = UINT32_MAX;
    self->buffers = aligned_alloc(ST_PAGE_BYTES, (size_t)core->queue_depth * ST_PAGE_BYTES);
    self->jobs = calloc(core->queue_depth, sizeof *self->jobs);
    self->free_slots = calloc(core->queue_depth, sizeof *self->free_slots);
    if (!self->buffers || !self->jobs || !self->free_slots)
        return -ENOMEM;
    memset(self->buffers, 0, (size_t)core->queue_depth * ST_PAGE_BYTES);
    for (uint32_t slot = 0; slot < core->queue_depth; slot++)
        release_slot(self, slot);
    int rc = -pthread_create(&self->thread, NULL, reader_main, self);
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
        free(self->buffers);
        free(self->jobs);
        free(self->free_slots);
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
