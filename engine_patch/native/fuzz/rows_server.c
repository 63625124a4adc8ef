/* SPDX-License-Identifier: Apache-2.0 */
/* The server's side of the row protocol: whatever a peer sends, what comes back is whole replies with right rows. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "st_rows.h"

enum { REPLY_BYTES_MAX = 1 << 20 };
static uint8_t pages[FUZZ_PAGES_MAX * ST_PAGE_BYTES], replies[REPLY_BYTES_MAX];

/* The ids' checksum of the first request made right, or the fuzzer would hardly get past it. */
static void fix_checksum(uint8_t *bytes, size_t size) {
    st_rows_request request;
    if (size < sizeof request)
        return;
    memcpy(&request, bytes, sizeof request);
    if (request.count > (size - sizeof request) / sizeof(uint32_t))
        return;
    request.ids_crc = st_crc32c(0, bytes + sizeof request, request.count * sizeof(uint32_t));
    memcpy(bytes, &request, sizeof request);
}

static void check_replies(const st_layout *layout, size_t byte_count) {
    size_t at = 0;
    while (at < byte_count) {
        st_rows_reply reply;
        fuzz_require(byte_count - at >= sizeof reply);
        memcpy(&reply, replies + at, sizeof reply);
        at += sizeof reply;
        fuzz_require(reply.magic == ST_ROWS_REPLY_MAGIC && reply.record_bytes == layout->record_bytes);
        if (reply.status)
            continue;
        fuzz_require(reply.count > 0 && reply.count <= ST_ROWS_MAX);
        fuzz_require((byte_count - at) / layout->record_bytes >= reply.count);
        for (uint32_t i = 0; i < reply.count; i++, at += layout->record_bytes) {
            uint32_t tag;
            memcpy(&tag, replies + at + st_row_bytes(layout), sizeof tag);
            fuzz_require(st_record_check(layout, replies + at, tag) == ST_FAULT_NONE);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static st_source *source;
    static st_layout layout;
    if (!source) {
        layout = fuzz_layout();
        fuzz_pages(&layout, pages);
        fuzz_require(st_source_open_borrowed(pages, &layout, &source) == 0);
    }
    uint8_t request[4096];
    if (size < 2 || size > sizeof request)
        return 0;
    memcpy(request, data + 1, size - 1);
    if (data[0] & 1)
        fix_checksum(request, size - 1);
    int pair[2];
    st_rows_counters counters = {0};
    fuzz_require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    fuzz_require(send(pair[0], request, size - 1, 0) == (ssize_t)size - 1);
    shutdown(pair[0], SHUT_WR);
    int rc = st_rows_serve(source, pair[1], 1000, &counters);
    fuzz_require(rc <= 0);
    close(pair[1]);
    size_t have = 0;
    ssize_t got;
    while ((got = recv(pair[0], replies + have, sizeof replies - have, 0)) > 0)
        have += (size_t)got;
    close(pair[0]);
    check_replies(&layout, have);
    return 0;
}
