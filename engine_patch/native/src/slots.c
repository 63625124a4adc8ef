/* SPDX-License-Identifier: Apache-2.0 */
/* A job's life in a slot: start -> (in flight) -> deliver | next attempt | fail. A job that is not exactly one checked
 * page is retried on the same replica, then on the next ones, then reported. */
#include "slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REAP_MAX = 256 };

static void release_slot(st_slots *self, uint32_t slot) {
    self->free_slots[self->free_count++] = slot;
}

int st_slots_open(st_slots *self, st_core *core, uint32_t count) {
    *self = (st_slots){.core = core, .count = count, .files_generation = UINT32_MAX};
    self->buffers = aligned_alloc(ST_PAGE_BYTES, (size_t)count * ST_PAGE_BYTES);
    self->jobs = calloc(count, sizeof *self->jobs);
    self->free_slots = calloc(count, sizeof *self->free_slots);
    if (!self->buffers || !self->jobs || !self->free_slots)
        return -ENOMEM;
    memset(self->buffers, 0, (size_t)count * ST_PAGE_BYTES);
    for (uint32_t slot = 0; slot < count; slot++)
        release_slot(self, slot);
    return 0;
}

void st_slots_close(st_slots *self) {
    free(self->buffers);
    free(self->jobs);
    free(self->free_slots);
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
static int open_ring(st_slots *self, int is_polled);

/* The sources change between steps only, so nothing of ours is in flight when the generation has moved. */
static void register_files(st_slots *self) {
    st_core *core = self->core;
    int is_polled = self->may_poll && __atomic_load_n(&core->files_are_polled, __ATOMIC_RELAXED);
    if (is_polled != self->is_polled) {
        io_uring_queue_exit(&self->ring);
        self->use_fixed_files = 0;
        if (open_ring(self, is_polled) < 0) {
            __atomic_store_n(&core->files_are_polled, 0, __ATOMIC_RELAXED);
            open_ring(self, 0);
        }
    }
    if (!self->ring_open)
        return;
    if (self->use_fixed_files)
        io_uring_unregister_files(&self->ring);
    self->use_fixed_files =
        core->file_count && io_uring_register_files(&self->ring, core->files, core->file_count) == 0;
    self->files_generation = core->files_generation;
}

/* For the files that the core has now; 0: reads block. */
static int has_ring(st_slots *self) {
    if (self->ring_open && self->files_generation != self->core->files_generation)
        register_files(self);
    return self->ring_open;
}

static void queue_read(st_slots *self, const st_layer *layer, uint32_t slot, uint64_t page_id) {
    const st_job *work = &self->jobs[slot];
    const st_source *source = layer->sources[work->replica];
    uint8_t *buffer = self->buffers + (size_t)slot * ST_PAGE_BYTES;
    uint64_t offset = st_source_offset(source, page_id);
    int fd = st_source_fd(source, page_id);
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
static void start(st_slots *self, uint32_t slot) {
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
        } else if (source->kind == ST_SOURCE_FILES && has_ring(self)) {
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

void st_slots_start(st_slots *self, const st_job *job) {
    uint32_t slot = self->free_slots[--self->free_count];
    self->jobs[slot] = *job;
    start(self, slot);
}

static void start_first_try(st_slots *self, uint32_t layer_index, uint32_t read) {
    st_job job = st_first_try(&self->core->layers[layer_index], layer_index, read);
    st_slots_start(self, &job);
}

/* Those that the second level answers last: they are copies, while the others' devices work. */
void st_slots_start_claimed(st_slots *self, uint32_t layer_index, uint32_t first, uint32_t count) {
    st_layer *layer = &self->core->layers[layer_index];
    uint32_t answered[ST_CLAIM_MAX], answered_count = 0, hits = 0;
    for (uint32_t read = first; read < first + count; read++) {
        if (st_is_on_host(layer, read))
            answered[answered_count++] = read;
        else
            start_first_try(self, layer_index, read);
    }
    for (uint32_t i = 0; i < answered_count; i++) {
        if (st_deliver_from_host(layer, answered[i]))
            hits++;
        else
            start_first_try(self, layer_index, answered[i]);
    }
    if (hits)
        st_complete_from_host(layer, hits);
}

#ifdef ST_HAVE_URING
static void prefetch_slot(const st_slots *self, uint32_t slot) {
    const st_job *job = &self->jobs[slot];
    const st_layer *layer = &self->core->layers[job->layer];
    st_prefetch_read(layer, job, self->buffers + (size_t)slot * ST_PAGE_BYTES);
}

void st_slots_reap(st_slots *self) {
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    uint32_t slots[REAP_MAX];
    int32_t results[REAP_MAX];
    io_uring_for_each_cqe(&self->ring, head, cqe) {
        slots[seen] = (uint32_t)cqe->user_data;
        results[seen] = cqe->res;
        if (++seen == REAP_MAX)
            break;
    }
    io_uring_cq_advance(&self->ring, seen);
    self->in_flight -= seen;
    for (unsigned i = 0; i < seen && i < ST_PREFETCH_READS; i++)
        prefetch_slot(self, slots[i]);
    for (unsigned i = 0; i < seen; i++) {
        if (i + ST_PREFETCH_READS < seen)
            prefetch_slot(self, slots[i + ST_PREFETCH_READS]);
        st_job *job = &self->jobs[slots[i]];
        st_layer *layer = &self->core->layers[job->layer];
        const uint8_t *page = self->buffers + (size_t)slots[i] * ST_PAGE_BYTES;
        st_fault_report why;
        int rc = read_outcome(layer, job, page, results[i], &why);
        if (rc >= 0) {
            release_slot(self, slots[i]);
            st_complete(layer, job->replica, 1, (uint32_t)rc);
        } else if (!st_job_retry(layer, job, &why)) {
            release_slot(self, slots[i]);
        } else if (self->passes_on) {
            st_job_dispatch(self->core, job);
            release_slot(self, slots[i]);
        } else {
            start(self, slots[i]);
        }
    }
}

void st_slots_submit_and_reap(st_slots *self) {
    io_uring_submit_and_wait(&self->ring, 1);
    st_slots_reap(self);
}

void st_slots_close_ring(st_slots *self) {
    /* The kernel writes into the buffers until the last read is back, and closing the ring does not wait for it. */
    while (self->in_flight)
        st_slots_submit_and_reap(self);
    if (self->ring_open)
        io_uring_queue_exit(&self->ring);
    self->ring_open = 0;
}

static int open_ring(st_slots *self, int is_polled) {
    const unsigned *flags = self->ring_flags;
    int rc;
    self->ring_open = 0;
    do {
        rc = io_uring_queue_init(self->count, &self->ring, *flags | (is_polled ? IORING_SETUP_IOPOLL : 0));
    } while (rc == -EINVAL && *flags++); /* an older kernel knows fewer of them */
    if (rc < 0)
        return rc;
    self->is_polled = is_polled;
    struct iovec all = {self->buffers, (size_t)self->count * ST_PAGE_BYTES};
    self->use_fixed_buffers = io_uring_register_buffers(&self->ring, &all, 1) == 0; /* a short memlock: go without */
    self->ring_open = 1;
    return 0;
}

int st_slots_open_ring(st_slots *self, const unsigned *flags) {
    self->ring_flags = flags;
    return open_ring(self, 0);
}
#endif
