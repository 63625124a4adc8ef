/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the row protocol, and the few socket calls they share. See st_rows.h. */
#include "st_rows.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "source.h"

enum { PIECE_BYTES = 128 << 10, PREFETCH_RECORDS = 8, POLL_MS = 60000 };
static const uint64_t no_deadline_ms = UINT64_MAX;

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* Wait until fd is ready for events, or -ETIMEDOUT. */
static int wait_ready(int fd, short events, uint64_t deadline_ms) {
    for (;;) {
        uint64_t now = now_ms();
        if (now >= deadline_ms)
            return -ETIMEDOUT;
        struct pollfd watched = {.fd = fd, .events = events};
        uint64_t left_ms = deadline_ms - now;
        int rc = poll(&watched, 1, left_ms < POLL_MS ? (int)left_ms : POLL_MS);
        if (rc > 0)
            return 0;
        if (rc < 0 && errno != EINTR)
            return -errno;
    }
}

/* At least `least` and at most `most` bytes. Returns the count; -ECONNRESET if the peer closed first. */
static int64_t receive(int fd, uint8_t *bytes, size_t least, size_t most, uint64_t deadline_ms) {
    size_t have = 0;
    while (have < least) {
        ssize_t got = recv(fd, bytes + have, most - have, MSG_DONTWAIT);
        if (got > 0) {
            have += (size_t)got;
            continue;
        }
        if (got == 0)
            return -ECONNRESET;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return -errno;
        int rc = wait_ready(fd, POLLIN, deadline_ms);
        if (rc < 0)
            return rc;
    }
    return (int64_t)have;
}

static int send_all(int fd, struct iovec *parts, int count, uint64_t deadline_ms) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            int rc = wait_ready(fd, POLLOUT, deadline_ms);
            if (rc < 0)
                return rc;
            continue;
        }
        if (sent < 0)
            return -errno;
        while (message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len) {
            sent -= (ssize_t)message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen) {
            message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + sent;
            message.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return 0;
}

/* ---- client ---- */

struct st_rows_client {
    int fd;
    int broken;
    uint32_t timeout_ms;
    uint64_t request_id;
    st_layout layout;
};

int st_rows_client_open(int fd, const st_layout *layout, uint32_t timeout_ms, st_rows_client **out) {
    st_rows_client *client = calloc(1, sizeof *client);
    if (!client)
        return -ENOMEM;
    *client = (st_rows_client){.fd = fd, .timeout_ms = timeout_ms, .layout = *layout};
    *out = client;
    return 0;
}

void st_rows_client_close(st_rows_client *client) {
    if (!client)
        return;
    close(client->fd);
    free(client);
}

static int send_request(st_rows_client *client, const uint32_t *row_ids, uint32_t count, uint64_t deadline_ms) {
    st_rows_request header = {.magic = ST_ROWS_REQUEST_MAGIC,
                              .count = count,
                              .request_id = ++client->request_id,
                              .ids_crc = st_crc32c(0, row_ids, count * sizeof *row_ids)};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)row_ids, count * sizeof *row_ids}};
    return send_all(client->fd, parts, 2, deadline_ms);
}

static int reply_error(const st_rows_client *client, const st_rows_reply *reply, uint32_t count) {
    if (reply->magic != ST_ROWS_REPLY_MAGIC || reply->request_id != client->request_id)
        return -EPROTO;
    if (reply->status)
        return reply->status < 4096 ? -(int)reply->status : -EPROTO;
    if (reply->count != count || reply->record_bytes != client->layout.record_bytes)
        return -EPROTO;
    return 0;
}

/* Records as they come in, each handed over while the next ones are on their way. */
static int receive_records(st_rows_client *client, uint32_t count, uint8_t *records, st_remote_arrived arrived,
                           void *sink, uint64_t deadline_ms) {
    size_t record_bytes = client->layout.record_bytes, total = count * record_bytes, have = 0;
    uint32_t passed = 0;
    while (have < total) {
        int64_t got = receive(client->fd, records + have, 1, total - have, deadline_ms);
        if (got < 0)
            return (int)got;
        for (have += (size_t)got; (passed + 1) * record_bytes <= have; passed++)
            arrived(sink, passed, records + passed * record_bytes);
    }
    return 0;
}

