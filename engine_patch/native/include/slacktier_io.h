/* SPDX-License-Identifier: Apache-2.0 */
/* The boundary between the native core and its callers.
 *
 * A core serves one rank: layers in order of use, each with replicas to read from and a row cache. A step is
 *   st_step_begin   one pass over all layers' row ids: hits, repeats, misses; misses go to the readers while
 *                   the pass still runs, the first layer's first
 *   st_step_wait    once per layer: blocks until that layer's rows have arrived and were checked
 *   st_step_gather  copies the rows out, in the order of the ids
 *   st_step_end     releases the step
 * One thread calls these; readers are the core's own threads. Nothing here needs Python. Functions return 0 or
 * -errno; memory is the caller's. No row leaves whose tag and CRC32C were not checked after it was read.
 */
#ifndef SLACKTIER_IO_H
#define SLACKTIER_IO_H

#include <stdint.h>

#include "st_page.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ST_LAYERS_MAX = 64,
    ST_REPLICAS_MAX = 4,
    ST_STRIPES_MAX = 64,
    ST_READ_ATTEMPTS = 2, /* per replica; of a remote whose link is down, none */
};

typedef struct st_source st_source;
typedef struct st_core st_core;

typedef enum st_backend { ST_BACKEND_AUTO = 0, ST_BACKEND_URING = 1, ST_BACKEND_POSIX = 2 } st_backend;

/* A region on files or block devices, one path per stripe, opened read-only with O_DIRECT where possible. */
int st_source_open_files(const char *const *paths, uint32_t stripe_count, const st_layout *layout, st_source **out);

/* The memory that a table is in. */
typedef enum st_page_kind {
    ST_PAGES_SMALL = 0,       /* of 4 KiB, or not this library's */
    ST_PAGES_TRANSPARENT = 1, /* huge ones where the kernel finds room */
    ST_PAGES_RESERVED = 2,    /* from the system's pool of huge pages */
} st_page_kind;
st_page_kind st_source_pages(const st_source *source);

/* The same region read whole into memory: reserved huge pages if there are enough, else transparent ones if allowed. */
int st_source_open_memory(const char *const *paths, uint32_t stripe_count, const st_layout *layout, st_source **out);

/* Bytes of a memory source, released as the named device's delay model says. Keeps a reference to base. */
int st_source_open_emulated(st_source *base, const char *device, st_source **out);

/* Pages [0, page_count) that the caller holds in memory and keeps until the source and all cores on it are closed. */
int st_source_open_borrowed(const uint8_t *pages, const st_layout *layout, st_source **out);

/* Pages from a callback: 4096 for a whole page, fewer for a short read, -errno for a failed one.
 * The callback runs on reader threads. This is where tests inject faults. */
typedef int64_t (*st_read_callback)(void *context, uint64_t page_id, uint8_t *page);
int st_source_open_callback(st_read_callback read, void *context, const st_layout *layout, st_source **out);

/* Rows of the test pattern, encoded when they are asked for: a table of any size that takes no space. For benchmarks
 * and tests. */
int st_source_open_pattern(uint64_t seed, const st_layout *layout, st_source **out);

/* Drops one reference; the last one closes. A core holds a reference to each of its sources. */
void st_source_close(st_source *source);

/* 1 if the source's files are open with O_DIRECT. */
int st_source_is_direct(const st_source *source);

/* A memory source's pages in order of page id, for as long as the source is open; NULL of any other source. */
const uint8_t *st_source_memory(const st_source *source, uint64_t *byte_count);

/* Set the delay model of a named emulated device, for all processes that use it, from the next step on; the device
 * owes nothing from before. Each term is 0 to ST_DELAY_US_MAX. */
#define ST_DELAY_US_MAX 60e6
int st_delay_set(const char *device, double a_us, double b_us, double c_us);

/* Sleep until a CLOCK_MONOTONIC instant, within a few microseconds: the last 60 us are spun. */
void st_sleep_until(uint64_t until_ns);

/* How a row cache chooses the row that goes. The second level is CLOCK in any case. */
typedef enum st_cache_policy { ST_CACHE_CLOCK = 0, ST_CACHE_S3FIFO = 1 } st_cache_policy;

typedef struct st_layer_config {
    uint64_t cache_rows;
    uint32_t cache_policy; /* an st_cache_policy */
    uint32_t source_count;
    st_source *sources[ST_REPLICAS_MAX]; /* replicas in order of preference */
} st_layer_config;

typedef struct st_core_config {
    uint32_t layer_count;
    uint32_t rank, tp;    /* rows with row_id % tp == rank are owned */
    uint32_t io_threads;  /* 0: one with io_uring, 16 with preadv */
    uint32_t queue_depth; /* pages in flight per thread */
    uint32_t backend;     /* st_backend */
    uint32_t spin_us;     /* how long an idle reader spins before it sleeps */
    uint64_t lookups_max; /* per layer and step */
} st_core_config;

int st_core_open(const st_core_config *config, const st_layer_config *layers, st_core **out);
void st_core_close(st_core *core);

