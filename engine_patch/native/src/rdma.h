/* SPDX-License-Identifier: Apache-2.0 */
/* What the set-up of an RDMA client (rdma_link.c) and its READs (rdma_read.c) share. st_rdma.h is the public face. */
#ifndef ST_RDMA_INTERNAL_H
#define ST_RDMA_INTERNAL_H

#ifdef ST_HAVE_VERBS
#include <pthread.h>

#include "rdma_verbs.h"
#include "source.h"
#include "st_rdma.h"

/* The rows that one READ brings: batch[first .. first + count), all of one page where the unit is a page. */
typedef struct st_rdma_read {
    uint32_t first, count;
} st_rdma_read;

/* READs of a queue pair complete in the order in which they were posted: a position says which are over. Position p lands
 * in slot p % depth of the queue pair's part of the thread's buffer. */
typedef struct st_rdma_queue {
    struct ibv_qp *qp;
    uint32_t first_psn;
    uint64_t posted, done;
    st_rdma_read *reads; /* [depth] */
    uint8_t *landing;    /* [depth][unit bytes] */
} st_rdma_queue;

/* A thread's own: nothing in it is shared while a batch runs. */
typedef struct st_rdma_worker {
    st_rdma *rdma;
    pthread_t thread;
    int started;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t *buffer;
    size_t buffer_bytes;
    int error; /* of the batch under way */
    st_rdma_queue queues[ST_RDMA_QUEUE_PAIRS_MAX];
    _Alignas(64) st_rdma_counters counters;
} st_rdma_worker;

/* What all workers take rows from until it is empty. */
typedef struct st_rdma_batch {
    const uint32_t *row_ids;
    uint32_t count;
    uint32_t next;   /* atomic: rows not taken yet begin here */
    uint32_t failed; /* atomic: a worker has met an error, the others need not go on */
    st_remote_arrived arrived;
    void *sink;
    uint64_t deadline_ns;
} st_rdma_batch;

struct st_rdma {
    st_rdma_settings settings;
    st_layout layout;
    uint32_t unit_bytes;
    const st_verbs *verbs;
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t device_reads_max, reads_max; /* that this device can start; that both sides allow */
    st_rdma_region region;
    int control_fd; /* -1: not connected */
    uint64_t connections;
    st_rdma_worker workers[ST_RDMA_THREADS_MAX];

    _Alignas(64) st_rdma_batch batch;
    _Alignas(64) uint32_t generation; /* futex: changes with each batch that wants helpers */
    uint32_t helpers;                 /* atomic: those at work, and HELPERS_CLOSED; futex */
    uint32_t stop;
};

int st_rdma_start_helpers(st_rdma *rdma);
void st_rdma_stop_helpers(st_rdma *rdma);
int st_rdma_fetch(void *context, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                  uint64_t deadline_ns);
#endif

#endif
