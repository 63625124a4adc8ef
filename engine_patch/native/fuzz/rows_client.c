/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of the row protocol: what it accepts as an answer must be the rows that it asked for. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "st_rows.h"

enum { ASKED = 6, RECORD_BYTES_MAX = 64 };
static const uint32_t row_ids[ASKED] = {0, 99, 7, 7, 50, 98};

static size_t right_reply(const st_layout *layout, uint8_t *reply) {
    uint8_t pages[FUZZ_PAGES_MAX * ST_PAGE_BYTES];
    st_rows_reply header = {
        .magic = ST_ROWS_REPLY_MAGIC, .request_id = 1, .count = ASKED, .record_bytes = layout->record_bytes};
    fuzz_pages(layout, pages);
    memcpy(reply, &header, sizeof header);
    for (uint32_t i = 0; i < ASKED; i++)
        memcpy(reply + sizeof header + i * layout->record_bytes,
               st_page_record(layout, pages + row_ids[i] / layout->rows_per_page * ST_PAGE_BYTES, row_ids[i]),
               layout->record_bytes);
    return sizeof header + ASKED * layout->record_bytes;
}

static void check_records(const st_layout *layout, const uint8_t *records) {
    int64_t ids[ASKED];
    uint64_t first_bad;
    for (uint32_t i = 0; i < ASKED; i++)
        ids[i] = row_ids[i];
    fuzz_require(st_pattern_check(FUZZ_SEED, ids, ASKED, FUZZ_PAYLOAD, FUZZ_SCALES, records, layout->record_bytes,
                                  &first_bad) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t reply[8192], records[ASKED * RECORD_BYTES_MAX];
    st_layout layout = fuzz_layout();
    fuzz_require(layout.record_bytes <= RECORD_BYTES_MAX);
    if (size < 2 || size > sizeof reply)
        return 0;
    size_t reply_bytes = size - 1;
    if (data[0] & 1) { /* right but for edits, and cut short */
        reply_bytes = right_reply(&layout, reply);
        fuzz_edit(reply, reply_bytes, data + 2, size - 2);
        reply_bytes -= data[1] < 200 ? 0 : data[1] - 199u;
    } else {
        memcpy(reply, data + 1, reply_bytes);
    }
    int pair[2];
    uint32_t bad_row = 0;
    st_rows_client *client;
    fuzz_require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    fuzz_require(send(pair[1], reply, reply_bytes, 0) == (ssize_t)reply_bytes);
    shutdown(pair[1], SHUT_WR);
    fuzz_require(st_rows_client_open(pair[0], &layout, 1000, &client) == 0);
    int rc = st_rows_fetch(client, row_ids, ASKED, records, &bad_row);
    fuzz_require(rc <= 0);
    if (rc == 0)
        check_records(&layout, records);
    else if (rc != -EBADMSG)
        fuzz_require(st_rows_fetch(client, row_ids, ASKED, records, &bad_row) == -ENOTCONN);
    st_rows_client_close(client);
    close(pair[1]);
    return 0;
}
