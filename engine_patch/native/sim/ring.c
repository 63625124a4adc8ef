/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side of io_uring, as far as the readers use it. liburing's inline functions fill the submission ring and
 * read the completion ring; the library's own functions, which would enter the kernel, end here. */
#ifdef ST_HAVE_URING
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
void __wrap_io_uring_queue_exit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit_and_get_events(struct io_uring *ring);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned wait_nr,
                                            struct __kernel_timespec *limit, sigset_t *mask);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers, unsigned count);
int __wrap_io_uring_register_files(struct io_uring *ring, const int *files, unsigned count);
int __wrap_io_uring_unregister_files(struct io_uring *ring);

enum { RINGS_MAX = 32, FILES_MAX = 1024, READS_MAX = 4096 };

typedef struct ring_state {
    struct io_uring *ring;
    unsigned sq_head, sq_tail, cq_head, cq_tail, overflow, sq_flags;
    struct iovec buffers;
    int files[FILES_MAX];
    unsigned file_count;
    sim_read *reads[READS_MAX]; /* in flight */
    unsigned in_flight;
    unsigned wanted; /* completions that the caller waits for */
} ring_state;

static ring_state states[RINGS_MAX];
static int refusal;

void sim_refuse_rings(int error) {
    refusal = error;
}

static ring_state *state_of(const struct io_uring *ring) {
    for (int i = 0; i < RINGS_MAX; i++)
        if (states[i].ring == ring)
            return &states[i];
    sim_fail("a ring that was never made");
}

int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags) {
    if (refusal)
        return -refusal;
    if (flags && sim_chance(4)) /* an older kernel */
        return -EINVAL;
    ring_state *state = NULL;
    for (int i = 0; i < RINGS_MAX && !state; i++)
        if (!states[i].ring)
            state = &states[i];
    if (!state)
        sim_fail("more than %d rings", RINGS_MAX);
    unsigned size = 1;
    while (size < entries)
        size *= 2;
    *state = (ring_state){.ring = ring};
    memset(ring, 0, sizeof *ring);
    ring->sq = (struct io_uring_sq){.khead = &state->sq_head,
                                    .ktail = &state->sq_tail,
                                    .kflags = &state->sq_flags,
                                    .sqes = calloc(size, sizeof *ring->sq.sqes),
                                    .ring_mask = size - 1,
                                    .ring_entries = size};
    ring->cq = (struct io_uring_cq){.khead = &state->cq_head,
                                    .ktail = &state->cq_tail,
                                    .koverflow = &state->overflow,
                                    .cqes = calloc(2 * size, sizeof *ring->cq.cqes),
                                    .ring_mask = 2 * size - 1,
                                    .ring_entries = 2 * size};
    return 0;
}

/* What is in flight goes on, as the kernel's would, but nobody is left to hear of it. */
void __wrap_io_uring_queue_exit(struct io_uring *ring) {
    ring_state *state = state_of(ring);
    for (unsigned i = 0; i < state->in_flight; i++)
        state->reads[i]->owner = NULL;
    free(ring->sq.sqes);
    free(ring->cq.cqes);
    state->ring = NULL;
}

static void ring_read_done(sim_read *read) {
    ring_state *state = read->owner;
    if (state) {
        unsigned i = 0;
        while (state->reads[i] != read)
            i++;
        state->reads[i] = state->reads[--state->in_flight];
        if (state->cq_tail - state->cq_head >= state->ring->cq.ring_entries)
            sim_fail("completion ring full: more reads in flight than it has entries");
        struct io_uring_cqe *cqe = &state->ring->cq.cqes[state->cq_tail & state->ring->cq.ring_mask];
        *cqe = (struct io_uring_cqe){.user_data = read->user_data, .res = (int32_t)read->result};
        state->cq_tail++;
    }
    free(read);
}

static void start_read(ring_state *state, const struct io_uring_sqe *sqe) {
    uint8_t *buffer = (uint8_t *)(uintptr_t)sqe->addr;
    if (sqe->opcode != IORING_OP_READ && sqe->opcode != IORING_OP_READ_FIXED)
        sim_fail("io_uring operation %u is not simulated", sqe->opcode);
    if (sqe->opcode == IORING_OP_READ_FIXED &&
        (buffer < (uint8_t *)state->buffers.iov_base ||
         buffer + sqe->len > (uint8_t *)state->buffers.iov_base + state->buffers.iov_len))
        sim_fail("a fixed read outside the registered buffer");
    if (sqe->flags & IOSQE_FIXED_FILE && (unsigned)sqe->fd >= state->file_count)
        sim_fail("fixed file %d of %u", sqe->fd, state->file_count);
    if (sqe->len != ST_PAGE_BYTES || state->in_flight == READS_MAX)
        sim_fail("a read of %u bytes with %u in flight", sqe->len, state->in_flight);
    sim_read *read = malloc(sizeof *read);
    *read = (sim_read){
        .offset = sqe->off, .buffer = buffer, .done = ring_read_done, .owner = state, .user_data = sqe->user_data};
    state->reads[state->in_flight++] = read;
    sim_read_start(read, sqe->flags & IOSQE_FIXED_FILE ? state->files[sqe->fd] : sqe->fd);
}

static int enough(void *context) {
    const ring_state *state = context;
    return state->cq_tail - state->cq_head >= state->wanted;
}

static int submit(struct io_uring *ring, unsigned wait_nr, uint64_t until_ns) {
    ring_state *state = state_of(ring);
    struct io_uring_sq *sq = &ring->sq;
    sq->sqe_head = state->sq_tail = sq->sqe_tail;
    unsigned waiting = state->sq_tail - state->sq_head;
    if (waiting && sim_chance(50))
        return -EAGAIN; /* short of memory: nothing was taken */
    unsigned take = waiting && sim_chance(20) ? (unsigned)sim_below(waiting) + 1 : waiting;
    for (unsigned i = 0; i < take; i++)
        start_read(state, &sq->sqes[state->sq_head++ & sq->ring_mask]);
    if (take == waiting && wait_nr && !sim_chance(50)) { /* else a signal came first */
        state->wanted = wait_nr;
        if (!sim_block(enough, state, until_ns))
            return -ETIME;
    }
    return (int)take;
}

int __wrap_io_uring_submit(struct io_uring *ring) {
    return submit(ring, 0, 0);
}

int __wrap_io_uring_submit_and_get_events(struct io_uring *ring) {
    return submit(ring, 0, 0);
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr) {
    return submit(ring, wait_nr, SIM_NEVER);
}

int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned wait_nr,
                                            struct __kernel_timespec *limit, sigset_t *mask) {
    return submit(ring, wait_nr, sim_now() + (uint64_t)limit->tv_sec * 1000000000u + (uint64_t)limit->tv_nsec);
}

int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *buffers, unsigned count) {
    if (sim_chance(5))
        return -ENOMEM; /* a short memlock limit */
    state_of(ring)->buffers = *buffers;
    return 0;
}

int __wrap_io_uring_register_files(struct io_uring *ring, const int *files, unsigned count) {
    ring_state *state = state_of(ring);
    if (count > FILES_MAX)
        sim_fail("%u files", count);
    if (sim_chance(5))
        return -ENOMEM;
    memcpy(state->files, files, count * sizeof *files);
    state->file_count = count;
    return 0;
}

int __wrap_io_uring_unregister_files(struct io_uring *ring) {
    state_of(ring)->file_count = 0;
    return 0;
}
#endif
