/* SPDX-License-Identifier: Apache-2.0 */
/* Rows over a byte stream: one request with many row ids, their records back, in order.
 *
 * The connection is made and authenticated by the caller (slacktier_native/row_link.py), and is for one layer of one table.
 * Records travel as they are stored, with tag and CRC32C, so the client checks what it got against what it asked for.
 *
 *   request   magic u32 | count u32 | request id u64 | CRC32C of the ids u32 | zero u32 | row id u32 [count]
 *   reply     magic u32 | status u32 | request id u64 | count u32 | record bytes u32 | record [count]
 *
 * status is 0 or an errno, and then no records follow. All integers are little-endian.
 */
#ifndef ST_ROWS_H
#define ST_ROWS_H

#include "st_remote.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ST_ROWS_REQUEST_MAGIC 0x51524C53u /* "SLRQ" */
#define ST_ROWS_REPLY_MAGIC 0x50524C53u   /* "SLRP" */
enum { ST_ROWS_MAX = 8192 };              /* per request */

typedef struct st_rows_request {
    uint32_t magic, count;
    uint64_t request_id;
    uint32_t ids_crc, reserved;
} st_rows_request;

typedef struct st_rows_reply {
    uint32_t magic, status;
    uint64_t request_id;
    uint32_t count, record_bytes;
} st_rows_reply;

_Static_assert(sizeof(st_rows_request) == 24, "request header");
_Static_assert(sizeof(st_rows_reply) == 24, "reply header");

typedef struct st_rows_client st_rows_client;

/* Takes over the connected socket fd. timeout_ms bounds each fetch: a peer silent for longer counts as dead. */
int st_rows_client_open(int fd, const st_layout *layout, uint32_t timeout_ms, st_rows_client **out);
void st_rows_client_close(st_rows_client *client);

/* The records of count row ids into records (count * record_bytes), each checked. 0; -EBADMSG if a record is not the
 * one asked for (*bad_row names it); -ETIMEDOUT, -ECONNRESET, -EPROTO and others if the peer failed. After any error
 * but -EBADMSG the stream is out of step and every further fetch is -ENOTCONN. */
int st_rows_fetch(st_rows_client *client, const uint32_t *row_ids, uint32_t count, uint8_t *records, uint32_t *bad_row);

/* The same unchecked, each record handed over as soon as it is there; it lies in records until the next fetch. Any error
 * puts the stream out of step. */
int st_rows_fetch_each(st_rows_client *client, const uint32_t *row_ids, uint32_t count, uint8_t *records,
                       st_remote_arrived arrived, void *sink, uint64_t deadline_ns);

/* Has an idle peer closed the connection, or sent what nobody asked for? 0 or -errno, at once. */
int st_rows_probe(const st_rows_client *client);

/* A remote source of the rows behind a connected and authenticated socket, which it takes over; fd -1: its link is down. */
int st_rows_source_open(int fd, const st_layout *layout, uint32_t timeout_ms, st_source **out);

/* A new connection for a link that st_remote_wait_down has found down: it is up from now on. Takes over fd. layout is
 * what the server says now: the same rows, perhaps of another epoch. */
int st_rows_source_attach(st_source *source, int fd, const st_layout *layout);

typedef struct st_rows_counters {
    uint64_t requests, rows, bytes, refused; /* atomic; shared by all connections of a server */
} st_rows_counters;

/* Serve one connection from a memory source until the peer closes it (0) or breaks the protocol (-EPROTO, after a reply that
 * says so where it can be said). A peer that takes nothing for timeout_ms is cut off: the next request is read only
 * when the reply is gone, which is the back-pressure. Does not close fd. */
int st_rows_serve(st_source *source, int fd, uint32_t timeout_ms, st_rows_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
