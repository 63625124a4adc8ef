/* SPDX-License-Identifier: Apache-2.0 */
/* One batch of rows by RDMA READs: chains over several queue pairs and threads, polled until all have landed.
 *
 *   rows of the batch -> worker takes a few -> chain of READs on its emptiest queue pair -> landing slot
 *   completion of the chain's last READ -> every READ before it is over -> records handed to the core, which checks them
 *
 * Any completion that is not a success, or not of exactly the bytes asked for, ends the batch: the queue pair is dead then,
 * and the link with it. Rows that were not handed over until then are the next replica's.
 */
#include "rdma.h"

#ifdef ST_HAVE_VERBS
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <string.h>

#include "core.h"

enum {
    HELPED_ROWS = 2 * ST_RDMA_CHAIN, /* a smaller batch is done before a sleeping thread is awake */
    POLL_ENTRIES = 16,
    QUEUE_BITS = 3,      /* of a request's id; the rest is its position */
    PATIENT_NS = 500000, /* from then on the processor is given to others between polls */
};
#define HELPERS_CLOSED 0x80000000u
_Static_assert(ST_RDMA_QUEUE_PAIRS_MAX <= 1 << QUEUE_BITS, "a queue pair's index fits a request's id");

static void count(uint64_t *counter, uint64_t by) {
    __atomic_add_fetch(counter, by, __ATOMIC_RELAXED);
}

static uint32_t page_of(const st_rdma *rdma, uint32_t row_id) {
    return row_id / rdma->layout.rows_per_page;
}

/* Where a READ of this row begins in the node's memory. */
static uint64_t remote_address(const st_rdma *rdma, uint32_t row_id) {
    uint64_t page = rdma->region.address + (uint64_t)page_of(rdma, row_id) * ST_PAGE_BYTES;
    if (rdma->settings.unit == ST_RDMA_PAGES)
        return page;
    return page + ST_PAGE_HEADER_BYTES + (uint64_t)(row_id % rdma->layout.rows_per_page) * rdma->layout.record_bytes;
}

static uint32_t read_bytes(const st_rdma *rdma) {
    return rdma->settings.unit == ST_RDMA_PAGES ? ST_PAGE_BYTES : rdma->layout.record_bytes;
}

static uint8_t *slot_of(const st_rdma *rdma, const st_rdma_queue *queue, uint64_t position) {
    return queue->landing + position % rdma->settings.depth * rdma->unit_bytes;
}

static const uint8_t *record_in(const st_rdma *rdma, const uint8_t *slot, uint32_t row_id) {
    return rdma->settings.unit == ST_RDMA_PAGES ? st_page_record(&rdma->layout, slot, row_id) : slot;
}

/* How many of the rows from first on one READ brings: neighbours of one page, where the unit is a page. */
static uint32_t rows_of_read(const st_rdma *rdma, uint32_t first, uint32_t end) {
    const uint32_t *ids = rdma->batch.row_ids;
    uint32_t next = first + 1;
    if (rdma->settings.unit == ST_RDMA_PAGES)
        while (next < end && page_of(rdma, ids[next]) == page_of(rdma, ids[first]))
            next++;
    return next - first;
}

/* Tag and checksum of what landed here before: a READ that wrote nothing must not leave a record that passes. */
static void spoil(const st_rdma *rdma, uint8_t *slot, const st_rdma_read *read) {
    uint32_t row_bytes = st_row_bytes(&rdma->layout);
    for (uint32_t i = 0; i < read->count; i++) {
        uint8_t *record = (uint8_t *)record_in(rdma, slot, rdma->batch.row_ids[read->first + i]);
        memset(record + row_bytes, 0xFF, 2 * sizeof(uint32_t));
    }
}

/* Post READs for rows [first, end) as one chain; the last one is signalled. */
static int post_chain(st_rdma_worker *worker, uint32_t queue_index, uint32_t first, uint32_t end) {
    const st_rdma *rdma = worker->rdma;
    st_rdma_queue *queue = &worker->queues[queue_index];
    struct ibv_send_wr requests[ST_RDMA_CHAIN], *refused = NULL;
    struct ibv_sge landings[ST_RDMA_CHAIN];
    uint32_t reads = 0;
    for (; first < end; reads++) {
        uint64_t position = queue->posted + reads;
        uint8_t *slot = slot_of(rdma, queue, position);
        st_rdma_read *read = &queue->reads[position % rdma->settings.depth];
        *read = (st_rdma_read){.first = first, .count = rows_of_read(rdma, first, end)};
        spoil(rdma, slot, read);
        landings[reads] =
            (struct ibv_sge){.addr = (uint64_t)slot, .length = read_bytes(rdma), .lkey = worker->mr->lkey};
        requests[reads] = (struct ibv_send_wr){
            .wr_id = position << QUEUE_BITS | queue_index,
            .next = &requests[reads + 1],
            .sg_list = &landings[reads],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_READ,
            .wr.rdma = {.remote_addr = remote_address(rdma, rdma->batch.row_ids[first]), .rkey = rdma->region.key}};
        first += read->count;
    }
    requests[reads - 1].next = NULL;
    requests[reads - 1].send_flags = IBV_SEND_SIGNALED;
    int rc = ibv_post_send(queue->qp, requests, &refused);
    if (rc) {
        count(&worker->counters.other_errors, 1);
        return -rc;
    }
    queue->posted += reads;
    count(&worker->counters.signalled, 1);
    return 0;
}