/* ST_BACKEND_URING or ST_BACKEND_POSIX; *reason is the errno that ruled io_uring out, or 0. */
st_backend st_core_backend(const st_core *core, int *reason);
/* 1 if the readers poll for completions: every file is a block device with poll queues (nvme.poll_queues). */
int st_core_is_polled(const st_core *core);

/* row_ids[layer][counts[layer]]; -1 is padding: no read, a zero row. -ERANGE if an id is outside its table (nothing
 * was started), -E2BIG above lookups_max, -EBUSY while reads of a timed-out step are still in flight. */
int st_step_begin(st_core *core, const int64_t *const *row_ids, const uint64_t *counts);

typedef struct st_layer_result {
    uint64_t lookups, owned; /* owned: of this rank; hits + repeats + misses == owned */
    uint64_t hits;           /* in the cache when the step began */
    uint64_t repeats;        /* asked for again in the same step */
    uint64_t misses;
    uint64_t pages;  /* distinct reads, retries not counted */
    uint64_t spills; /* misses that found no cache slot; served, not kept */
    uint64_t retries;
    uint64_t pass_ns;    /* this layer's part of the pass over the ids */
    uint64_t resolve_ns; /* begin to first miss handed to a reader ("s"), 0 if none */
    uint64_t read_ns;    /* from then until this layer's last row was checked, 0 if none */
    uint64_t arrived_ns; /* begin to that moment */
    uint64_t wait_ns;    /* how long st_step_wait blocked */
    uint64_t host_hits;  /* misses that the second level answers; they are no pages */
} st_layer_result;

/* 0; -ETIMEDOUT if the rows are not here in time; another -errno when no replica delivered (st_core_fault says what). */
int st_step_wait(st_core *core, uint32_t layer, uint64_t timeout_ns, st_layer_result *result);

/* Rows in the order of the ids, row_bytes each, stride apart; rows of other ranks and padding are zero. */
int st_step_gather(st_core *core, uint32_t layer, uint8_t *out, uint64_t stride);

int st_step_end(st_core *core);

/* What went wrong last on a layer. */
typedef struct st_fault_report {
    int32_t error;    /* -errno of the read, or -EBADMSG with fault set */
    int32_t fault;    /* st_fault */
    uint32_t replica; /* the last one tried */
    uint32_t reserved;
    uint64_t row_id, page_id;
    int64_t bytes; /* what the read returned */
} st_fault_report;
int st_core_fault(const st_core *core, uint32_t layer, st_fault_report *report);

/* Between steps. Rows in the cache are kept as far as they fit. */
int st_core_set_cache_rows(st_core *core, uint32_t layer, uint64_t cache_rows);
/* Between steps: the second level in host memory, which keeps every row that was read; 0, as at the start, is none. Its
 * rows are kept as far as they fit. */
int st_core_set_host_rows(st_core *core, uint32_t layer, uint64_t host_rows);
/* Between steps. The geometry must be the same. keep_cache only if the caller knows that the rows are, too. */
int st_core_set_sources(st_core *core, uint32_t layer, st_source *const *sources, uint32_t source_count,
                        int keep_cache);
/* Between steps: 1 lets the thread that begins a step do up to 64 reads of its first layer itself, within st_step_begin and
 * st_step_wait of that layer. For callers that wait as soon as they have begun: when those rows came is not known before
 * the wait. Whether it is in force (only io_uring can), -EBUSY or -ENOMEM. */
int st_core_set_own_reads(st_core *core, int on);
/* Between steps: 0 reads a row that is missing once for each time that a step asks for it, instead of once. For the
 * benchmark that says what this is worth. */
int st_core_set_dedup(st_core *core, int dedup);
/* Between steps: put rows into the cache that another instance has sent, as records of layout: the same rows, perhaps of
 * another epoch. Every record is checked before any is kept: -EBADMSG with *bad_row if one is not the row that it should
 * be, -ERANGE if an id is outside the table. Rows of other ranks, and rows whose set is full of others of the same call, are
 * passed over; what does not fit the cache goes to the second level, where there is one. *kept counts the rows that the
 * layer has afterwards. */
int st_core_seed(st_core *core, uint32_t layer, const st_layout *layout, const uint32_t *row_ids,
                 const uint8_t *records, uint64_t count, uint64_t *kept, uint32_t *bad_row);
/* Between steps: forget all rows (new weights). */
int st_core_drop_cache(st_core *core, uint32_t layer);

typedef struct st_layer_stats {
    uint64_t steps, lookups, owned, hits, repeats, misses, pages, spills, evictions;
    uint64_t retries, failed_reads, bad_records, read_errors, failed_steps, timeouts;
    uint64_t cache_rows, cache_bytes, directory_bytes;
    uint64_t host_hits, host_rows, host_bytes; /* second level: misses that it answered, its size */
    uint64_t replica_rows[ST_REPLICAS_MAX];    /* that came from each, in the order of the sources then in force */
} st_layer_stats;
int st_core_stats(const st_core *core, uint32_t layer, st_layer_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
