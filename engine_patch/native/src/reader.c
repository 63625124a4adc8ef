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

#include "core.h"

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

typedef struct job {
    uint32_t layer, read, replica, attempt;
} job;

struct st_reader {
    st_core *core;
    pthread_t thread;
    int started;
    uint8_t *buffers; /* queue_depth pages */
    job *jobs;        /* one per buffer */
    uint32_t *free_slots;
    uint32_t free_count;
    uint32_t in_flight;
    uint32_t files_generation;
    int use_fixed_buffers, use_fixed_files;
#ifdef ST_HAVE_URING
    struct io_uring ring;
#endif
    int ring_open;
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

/* Up to limit reads of a layer: the first index, and how many. */
static uint32_t claim(st_layer *layer, uint32_t limit, uint32_t *first) {
    for (;;) {
        st_position claimed = __atomic_load_n(&layer->claimed, __ATOMIC_ACQUIRE);
        st_position published = __atomic_load_n(&layer->published, __ATOMIC_ACQUIRE);
        if (claimed >> 32 != published >> 32 || (uint32_t)claimed >= (uint32_t)published)
            return 0;
        uint32_t available = (uint32_t)published - (uint32_t)claimed;
        uint32_t count = available < limit ? available : limit;
        if (__atomic_compare_exchange_n(&layer->claimed, &claimed, claimed + count, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            *first = (uint32_t)claimed;
            return count;
        }
    }
}

static void report_fault(st_layer *layer, const job *work, int error, st_fault fault, uint64_t row_id, int64_t bytes) {
    pthread_mutex_lock(&layer->fault_lock);
    layer->fault = (st_fault_report){.error = error,
                                     .fault = fault,
                                     .replica = work->replica,
                                     .row_id = row_id,
                                     .page_id = layer->reads[work->read].page_id,
                                     .bytes = bytes};
    pthread_mutex_unlock(&layer->fault_lock);
}

/* Copy one record to where it will be used from and check it there: the page may be memory that others can write. */
static st_fault deliver_row(st_layer *layer, const st_layout *layout, uint32_t index, const uint8_t *record) {
    const st_want *want = &layer->wants[index];
    uint32_t row_bytes = st_row_bytes(layout);
    if (layer->lines) {
        uint8_t *line = layer->lines + (size_t)index * layer->line_bytes;
        memcpy(line, record, layout->record_bytes);
        st_fault fault = st_record_check(layout, line, want->row_id);
        memcpy(line + row_bytes, &want->dest, sizeof want->dest); /* the tag has done its work */
        return fault;
    }
    uint8_t copy[ST_PAGE_BYTES];
    memcpy(copy, record, layout->record_bytes);
    st_fault fault = st_record_check(layout, copy, want->row_id);
    if (fault == ST_FAULT_NONE)
        memcpy(st_dest(layer, want->dest), copy, row_bytes);
    return fault;
}

/* Check every row that this read must deliver and put it in place. */
static int deliver(st_layer *layer, const job *work, const uint8_t *page) {
    const st_layout *layout = &layer->sources[work->replica]->layout;
    const st_page_read *read = &layer->reads[work->read];
    st_fault fault = st_page_header_check(layout, page, read->page_id);
    uint32_t index = read->first_want;
    for (; fault == ST_FAULT_NONE && index != ST_END; index = layer->wants[index].next) {
        fault = deliver_row(layer, layout, index, st_page_record(layout, page, layer->wants[index].row_id));
        if (fault != ST_FAULT_NONE)
            break;
    }
    if (fault == ST_FAULT_NONE)
        return 0;
    __atomic_add_fetch(&layer->bad_records, 1, __ATOMIC_RELAXED);
    uint64_t row_id = index != ST_END ? layer->wants[index].row_id : 0;
    report_fault(layer, work, -EBADMSG, fault, row_id, ST_PAGE_BYTES);
    return -EBADMSG;
}

static void complete(st_layer *layer, uint32_t count) {
    __atomic_store_n(&layer->last_done_ns, st_now_ns(), __ATOMIC_RELAXED);
    uint32_t done = __atomic_add_fetch(&layer->done, count, __ATOMIC_SEQ_CST);
    if (done == __atomic_load_n(&layer->wake_at, __ATOMIC_SEQ_CST))
        st_futex_wake(&layer->done, 1);
}

/* Move a failed job to its next attempt; 0 when there is none left. */
static int next_attempt(st_layer *layer, job *work) {
    if (++work->attempt >= ST_READ_ATTEMPTS) {
        work->attempt = 0;
        if (++work->replica >= layer->source_count)
            return 0;
    }
    __atomic_add_fetch(&layer->retries, 1, __ATOMIC_RELAXED);
    return 1;
}

static void release_slot(reader *self, uint32_t slot) {
    self->free_slots[self->free_count++] = slot;
}

static void fail(reader *self, st_layer *layer, uint32_t slot) {
    layer->reads[self->jobs[slot].read].failed = 1;
    __atomic_add_fetch(&layer->failed_reads, 1, __ATOMIC_RELAXED);
    release_slot(self, slot);
    complete(layer, 1);
}

/* A read came back with got bytes in the slot's buffer: exactly one page, or it failed. */
static int read_outcome(st_layer *layer, const job *work, const uint8_t *page, int64_t got) {
    if (got == ST_PAGE_BYTES)
        return deliver(layer, work, page);
    int error = got < 0 ? (int)got : -ENODATA;
    __atomic_add_fetch(&layer->read_errors, 1, __ATOMIC_RELAXED);
    report_fault(layer, work, error, ST_FAULT_NONE, 0, got);
    return error;
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
    const job *work = &self->jobs[slot];
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

/* Run the slot's job until it is in flight or over. */
static void start(reader *self, uint32_t slot) {
    job *work = &self->jobs[slot];
    st_layer *layer = &self->core->layers[work->layer];
    uint64_t page_id = layer->reads[work->read].page_id;
    uint8_t *buffer = self->buffers + (size_t)slot * ST_PAGE_BYTES;
    do {
        const st_source *source = layer->sources[work->replica];
        int rc;
        if (source->kind == ST_SOURCE_MEMORY) {
            rc = deliver(layer, work, source->memory + page_id * ST_PAGE_BYTES);
#ifdef ST_HAVE_URING
        } else if (source->kind == ST_SOURCE_FILES && self->ring_open) {
            queue_read(self, layer, slot, page_id);
            return;
#endif
        } else {
            rc = read_outcome(layer, work, buffer, read_blocking(source, page_id, buffer));
        }
        if (rc == 0) {
            release_slot(self, slot);
            complete(layer, 1);
            return;
        }
    } while (next_attempt(layer, work));
    fail(self, layer, slot);
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
    const st_source *source = layer->sources[0];
    uint32_t copied = 0;
    for (uint32_t i = 0; i < count && i < PREFETCH_READS; i++)
        prefetch_read(layer, source, first + i);
    for (uint32_t i = 0; i < count; i++) {
        job work = {.layer = layer_index, .read = first + i};
        if (i + PREFETCH_READS < count)
            prefetch_read(layer, source, first + i + PREFETCH_READS);
        uint64_t page_id = layer->reads[first + i].page_id;
        if (deliver(layer, &work, source->memory + page_id * ST_PAGE_BYTES) == 0) {
            copied++;
            continue;
        }
        uint32_t slot = self->free_slots[--self->free_count];
        self->jobs[slot] = work;
        if (next_attempt(layer, &self->jobs[slot]))
            start(self, slot);
        else
            fail(self, layer, slot);
    }
    if (copied)
        complete(layer, copied);
}

static uint32_t claim_limit(const reader *self, uint32_t layer_index) {
    const st_core *core = self->core;
    uint32_t limit = core->backend == ST_BACKEND_POSIX ? 1 : CLAIM_MAX;
    if (__atomic_load_n(&core->layers[layer_index].copies, __ATOMIC_RELAXED))
        limit = CLAIM_MEMORY;
    return self->free_count < limit ? self->free_count : limit;
}

/* Claim what there is, the first layer's first; how many reads were claimed. */
static uint32_t claim_and_start(reader *self) {
    st_core *core = self->core;
    uint32_t total = 0;
    for (uint32_t k = 0; k < core->layer_count; k++) {
        uint32_t first, count;
        uint32_t limit = claim_limit(self, k);
        if (limit == 0)
            break;
        if ((count = claim(&core->layers[k], limit, &first)) == 0)
            continue;
        /* Only now, with reads of the step claimed, do the sources stay as they are. */
        if (core->layers[k].sources[0]->kind == ST_SOURCE_MEMORY) {
            copy_reads(self, k, first, count);
        } else {
            for (uint32_t i = 0; i < count; i++) {
                uint32_t slot = self->free_slots[--self->free_count];
                self->jobs[slot] = (job){.layer = k, .read = first + i};
                start(self, slot);
            }
        }
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
        job *work = &self->jobs[slots[i]];
        st_layer *layer = &self->core->layers[work->layer];
        const uint8_t *page = self->buffers + (size_t)slots[i] * ST_PAGE_BYTES;
        if (read_outcome(layer, work, page, results[i]) == 0) {
            release_slot(self, slots[i]);
            complete(layer, 1);
        } else if (next_attempt(layer, work)) {
            start(self, slots[i]);
        } else {
            fail(self, layer, slots[i]);
        }
    }
}

/* Submit, and wait for at least one completion; what is queued stays queued if the kernel is short of memory. */
static void submit_and_reap(reader *self) {
    io_uring_submit_and_wait(&self->ring, 1);
    reap(self);
}
#endif

/* Nothing to claim and nothing in flight: spin for a while, then sleep until something is published. */
static void idle(reader *self, uint32_t seen_work) {
    st_core *core = self->core;
    uint64_t until_ns = core->spin_us ? st_now_ns() + core->spin_us * 1000ull : 0;
    while (until_ns && __atomic_load_n(&core->work, __ATOMIC_ACQUIRE) == seen_work && st_now_ns() < until_ns)
        __builtin_ia32_pause();
    __atomic_add_fetch(&core->sleepers, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&core->work, __ATOMIC_SEQ_CST) == seen_work)
        st_futex_wait(&core->work, seen_work, 0);
    __atomic_sub_fetch(&core->sleepers, 1, __ATOMIC_SEQ_CST);
}

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
    /* Opened here: with SINGLE_ISSUER the ring belongs to the thread that made it. core.c has probed that it can. */
    if (core->backend == ST_BACKEND_URING)
        ring_open(self);
#endif
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
            idle(self, seen_work);
    }
#ifdef ST_HAVE_URING
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

int st_readers_start(st_core *core, uint32_t io_threads, uint32_t backend) {
    core->backend = ST_BACKEND_POSIX;
    if (backend != ST_BACKEND_POSIX) {
        core->backend_reason = probe_uring();
        if (core->backend_reason == 0)
            core->backend = ST_BACKEND_URING;
        else if (backend == ST_BACKEND_URING)
            return core->backend_reason;
    }
    if (io_threads == 0)
        io_threads = core->backend == ST_BACKEND_URING ? 1 : POSIX_THREADS_DEFAULT;
    core->readers = calloc(io_threads, sizeof *core->readers);
    if (!core->readers)
        return -ENOMEM;
    int rc = 0;
    for (core->reader_count = 0; rc == 0 && core->reader_count < io_threads; core->reader_count++)
        rc = reader_init(core, &core->readers[core->reader_count]);
    return rc;
}

void st_readers_stop(st_core *core) {
    __atomic_store_n(&core->stop, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&core->work, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&core->work, 1 << 30);
    for (uint32_t i = 0; i < core->reader_count; i++) {
        reader *self = &core->readers[i];
        if (self->started)
            pthread_join(self->thread, NULL);
        free(self->buffers);
        free(self->jobs);
        free(self->free_slots);
    }
    free(core->readers);
}