/* Rows that no worker has taken yet: a fair share of the batch, so that small batches spread over all queue pairs too. */
static uint32_t take_rows(st_rdma *rdma, uint32_t *first) {
    st_rdma_batch *batch = &rdma->batch;
    uint32_t queues = rdma->settings.threads * rdma->settings.queue_pairs;
    uint32_t share = (batch->count + queues - 1) / queues;
    if (share > ST_RDMA_CHAIN)
        share = ST_RDMA_CHAIN;
    if (__atomic_load_n(&batch->next, __ATOMIC_RELAXED) >= batch->count)
        return 0;
    *first = __atomic_fetch_add(&batch->next, share, __ATOMIC_RELAXED);
    if (*first >= batch->count)
        return 0;
    return batch->count - *first < share ? batch->count - *first : share;
}

/* Fill the queue pairs as far as there are rows and slots. */
static int post(st_rdma_worker *worker) {
    const st_rdma_settings *settings = &worker->rdma->settings;
    for (uint32_t i = 0; i < settings->queue_pairs; i++) {
        st_rdma_queue *queue = &worker->queues[i];
        uint32_t first, rows;
        while (settings->depth - (queue->posted - queue->done) >= ST_RDMA_CHAIN) {
            if ((rows = take_rows(worker->rdma, &first)) == 0)
                return 0;
            int rc = post_chain(worker, i, first, first + rows);
            if (rc)
                return rc;
            if (queue->posted - queue->done >= ST_RDMA_CHAIN && settings->queue_pairs > 1)
                break; /* the next queue pair gets a chain before this one gets a second */
        }
    }
    return 0;
}

static int status_error(st_rdma_counters *counters, enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR: count(&counters->retry_exceeded, 1); return -EHOSTDOWN;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR: count(&counters->remote_access, 1); return -EACCES;
    case IBV_WC_WR_FLUSH_ERR: count(&counters->flushed, 1); return -ECONNABORTED;
    default: count(&counters->other_errors, 1); return -EREMOTEIO;
    }
}

/* READs up to this position are over: hand their records on. */
static void hand_over(st_rdma_worker *worker, st_rdma_queue *queue, uint64_t position) {
    const st_rdma *rdma = worker->rdma;
    const st_rdma_batch *batch = &rdma->batch;
    uint64_t rows = 0, reads = position + 1 - queue->done;
    for (; queue->done <= position; queue->done++) {
        const st_rdma_read *read = &queue->reads[queue->done % rdma->settings.depth];
        const uint8_t *slot = slot_of(rdma, queue, queue->done);
        for (uint32_t i = 0; i < read->count; i++)
            batch->arrived(batch->sink, read->first + i, record_in(rdma, slot, batch->row_ids[read->first + i]));
        rows += read->count;
    }
    count(&worker->counters.rows, rows);
    count(&worker->counters.reads, reads);
    count(&worker->counters.bytes, reads * read_bytes(rdma));
}

static int finish(st_rdma_worker *worker, const struct ibv_wc *entry) {
    st_rdma_queue *queue = &worker->queues[entry->wr_id & ((1 << QUEUE_BITS) - 1)];
    uint64_t position = entry->wr_id >> QUEUE_BITS;
    if (entry->status == IBV_WC_SUCCESS && entry->byte_len == read_bytes(worker->rdma)) {
        hand_over(worker, queue, position);
        return 0;
    }
    /* A queue pair's READs complete in order: those before the one that failed have landed. */
    if (position > queue->done && entry->status != IBV_WC_SUCCESS)
        hand_over(worker, queue, position - 1);
    queue->done = position + 1;
    if (entry->status != IBV_WC_SUCCESS)
        return status_error(&worker->counters, entry->status);
    count(&worker->counters.wrong_length, 1);
    return -ENODATA;
}

/* How many completions there were, or the first one's -errno that was none. */
static int poll_completions(st_rdma_worker *worker) {
    struct ibv_wc entries[POLL_ENTRIES];
    int found = ibv_poll_cq(worker->cq, POLL_ENTRIES, entries), error = 0;
    if (found < 0) {
        count(&worker->counters.other_errors, 1);
        return -EIO;
    }
    for (int i = 0; i < found; i++) {
        int rc = finish(worker, &entries[i]);
        error = error ? error : rc;
    }
    return error ? error : found;
}

static int outstanding(const st_rdma_worker *worker) {
    for (uint32_t i = 0; i < worker->rdma->settings.queue_pairs; i++)
        if (worker->queues[i].posted != worker->queues[i].done)
            return 1;
    return 0;
}

