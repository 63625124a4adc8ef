/* SPDX-License-Identifier: Apache-2.0 */
/* The first reads of a step's first layer, done by the stepping thread itself: for a caller that waits as soon as it has
 * begun, waking a reader for a short burst costs more than the reads. A caller that computes before it waits leaves
 * them to the readers, who check what arrives meanwhile and know when it did.
 */
#include <errno.h>
#include <stdlib.h>

#include "slots.h"

enum { OWN_READS = 64 };

#ifdef ST_HAVE_URING
/* Not SINGLE_ISSUER: a core may be stepped by one thread today, by another tomorrow, and closed by a third. */
static const unsigned ring_flags[] = {IORING_SETUP_COOP_TASKRUN, 0};

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* A step path's thread does not wait here, and its readers are awake. */
static int may_start(const st_core *core, uint32_t layer_index) {
    const st_layer *layer = &core->layers[layer_index];
    return layer_index == 0 && !layer->lines && layer->sources[layer->start]->kind == ST_SOURCE_FILES;
}

uint32_t st_own_reads_start(st_core *core, uint32_t layer_index, uint32_t count) {
    st_slots *own = core->own_reads;
    uint32_t first, taken = 0;
    if (!own || !may_start(core, layer_index))
        return 0;
    if (own->free_count)
        taken = st_claim(&core->layers[layer_index], least(count, own->free_count), &first);
    if (taken) {
        st_slots_start_claimed(own, layer_index, first, taken);
        io_uring_submit(&own->ring); /* what the kernel does not take now, it is offered again on reaping */
    }
    return taken;
}

int st_own_reads_reap(st_core *core, uint64_t wait_ns) {
    st_slots *own = core->own_reads;
    if (!own || own->in_flight == 0)
        return 0;
    struct __kernel_timespec limit = {(int64_t)(wait_ns / 1000000000u), (long long)(wait_ns % 1000000000u)};
    struct io_uring_cqe *some;
    /* Half of them, then half of the rest: few system calls, and few checks left when the last one arrives. */
    if (wait_ns)
        io_uring_submit_and_wait_timeout(&own->ring, &some, (own->in_flight + 1) / 2, &limit, NULL);
    else
        io_uring_submit_and_get_events(&own->ring);
    st_slots_reap(own);
    return 1;
}
#else
uint32_t st_own_reads_start(st_core *core, uint32_t layer_index, uint32_t count) {
    return 0;
}

int st_own_reads_reap(st_core *core, uint64_t wait_ns) {
    return 0;
}
#endif

void st_own_reads_close(st_core *core) {
    st_slots *own = core->own_reads;
    core->own_reads = NULL;
    if (!own)
        return;
#ifdef ST_HAVE_URING
    st_slots_close_ring(own);
#endif
    st_slots_close(own);
    free(own);
}

int st_core_set_own_reads(st_core *core, int on) {
    if (st_core_busy(core))
        return -EBUSY;
    if (!on)
        st_own_reads_close(core);
    if (!on || core->own_reads || core->backend != ST_BACKEND_URING)
        return core->own_reads != NULL;
    core->own_reads = calloc(1, sizeof *core->own_reads);
    int rc = core->own_reads ? st_slots_open(core->own_reads, core, OWN_READS) : -ENOMEM;
#ifdef ST_HAVE_URING
    if (rc == 0)
        rc = st_slots_open_ring(core->own_reads, ring_flags);
#endif
    if (rc < 0) {
        st_own_reads_close(core);
        return rc;
    }
    core->own_reads->passes_on = 1;
    return 1;
}
