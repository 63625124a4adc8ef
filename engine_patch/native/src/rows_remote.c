/* SPDX-License-Identifier: Apache-2.0 */
/* The row protocol's client as a remote source of the core. */
#include <errno.h>
#include <stdlib.h>

#include "remote.h"
#include "st_rows.h"

typedef struct rows_remote {
    uint32_t timeout_ms;
    st_rows_client *client; /* NULL: no connection */
    uint8_t *records;       /* of one fetch */
} rows_remote;

/* A stream that is out of step is of no use: the server may have the connection's place back at once. */
static int drop(rows_remote *self, int rc) {
    st_rows_client_close(self->client);
    self->client = NULL;
    return rc;
}

static int fetch(void *context, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                 uint64_t deadline_ns) {
    rows_remote *self = context;
    int rc = st_rows_fetch_each(self->client, row_ids, count, self->records, arrived, sink, deadline_ns);
    return rc < 0 ? drop(self, rc) : 0;
}

static int probe(void *context) {
    rows_remote *self = context;
    int rc = st_rows_probe(self->client);
    return rc < 0 ? drop(self, rc) : 0;
}

static void close_remote(void *context) {
    rows_remote *self = context;
    drop(self, 0);
    free(self->records);
    free(self);
}

int st_rows_source_open(int fd, const st_layout *layout, uint32_t timeout_ms, st_source **out) {
    rows_remote *self = calloc(1, sizeof *self);
    if (!self)
        return -ENOMEM;
    *self = (rows_remote){.timeout_ms = timeout_ms};
    self->records = malloc((size_t)ST_ROWS_MAX * layout->record_bytes);
    int rc = self->records ? 0 : -ENOMEM;
    if (rc == 0 && fd >= 0)
        rc = st_rows_client_open(fd, layout, timeout_ms, &self->client);
    const st_remote remote = {.rows_max = ST_ROWS_MAX,
                              .timeout_ns = timeout_ms * 1000000ull,
                              .fetch = fetch,
                              .probe = probe,
                              .close = close_remote};
    if (rc == 0)
        rc = st_source_open_remote(&remote, self, layout, fd >= 0, out);
    if (rc < 0) {
        free(self->client); /* fd stays the caller's */
        free(self->records);
        free(self);
    }
    return rc;
}

int st_rows_source_attach(st_source *source, int fd, const st_layout *layout) {
    rows_remote *self = st_link_context(source->link);
    if (layout->record_bytes != source->layout.record_bytes || layout->row_count != source->layout.row_count)
        return -EINVAL;
    int rc = st_rows_client_open(fd, layout, self->timeout_ms, &self->client);
    if (rc == 0) {
        source->layout = *layout; /* nobody looks at it while the link is down */
        st_remote_set_up(source);
    }
    return rc;
}
