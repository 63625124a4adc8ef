/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by one-sided RDMA READs out of a memory node's registered region.
 *
 * The memory node takes no part once a client is connected: the client's device reads the node's memory by itself. Who
 * makes the connection exchanges addresses over a channel of its own (slacktier_native/rdma.py):
 *
 *   st_rdma_open      device, landing buffers, reader threads
 *   st_rdma_prepare   fresh queue pairs; what the node has to know of them
 *   st_rdma_connect   the node's answer; from here on rows can be read
 *   st_rdma_source    a source of the core over it (st_remote.h)
 *
 * After a failure the link is down until prepare and connect have been done again. libibverbs is loaded at st_rdma_open;
 * without it, or where the library was compiled without its header, that is -ENOSYS.
 */
#ifndef ST_RDMA_H
#define ST_RDMA_H

#include "st_remote.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ST_RDMA_THREADS_MAX = 16,
    ST_RDMA_QUEUE_PAIRS_MAX = 8, /* per thread */
    ST_RDMA_ENDS_MAX = ST_RDMA_THREADS_MAX * ST_RDMA_QUEUE_PAIRS_MAX,
    ST_RDMA_CHAIN = 32, /* READs posted in one call; only the last one is signalled */
    ST_RDMA_DEVICE_CHARS = 64,
    ST_RDMA_WHY_CHARS = 160,
};

typedef enum st_rdma_unit { ST_RDMA_RECORDS = 0, ST_RDMA_PAGES = 1 } st_rdma_unit;

typedef struct st_rdma_settings {
    char device[ST_RDMA_DEVICE_CHARS];
    uint32_t port, gid_index;
    uint32_t threads;     /* that post and poll, the calling one included */
    uint32_t queue_pairs; /* per thread */
    uint32_t depth;       /* READs of a queue pair that are posted and not over; a multiple of ST_RDMA_CHAIN */
    uint32_t unit;        /* st_rdma_unit: what one READ brings */
    uint32_t ack_timeout; /* the device resends after 4.096 us << ack_timeout */
    uint32_t retry_count; /* and gives the link up after so many times; 1 to 7 */
    uint32_t service_level, traffic_class;
    uint64_t timeout_ns; /* a batch that takes longer counts as a dead peer */
} st_rdma_settings;

/* One queue pair, as its other end has to know it. */
typedef struct st_rdma_end {
    uint32_t number, first_psn;
} st_rdma_end;

/* A port, as the other side has to know it. */
typedef struct st_rdma_port {
    uint8_t gid[16];
    uint32_t lid;
    uint32_t mtu;       /* enum ibv_mtu */
    uint32_t ethernet;  /* RoCE: the address is the GID; 0: InfiniBand, it is the LID */
    uint32_t reads_max; /* outstanding READs per queue pair that this side can start (client) or answer (node) */
} st_rdma_port;

typedef struct st_rdma_region {
    uint64_t address, byte_count;
    uint32_t key, reserved;
} st_rdma_region;

typedef struct st_rdma_counters {
    uint64_t batches, rows, reads, bytes; /* rows delivered; READs that completed and their bytes */
    uint64_t signalled;                   /* completions asked for: about reads / ST_RDMA_CHAIN */
    uint64_t retry_exceeded, remote_access, flushed, other_errors, wrong_length;
    uint64_t late_batches; /* the deadline came first */
    uint64_t connections;
} st_rdma_counters;

typedef struct st_rdma st_rdma;

/* why (ST_RDMA_WHY_CHARS) says what failed where this or another function returns -errno; "" if nothing is known. */
int st_rdma_open(const st_rdma_settings *settings, const st_layout *layout, st_rdma **out, char *why);
void st_rdma_close(st_rdma *rdma);

/* Ends what was connected and makes threads * queue_pairs new queue pairs: their ends, and this side's port. */
int st_rdma_prepare(st_rdma *rdma, st_rdma_end *ends, st_rdma_port *port, char *why);

/* The node's ends in the same order. control_fd is the socket that both came over; the link counts as dead once the
 * node closes it. It stays the caller's, who keeps it until the next prepare or close. */
int st_rdma_connect(st_rdma *rdma, const st_rdma_end *ends, const st_rdma_port *port, const st_rdma_region *region,
                    int control_fd, char *why);

/* Read row 0 through the connection and check it: 0, or why the way does not work although both ends were set up. */
int st_rdma_try(st_rdma *rdma, char *why);

/* READs posted per queue pair at a time, and those that the device keeps on the wire, as both sides allow. */
void st_rdma_limits(const st_rdma *rdma, uint32_t *depth, uint32_t *reads_max);

/* A source over rdma, which it owns from now on; its link is up if rdma is connected. */
int st_rdma_source(st_rdma *rdma, st_source **out);

/* Between prepare and connect: the node has the same rows in another epoch now. -EINVAL if its records are others. */
int st_rdma_use_layout(st_rdma *rdma, const st_layout *layout);

/* The link that st_remote_wait_down has found down is connected again. */
void st_rdma_source_attach(st_source *source);

void st_rdma_read_counters(const st_rdma *rdma, st_rdma_counters *out);

/* 0 if libibverbs can be loaded, else -ENOSYS with why. */
int st_rdma_available(char *why);

#ifdef __cplusplus
}
#endif
#endif
