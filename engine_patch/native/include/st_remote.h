/* SPDX-License-Identifier: Apache-2.0 */
/* How a replica in another process plugs into the core: rows by id through one blocking call.
 *
 * Rows over TCP, RDMA and a test's stand-in implement st_remote. The core calls it on a thread of its own (lane.c), with
 * the whole batch of a step's missing rows of one layer, and checks every record as it checks a page's. A remote's link
 * is up or down. While it is down the core does not call fetch and reads from the next replica at once; someone
 * outside the data path waits for that (st_remote_wait_down), makes a new connection with back-off, and calls
 * st_remote_set_up:
 *
 *   while (st_remote_wait_down(source, timeout_ns) != -ECANCELED)
 *       if (it returned 1 and a new connection could be made)
 *           put it into context; st_remote_set_up(source);
 */
#ifndef ST_REMOTE_H
#define ST_REMOTE_H

#include "slacktier_io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A record (record_bytes) has arrived for row_ids[index]; it is copied and checked before this returns. At most once
 * per index and fetch, in any order, from any thread until fetch returns. */
typedef void (*st_remote_arrived)(void *sink, uint32_t index, const uint8_t *record);

typedef struct st_remote {
    uint32_t rows_max;   /* that one fetch may ask for */
    uint64_t timeout_ns; /* a fetch's deadline lies this far ahead: a peer that is silent for longer counts as dead */

    /* Ask for count rows and hand over what comes. Called by one thread at a time and only while the link is up; row_ids
     * are distinct and inside the table. Rows that were not handed over are read from the next replica.
     * 0: the link is fine, also if some rows did not come. -errno: it is not, and is down from now on.
     * Returns before deadline_ns (CLOCK_MONOTONIC), whatever the peer does, and touches nothing of the caller's later. */
    int (*fetch)(void *context, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                 uint64_t deadline_ns);

    /* Is the idle link still alive? 0 or -errno, at once; never beside a fetch. NULL: only a fetch finds out. */
    int (*probe)(void *context);

    /* The last reference to the source is gone. May be NULL. */
    void (*close)(void *context);
} st_remote;

/* A source over remote, which is copied. up: whether there is a connection already. */
int st_source_open_remote(const st_remote *remote, void *context, const st_layout *layout, int up, st_source **out);

/* Sleep until the link is down: 1. 0 after timeout_ns, when an idle link was probed and found alive. -ECANCELED once
 * st_remote_cancel was called. While it returns 1 no fetch runs, so context may be changed until st_remote_set_up. */
int st_remote_wait_down(st_source *source, uint64_t timeout_ns);

/* context has a working connection again. */
void st_remote_set_up(st_source *source);

/* End every st_remote_wait_down, now and later: the source is about to be closed. */
void st_remote_cancel(st_source *source);

/* 0 if the link is up, else the -errno that it went down with. */
int st_remote_state(const st_source *source);

#ifdef __cplusplus
}
#endif
#endif
