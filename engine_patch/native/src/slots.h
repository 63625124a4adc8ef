/* SPDX-License-Identifier: Apache-2.0 */
/* Reads in flight: a slot each, with its page buffer, and the ring that they are on. One thread owns a set of slots. */
#ifndef ST_SLOTS_H
#define ST_SLOTS_H

#include "jobs.h"

#ifdef ST_HAVE_URING
#include <liburing.h>
#endif

enum { ST_CLAIM_MAX = 64 };

typedef struct st_slots {
    st_core *core;
    uint32_t count;
    uint8_t *buffers; /* a page per slot */
    st_job *jobs;
    uint32_t *free_slots;
    uint32_t free_count;
    uint32_t in_flight;
    int may_poll;  /* the owner only reaps when it waits, and waits as long as it takes */
    int passes_on; /* a read that failed is for the readers: the owner has no time to wait for a device */
    uint32_t files_generation;
    int use_fixed_buffers, use_fixed_files;
#ifdef ST_HAVE_URING
    struct io_uring ring;
    const unsigned *ring_flags;
    int is_polled; /* the ring is: it takes reads of polled files alone */
#endif
    int ring_open;
} st_slots;

/* 0 or -ENOMEM; close takes what a failed open left. */
int st_slots_open(st_slots *slots, st_core *core, uint32_t count);
void st_slots_close(st_slots *slots);

/* Run a job in a free slot, of which there must be one, until it is in flight, over, or somebody else's. */
void st_slots_start(st_slots *slots, const st_job *job);

/* The same for claimed reads of a layer, which its first replica has to deliver. */
void st_slots_start_claimed(st_slots *slots, uint32_t layer_index, uint32_t first, uint32_t count);

#ifdef ST_HAVE_URING
/* With the first of the flags that the kernel takes; they end with 0, and stay. 0 or -errno. */
int st_slots_open_ring(st_slots *slots, const unsigned *flags);

/* Deal with the completions that are there. */
void st_slots_reap(st_slots *slots);

/* Submit, and wait for at least one completion; what is queued stays queued if the kernel is short of memory. */
void st_slots_submit_and_reap(st_slots *slots);

/* Wait for what is in flight, by the thread that submitted it. */
void st_slots_close_ring(st_slots *slots);
#endif

#endif
