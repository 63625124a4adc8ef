/* SPDX-License-Identifier: Apache-2.0 */
/* What the step pass (core.c) and the readers (reader.c) share. slacktier_io.h is the public face. */
#ifndef ST_CORE_H
#define ST_CORE_H

#include <pthread.h>
#include <string.h>

#include "directory.h"
#include "source.h"

#define ST_SPILL_BIT 0x80000000u
#define ST_NO_ROW 0xFFFFFFFFu /* padding, or another rank's row */
#define ST_END 0xFFFFFFFFu
#define ST_HOST_HIT 0x80000000u

/* One row that a page read must deliver. dest is a cache slot, or a spill index with ST_SPILL_BIT. On a layer with
 * pool lines the row goes to the line of that index, and dest only says where the GPU puts it. */
typedef struct st_want {
    uint32_t row_id, dest, next;
    uint32_t host; /* slot of the second level that gets the record, with ST_HOST_HIT that has it; ST_END: none */
} st_want;

typedef struct st_page_read {
    uint32_t page_id, first_want;
    uint32_t failed;
} st_page_read;

/* One read on its way to a replica. */
typedef struct st_job {
    uint32_t layer, read;
    uint8_t replica;     /* whose turn it is */
    uint8_t attempt;     /* at that replica */
    uint8_t tried;       /* replicas that have had their turn */
    uint8_t last_chance; /* all have: this one is waited for */
} st_job;

/* Jobs that another thread could not finish, for readers or a lane. */
typedef struct st_inbox {
    pthread_mutex_t lock;
    st_job *jobs;
    uint64_t capacity, count;
} st_inbox;

typedef struct st_lane st_lane; /* lane.c */

/* Queue positions carry the step in their upper half, so that a reader that was asleep between reading and
 * claiming can never claim from a later step. */
typedef uint64_t st_position;
static inline st_position st_position_of(uint32_t step, uint32_t index) {
    return (uint64_t)step << 32 | index;
}

/* Who writes what decides which cache line it is on: the pass and the readers work on a layer at the same time. */
typedef struct st_layer {
    /* set between steps, read by all */
    st_layout layout;
    uint32_t source_count;
    st_source *sources[ST_REPLICAS_MAX];
    st_lane *lanes[ST_REPLICAS_MAX]; /* of the remote ones */
    uint32_t start;                  /* the replica that this step's reads begin with: the first whose link is up */
    /* What of that readers and lanes look at before they have claimed anything; atomic. */
    uint32_t copies;                      /* it is memory */
    st_lane *start_lane;                  /* it is remote */
    uint32_t fixed_base[ST_REPLICAS_MAX]; /* first registered file of a files source */
    uint64_t cache_rows;
    st_cache_policy cache_policy;
    uint8_t *cache;
    uint64_t cache_map_bytes;
    /* The second level: whole records behind the seed that their checksums start from, so that one from here is checked
     * like one from anywhere. */
    uint8_t *host_records;
    uint64_t host_rows, host_map_bytes;
    uint8_t *lines; /* a step path's pool, one record per want; NULL: rows go to the cache and spill */
    uint32_t line_bytes;
    int external_refs; /* refs is the caller's memory */
    uint32_t *refs;    /* per lookup: dest, or ST_NO_ROW */
    st_want *wants;
    st_page_read *reads; /* the pass writes entries, the readers read them up to `published` */
    uint8_t *spill;

    /* the pass's own */
    _Alignas(64) st_directory directory;
    st_directory host; /* of the second level */
    uint64_t lookup_count;
    uint32_t want_count, read_count, spill_count;
    uint64_t release_ns; /* emulated: not before this */
    int release_known;   /* release_ns is this step's */
    st_layer_result result;
    uint64_t evictions_before;

    /* shared with readers */
    _Alignas(64) st_position published;
    _Alignas(64) st_position claimed;
    _Alignas(64) uint32_t done; /* futex */
    uint32_t wake_at;
    uint64_t last_done_ns;
    uint64_t retries;
    uint32_t failed_reads;
    uint64_t bad_records, read_errors, replica_rows[ST_REPLICAS_MAX], host_hits; /* totals since open */

    _Alignas(64) pthread_mutex_t fault_lock;
    st_fault_report fault;
    int fault_is_final; /* of a read of this step that no replica delivered */
    st_layer_stats stats;
} st_layer;

struct st_table; /* step-local hash table, core.c */
struct st_reader;
struct st_slots;

struct st_core {
    uint32_t layer_count, rank, tp;
    uint32_t queue_depth, spin_us;
    uint64_t lookups_max;
    st_layer *layers;
    struct st_table *page_table, *row_table;

    /* the stepping thread's own; readers read what is above */
    _Alignas(64) uint32_t step; /* never 0 */
    int in_step;
    int draining; /* a step timed out and its reads may still be in flight */
    uint64_t begin_ns, first_ns;
    int reads_repeats;               /* the ablation without in-step deduplication: a repeat is read again */
    void (*progress)(void *context); /* called now and then while a pass runs; may be NULL */
    void *progress_context;