/* A worker's part of the batch: 0, or the -errno that ends it. */
static int work(st_rdma_worker *worker) {
    st_rdma_batch *batch = &worker->rdma->batch;
    uint64_t quiet_since_ns = st_now_ns();
    for (;;) {
        int rc = post(worker);
        if (rc < 0)
            return rc;
        if (!outstanding(worker))
            return 0;
        if ((rc = poll_completions(worker)) < 0)
            return rc;
        uint64_t now_ns = st_now_ns();
        if (rc > 0)
            quiet_since_ns = now_ns;
        if (__atomic_load_n(&batch->failed, __ATOMIC_RELAXED))
            return -ECANCELED; /* another worker says why */
        if (now_ns >= batch->deadline_ns)
            return -ETIMEDOUT;
        if (now_ns - quiet_since_ns > PATIENT_NS)
            sched_yield();
    }
}

static void run(st_rdma_worker *worker) {
    worker->error = work(worker);
    if (worker->error < 0)
        __atomic_store_n(&worker->rdma->batch.failed, 1, __ATOMIC_RELAXED);
}

/* May this helper still join the batch? Not once the batch's own thread is through with it. */
static int join(st_rdma *rdma) {
    uint32_t helpers = __atomic_load_n(&rdma->helpers, __ATOMIC_ACQUIRE);
    while (!(helpers & HELPERS_CLOSED))
        if (__atomic_compare_exchange_n(&rdma->helpers, &helpers, helpers + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 1;
    return 0;
}

static void leave(st_rdma *rdma) {
    if (__atomic_sub_fetch(&rdma->helpers, 1, __ATOMIC_ACQ_REL) == HELPERS_CLOSED)
        st_futex_wake(&rdma->helpers, 1);
}

static void *helper_main(void *argument) {
    st_rdma_worker *worker = argument;
    st_rdma *rdma = worker->rdma;
    uint32_t seen = 0;
    while (!__atomic_load_n(&rdma->stop, __ATOMIC_ACQUIRE)) {
        uint32_t generation = __atomic_load_n(&rdma->generation, __ATOMIC_ACQUIRE);
        if (generation == seen) {
            st_futex_wait(&rdma->generation, seen, 0);
            continue;
        }
        seen = generation;
        if (join(rdma)) {
            run(worker);
            leave(rdma);
        }
    }
    return NULL;
}

static void wake_helpers(st_rdma *rdma) {
    __atomic_add_fetch(&rdma->generation, 1, __ATOMIC_RELEASE);
    st_futex_wake(&rdma->generation, INT_MAX);
}

int st_rdma_start_helpers(st_rdma *rdma) {
    rdma->helpers = HELPERS_CLOSED;
    for (uint32_t w = 1; w < rdma->settings.threads; w++) {
        int rc = pthread_create(&rdma->workers[w].thread, NULL, helper_main, &rdma->workers[w]);
        if (rc)
            return -rc;
        rdma->workers[w].started = 1;
    }
    return 0;
}

void st_rdma_stop_helpers(st_rdma *rdma) {
    __atomic_store_n(&rdma->stop, 1, __ATOMIC_RELEASE);
    wake_helpers(rdma);
    for (uint32_t w = 1; w < rdma->settings.threads; w++)
        if (rdma->workers[w].started)
            pthread_join(rdma->workers[w].thread, NULL);
}

static void open_batch(st_rdma *rdma, int helped) {
    for (uint32_t w = 0; w < rdma->settings.threads; w++)
        rdma->workers[w].error = 0;
    if (!helped)
        return;
    __atomic_store_n(&rdma->helpers, 0, __ATOMIC_RELEASE);
    wake_helpers(rdma);
}

/* Nobody may touch the batch from here on. */
static void close_batch(st_rdma *rdma) {
    uint32_t helpers = __atomic_or_fetch(&rdma->helpers, HELPERS_CLOSED, __ATOMIC_ACQ_REL);
    while (helpers != HELPERS_CLOSED) {
        st_futex_wait(&rdma->helpers, helpers, 0);
        helpers = __atomic_load_n(&rdma->helpers, __ATOMIC_ACQUIRE);
    }
}

static int batch_error(const st_rdma *rdma) {
    int error = 0;
    for (uint32_t w = 0; w < rdma->settings.threads; w++)
        if (rdma->workers[w].error < 0 && (error == 0 || error == -ECANCELED))
            error = rdma->workers[w].error;
    return error;
}

int st_rdma_fetch(void *context, const uint32_t *row_ids, uint32_t row_count, st_remote_arrived arrived, void *sink,
                  uint64_t deadline_ns) {
    st_rdma *rdma = context;
    if (rdma->control_fd < 0)
        return -ENOTCONN;
    rdma->batch = (st_rdma_batch){
        .row_ids = row_ids, .count = row_count, .arrived = arrived, .sink = sink, .deadline_ns = deadline_ns};
    int helped = row_count > HELPED_ROWS && rdma->settings.threads > 1;
    open_batch(rdma, helped);
    run(&rdma->workers[0]);
    if (helped)
        close_batch(rdma);
    int error = batch_error(rdma);
    st_rdma_counters *counters = &rdma->workers[0].counters;
    count(&counters->batches, 1);
    if (error == -ETIMEDOUT)
        count(&counters->late_batches, 1);
    return error;
}
#endif