int st_rows_fetch_each(st_rows_client *client, const uint32_t *row_ids, uint32_t count, uint8_t *records,
                       st_remote_arrived arrived, void *sink, uint64_t deadline_ns) {
    if (client->broken)
        return -ENOTCONN;
    if (count == 0 || count > ST_ROWS_MAX)
        return -EINVAL;
    uint64_t deadline_ms = deadline_ns / 1000000u;
    st_rows_reply reply;
    int rc = send_request(client, row_ids, count, deadline_ms);
    if (rc == 0) {
        int64_t got = receive(client->fd, (uint8_t *)&reply, sizeof reply, sizeof reply, deadline_ms);
        rc = got < 0 ? (int)got : reply_error(client, &reply, count);
    }
    if (rc == 0)
        rc = receive_records(client, count, records, arrived, sink, deadline_ms);
    client->broken = rc < 0;
    return rc;
}

typedef struct check {
    const st_layout *layout;
    const uint32_t *row_ids;
    uint32_t *bad_row;
    int rc;
} check;

static void check_record(void *sink, uint32_t index, const uint8_t *record) {
    check *self = sink;
    if (self->rc == 0 && st_record_check(self->layout, record, self->row_ids[index])) {
        *self->bad_row = self->row_ids[index];
        self->rc = -EBADMSG; /* the rest is read all the same, to stay in step */
    }
}

int st_rows_fetch(st_rows_client *client, const uint32_t *row_ids, uint32_t count, uint8_t *records,
                  uint32_t *bad_row) {
    check self = {.layout = &client->layout, .row_ids = row_ids, .bad_row = bad_row};
    uint64_t deadline_ns = (now_ms() + client->timeout_ms) * 1000000u;
    int rc = st_rows_fetch_each(client, row_ids, count, records, check_record, &self, deadline_ns);
    return rc < 0 ? rc : self.rc;
}

int st_rows_probe(const st_rows_client *client) {
    uint8_t byte;
    if (client->broken)
        return -ENOTCONN;
    ssize_t got = recv(client->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got >= 0)
        return got == 0 ? -ECONNRESET : -EPROTO; /* nothing was asked for */
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
}

/* ---- server ---- */

typedef struct connection {
    st_source *source;
    int fd;
    uint32_t timeout_ms;
    uint32_t *row_ids;
    uint8_t *piece;
    st_rows_counters *counters;
} connection;

static int reply_status(connection *peer, const st_rows_request *request, int status) {
    st_rows_reply reply = {.magic = ST_ROWS_REPLY_MAGIC,
                           .status = (uint32_t)status,
                           .request_id = request->request_id,
                           .record_bytes = peer->source->layout.record_bytes};
    struct iovec part = {&reply, sizeof reply};
    __atomic_add_fetch(&peer->counters->refused, 1, __ATOMIC_RELAXED);
    return send_all(peer->fd, &part, 1, now_ms() + peer->timeout_ms);
}

/* A whole, valid request: 0; 1 if the peer closed between requests; -errno otherwise. A quiet peer may stay quiet:
 * only what it has begun to send has a deadline. */