    _Alignas(64) st_backend backend;
    int backend_reason;
    uint32_t reader_count;
    struct st_reader *readers;
    struct st_slots *own_reads; /* the stepping thread's; NULL: readers do all */
    int *files;
    uint32_t file_count;
    uint32_t files_generation;
    int files_are_polled;       /* all of them: a ring is for either kind */
    _Alignas(64) uint32_t work; /* futex: changes with every publication */
    uint32_t sleepers;
    uint32_t stop;
    st_inbox inbox; /* for readers */
    st_lane *lanes[ST_LAYERS_MAX * ST_REPLICAS_MAX];
    uint32_t lane_count;
};

uint64_t st_now_ns(void);
void st_futex_wait(uint32_t *word, uint32_t value, uint64_t timeout_ns); /* timeout 0: none */
void st_futex_wake(uint32_t *word, int count);

/* Where a row's bytes live. */
static inline uint8_t *st_dest(const st_layer *layer, uint32_t dest) {
    uint64_t row_bytes = st_row_bytes(&layer->layout);
    if (dest & ST_SPILL_BIT)
        return layer->spill + (dest & ~ST_SPILL_BIT) * row_bytes;
    return layer->cache + dest * row_bytes;
}

enum { ST_HOST_SEED_BYTES = 16 }; /* keeps records 16-byte aligned */
static inline uint8_t *st_host_record(const st_layer *layer, uint32_t slot) {
    return layer->host_records + slot * (uint64_t)(ST_HOST_SEED_BYTES + layer->layout.record_bytes);
}

/* A record that was checked against layout, into a slot of the second level. */
static inline void st_host_keep(const st_layer *layer, uint32_t slot, const st_layout *layout, const uint8_t *record) {
    uint8_t *kept = st_host_record(layer, slot);
    memcpy(kept, &layout->crc_seed, sizeof layout->crc_seed);
    memcpy(kept + ST_HOST_SEED_BYTES, record, layout->record_bytes);
}

static inline int st_same_geometry(const st_layout *a, const st_layout *b) {
    return a->row_count == b->row_count && a->payload_bytes == b->payload_bytes && a->scale_bytes == b->scale_bytes &&
           a->layer_id == b->layer_id;
}

static inline int st_owned(const st_core *core, uint32_t row_id) {
    if ((core->tp & (core->tp - 1)) == 0) /* a division per lookup is felt */
        return (row_id & (core->tp - 1)) == core->rank;
    return row_id % core->tp == core->rank;
}

/* Is a step open, or are reads of one that timed out still out? */
int st_core_busy(st_core *core);

/* A step in parts, for a caller whose ids arrive layer by layer. Open, then every layer's pass in order, then
 * submit. An id outside the table is found while the pass runs, so -ERANGE may leave reads in flight. */
int st_step_open(st_core *core);
int st_step_pass(st_core *core, uint32_t index, const int64_t *row_ids, uint64_t count);
int st_step_submit(st_core *core);
/* After a layer's pass, where its device does not ask what later layers read: its rows may be released before they
 * are looked up. */
int st_step_submit_early(st_core *core, uint32_t index);

/* Has the layer's last row arrived, been checked and been released by the device's model? Never blocks. */
int st_step_arrived(const st_layer *layer, uint64_t now_ns);
int st_step_in_flight(const st_core *core);
/* 0, or what a layer whose reads are all over failed with. Never -ETIMEDOUT, which is the step's own deadline: a silent
 * peer is -EIO here and by its name in the fault report. */
int st_layer_error(const st_layer *layer);
/* After st_step_end: the rows that this step claimed slots for did not get there. */
void st_step_forget(st_core *core, uint32_t index);
void st_step_count_timeout(st_layer *layer);

/* Let a layer's rows and refs go to memory of the caller's from the next step on; its cache starts empty. */
int st_core_attach_lines(st_core *core, uint32_t index, uint8_t *lines, uint32_t line_bytes, uint32_t *refs);
int st_readers_start(st_core *core, uint32_t io_threads, uint32_t backend);
void st_readers_stop(st_core *core);

/* Tell the readers that count more reads of a layer may be claimed. */
void st_readers_notify(st_core *core, uint32_t count);

/* own_reads.c. Of count reads just published, those that the stepping thread submits itself: how many. */
uint32_t st_own_reads_start(st_core *core, uint32_t layer_index, uint32_t count);
/* Deal with those of them that are back, waiting for some until wait_ns have passed (0: not at all). 0: none is out. */
int st_own_reads_reap(st_core *core, uint64_t wait_ns);
/* Waits for the last of them. */
void st_own_reads_close(st_core *core);

/* Work is about to come: wake the readers that sleep. */
void st_readers_wake(st_core *core);

#endif