static int receive_request(connection *peer, st_rows_request *request) {
    int64_t got = receive(peer->fd, (uint8_t *)request, 1, sizeof *request, no_deadline_ms);
    if (got == -ECONNRESET)
        return 1;
    uint64_t deadline_ms = now_ms() + peer->timeout_ms;
    size_t left = sizeof *request - (size_t)(got < 0 ? 0 : got);
    if (got > 0 && left)
        got = receive(peer->fd, (uint8_t *)request + got, left, left, deadline_ms);
    if (got < 0)
        return (int)got;
    if (request->magic != ST_ROWS_REQUEST_MAGIC || request->reserved || request->count == 0)
        return -EPROTO;
    if (request->count > ST_ROWS_MAX)
        return -E2BIG;
    size_t ids_bytes = request->count * sizeof *peer->row_ids;
    got = receive(peer->fd, (uint8_t *)peer->row_ids, ids_bytes, ids_bytes, deadline_ms);
    if (got < 0)
        return (int)got;
    return st_crc32c(0, peer->row_ids, ids_bytes) == request->ids_crc ? 0 : -EPROTO;
}

static int ids_in_range(const connection *peer, uint32_t count) {
    uint32_t highest = 0;
    for (uint32_t i = 0; i < count; i++)
        highest = peer->row_ids[i] > highest ? peer->row_ids[i] : highest;
    return highest < peer->source->layout.row_count;
}

static const uint8_t *memory_record(const st_source *source, uint32_t row_id) {
    uint64_t page_id = row_id / source->layout.rows_per_page;
    return st_page_record(&source->layout, source->memory + page_id * ST_PAGE_BYTES, row_id);
}

/* The reply in pieces: while the network takes one, the next is copied together. Records go out unchecked: the client
 * checks every one, whatever happened to it on the way. */
static int send_rows(connection *peer, const st_rows_request *request) {
    uint32_t record_bytes = peer->source->layout.record_bytes, per_piece = PIECE_BYTES / record_bytes;
    st_rows_reply reply = {.magic = ST_ROWS_REPLY_MAGIC,
                           .request_id = request->request_id,
                           .count = request->count,
                           .record_bytes = record_bytes};
    uint64_t deadline_ms = now_ms() + peer->timeout_ms;
    for (uint32_t first = 0; first < request->count; first += per_piece) {
        uint32_t count = request->count - first < per_piece ? request->count - first : per_piece;
        for (uint32_t i = 0; i < count; i++) {
            if (i + PREFETCH_RECORDS < count)
                __builtin_prefetch(memory_record(peer->source, peer->row_ids[first + i + PREFETCH_RECORDS]));
            memcpy(peer->piece + (size_t)i * record_bytes, memory_record(peer->source, peer->row_ids[first + i]),
                   record_bytes);
        }
        struct iovec parts[2] = {{&reply, sizeof reply}, {peer->piece, (size_t)count * record_bytes}};
        int skip = first > 0;
        int rc = send_all(peer->fd, parts + skip, 2 - skip, deadline_ms);
        if (rc < 0)
            return rc;
    }
    __atomic_add_fetch(&peer->counters->requests, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&peer->counters->rows, request->count, __ATOMIC_RELAXED);
    __atomic_add_fetch(&peer->counters->bytes, (uint64_t)request->count * record_bytes, __ATOMIC_RELAXED);
    return 0;
}

static int serve_request(connection *peer) {
    st_rows_request request;
    int rc = receive_request(peer, &request);
    if (rc == -E2BIG) {
        reply_status(peer, &request, E2BIG);
        return -EPROTO;
    }
    if (rc != 0)
        return rc;
    return ids_in_range(peer, request.count) ? send_rows(peer, &request) : reply_status(peer, &request, ERANGE);
}

int st_rows_serve(st_source *source, int fd, uint32_t timeout_ms, st_rows_counters *counters) {
    if (source->kind != ST_SOURCE_MEMORY)
        return -EINVAL;
    connection peer = {.source = source, .fd = fd, .timeout_ms = timeout_ms, .counters = counters};
    peer.row_ids = malloc(ST_ROWS_MAX * sizeof *peer.row_ids);
    peer.piece = malloc(PIECE_BYTES);
    int rc = peer.row_ids && peer.piece ? 0 : -ENOMEM;
    while (rc == 0)
        rc = serve_request(&peer);
    free(peer.row_ids);
    free(peer.piece);
    return rc == 1 ? 0 : rc;
}
