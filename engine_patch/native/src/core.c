/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's lookups: the pass over a step's row ids, waiting, gathering, and what changes between steps. */
#include "core.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "jobs.h"
#include "lane.h"
#include "polled.h"
#include "remote.h"

enum {
    PREFETCH_AHEAD = 12,
    BLOCK = 32,                 /* lookups whose directory lines are fetched together */
    WRITE_AHEAD = 16,           /* misses */
    PROGRESS_BLOCKS = 8,        /* blocks between two calls of progress */
    PUBLISH_EVERY = 128,        /* reads handed over while the pass still runs, after the first ones */
    PUBLISH_AT_END_FROM = 16384 /* lookups; a prefill chunk gains more from page deduplication than from a head start */
};

static const uint64_t spin_before_ns = 60000; /* a sleeper wakes up to this late */

/* ---- step-local hash table: key -> value, emptied by changing the generation ---- */

typedef struct table_entry {
    uint32_t key, value, generation;
} table_entry;

struct st_table {
    uint32_t generation;
    uint32_t mask; /* of the pass in progress: small passes stay in cache */
    uint64_t capacity;
    table_entry entries[];
};

static uint64_t power_of_two_from(uint64_t least) {
    uint64_t size = 16;
    while (size < least)
        size *= 2;
    return size;
}

/* Memory that costs nothing until it is touched. */
static void *map_lazily(uint64_t byte_count) {
    void *memory = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct st_table *table_open(uint64_t keys_max) {
    uint64_t capacity = power_of_two_from(2 * keys_max);
    struct st_table *table = map_lazily(sizeof *table + capacity * sizeof(table_entry));
    if (table)
        table->capacity = capacity;
    return table;
}

static void table_close(struct st_table *table) {
    if (table)
        munmap(table, sizeof *table + table->capacity * sizeof(table_entry));
}

static void table_reset(struct st_table *table, uint64_t keys_max) {
    table->mask = (uint32_t)(power_of_two_from(2 * keys_max) - 1);
    if (++table->generation == 0) {
        memset(table->entries, 0, table->capacity * sizeof(table_entry));
        table->generation = 1;
    }
}

/* The entry of key: filled if entry->generation is the table's, else free to be taken with table_take. */
static table_entry *table_find(struct st_table *table, uint32_t key) {
    uint32_t at = key * 0x9E3779B1u;
    at = (at ^ at >> 15) & table->mask;
    while (table->entries[at].generation == table->generation && table->entries[at].key != key)
        at = (at + 1) & table->mask;
    return &table->entries[at];
}

static void table_take(struct st_table *table, table_entry *entry, uint32_t key, uint32_t value) {
    *entry = (table_entry){key, value, table->generation};
}

/* ---- open and close ---- */

static void host_close(st_layer *layer) {
    st_directory_close(&layer->host);
    if (layer->host_records)
        munmap(layer->host_records, layer->host_map_bytes);
    layer->host_records = NULL;
    layer->host_rows = layer->host_map_bytes = 0;
}

static void layer_free(st_core *core, st_layer *layer) {
    for (uint32_t i = 0; i < layer->source_count; i++)
        st_source_close(layer->sources[i]);
    st_directory_close(&layer->directory);
    host_close(layer);
    if (layer->cache)
        munmap(layer->cache, layer->cache_map_bytes);
    if (layer->refs && !layer->external_refs)
        munmap(layer->refs, core->lookups_max * sizeof *layer->refs);
    if (layer->wants)
        munmap(layer->wants, core->lookups_max * sizeof *layer->wants);
    if (layer->reads)
        munmap(layer->reads, core->lookups_max * sizeof *layer->reads);
    if (layer->spill)
        munmap(layer->spill, core->lookups_max * st_row_bytes(&layer->layout));
    pthread_mutex_destroy(&layer->fault_lock);
}

/* A remote can be asked for the rows of any one page at once. */
static int source_valid(const st_source *source, const st_layout *layout) {
    return source && st_same_geometry(&source->layout, layout) &&
           (source->kind != ST_SOURCE_REMOTE || st_link_rows_max(source->link) >= layout->rows_per_page);
}

static int sources_valid(st_source *const *sources, uint32_t count) {
    if (count == 0 || count > ST_REPLICAS_MAX || !sources[0])
        return 0;
    for (uint32_t i = 0; i < count; i++)
        if (!source_valid(sources[i], &sources[0]->layout))
            return 0;
    return 1;
}

static int cache_open(st_layer *layer, uint64_t cache_rows, st_directory *directory, uint8_t **cache,
                      uint64_t *map_bytes) {
    int rc = st_directory_open(directory, cache_rows, layer->cache_policy);
    *cache = NULL;
    *map_bytes = (uint64_t)directory->set_count * ST_WAYS * st_row_bytes(&layer->layout);
    if (rc == 0 && *map_bytes && !(*cache = map_lazily(*map_bytes))) {
        st_directory_close(directory);
        rc = -ENOMEM;
    }
    if (*cache)
        madvise(*cache, *map_bytes, MADV_HUGEPAGE);
    return rc;
}

static int layer_init(st_core *core, st_layer *layer, const st_layer_config *config) {
    pthread_mutex_init(&layer->fault_lock, NULL);
    if (!sources_valid(config->sources, config->source_count))
        return -EINVAL;
    layer->layout = config->sources[0]->layout;
    for (uint32_t i = 0; i < config->source_count; i++) {
        layer->sources[i] = config->sources[i];
        st_source_retain(layer->sources[i]);
    }
    layer->source_count = config->source_count;
    layer->cache_rows = config->cache_rows;
    if (config->cache_policy > ST_CACHE_S3FIFO)
        return -EINVAL;
    layer->cache_policy = config->cache_policy;
    layer->refs = map_lazily(core->lookups_max * sizeof *layer->refs);
    layer->wants = map_lazily(core->lookups_max * sizeof *layer->wants);
    layer->reads = map_lazily(core->lookups_max * sizeof *layer->reads);
    layer->spill = map_lazily(core->lookups_max * st_row_bytes(&layer->layout));
    if (!layer->refs || !layer->wants || !layer->reads || !layer->spill)
        return -ENOMEM;
    return cache_open(layer, config->cache_rows, &layer->directory, &layer->cache, &layer->cache_map_bytes);
}

/* The files that readers register with their rings. */
static int list_files(st_core *core) {
    uint32_t count = 0, polled = 0;
    int *files = malloc(sizeof(int) * ST_LAYERS_MAX * ST_REPLICAS_MAX * ST_STRIPES_MAX);
    if (!files)
        return -ENOMEM;
    for (uint32_t k = 0; k < core->layer_count; k++) {
        st_layer *layer = &core->layers[k];
        for (uint32_t r = 0; r < layer->source_count; r++) {
            const st_source *source = layer->sources[r];
            layer->fixed_base[r] = count;
            for (uint32_t i = 0; source->kind == ST_SOURCE_FILES && i < source->layout.stripe_count; i++)
                polled += (uint32_t)st_file_is_polled(files[count++] = source->fds[i]);
        }
    }
    free(core->files);
    core->files = files;
    core->file_count = count;
    core->files_are_polled = count && polled == count;
    core->files_generation++;
    return 0;
}

int st_core_open(const st_core_config *config, const st_layer_config *layers, st_core **out) {
    if (config->layer_count == 0 || config->layer_count > ST_LAYERS_MAX || config->tp == 0 ||
        config->rank >= config->tp || config->lookups_max == 0 || config->lookups_max >= ST_SPILL_BIT ||
        config->queue_depth == 0 || config->queue_depth > 4096 || config->io_threads > 256 ||
        config->backend > ST_BACKEND_POSIX)
        return -EINVAL;
    st_core *core = aligned_alloc(64, (sizeof *core + 63) / 64 * 64);
    if (!core)
        return -ENOMEM;
    memset(core, 0, sizeof *core);
    core->layer_count = config->layer_count;
    core->rank = config->rank;
    core->tp = config->tp;
    core->queue_depth = config->queue_depth;
    core->spin_us = config->spin_us;
    core->lookups_max = config->lookups_max;
    core->page_table = table_open(config->lookups_max);
    core->row_table = table_open(config->lookups_max);
    core->layers = aligned_alloc(64, config->layer_count * sizeof *core->layers);
    int rc = core->page_table && core->row_table && core->layers ? 0 : -ENOMEM;
    if (core->layers)
        memset(core->layers, 0, config->layer_count * sizeof *core->layers);
    for (uint32_t k = 0; rc == 0 && k < core->layer_count; k++)
        rc = layer_init(core, &core->layers[k], &layers[k]);
    if (rc == 0)
        rc = list_files(core);
    if (rc == 0)
        rc = st_inbox_open(&core->inbox, core->layer_count * core->lookups_max);
    if (rc == 0)
        rc = st_lanes_update(core);
    if (rc == 0)
        rc = st_readers_start(core, config->io_threads, config->backend);
    if (rc < 0) {
        st_core_close(core);
        return rc;
    }
    *out = core;
    return 0;
}

void st_core_close(st_core *core) {
    if (!core)
        return;
    st_own_reads_close(core);
    if (core->readers)
        st_readers_stop(core);
    st_lanes_stop(core);
    st_inbox_close(&core->inbox);
    for (uint32_t k = 0; core->layers && k < core->layer_count; k++)
        layer_free(core, &core->layers[k]);
    table_close(core->page_table);
    table_close(core->row_table);
    free(core->layers);
    free(core->files);
    free(core);
}

int st_core_is_polled(const st_core *core) {
    return core->backend == ST_BACKEND_URING && __atomic_load_n(&core->files_are_polled, __ATOMIC_RELAXED);
}

st_backend st_core_backend(const st_core *core, int *reason) {
    *reason = core->backend_reason;
    return core->backend;
}

/* ---- the pass ---- */

static void publish(st_core *core, st_layer *layer, uint32_t already) {
    if (already == layer->read_count)
        return;
    if (core->first_ns == 0)
        core->first_ns = st_now_ns();
    __atomic_store_n(&layer->published, st_position_of(core->step, layer->read_count), __ATOMIC_RELEASE);
    if (layer->start_lane) {
        st_lane_notify(layer->start_lane);
        return;
    }
    uint32_t count = layer->read_count - already;
    uint32_t own = st_own_reads_start(core, (uint32_t)(layer - core->layers), count);
    if (own < count)
        st_readers_notify(core, count - own);
}

/* Add a row to the read of its page; a read that was handed over already is left alone and a new one made. */
static void add_want(st_core *core, st_layer *layer, uint32_t row_id, uint32_t dest, uint32_t host,
                     uint32_t published) {
    uint32_t page_id = row_id / layer->layout.rows_per_page;
    uint32_t want = layer->want_count++;
    /* The readers had these lines last step: ask for them back before the stores queue up behind each other. */
    __builtin_prefetch(&layer->wants[want + WRITE_AHEAD], 1);
    __builtin_prefetch(&layer->reads[layer->read_count + WRITE_AHEAD], 1);
    int from_host = host != ST_END && (host & ST_HOST_HIT);
    layer->result.host_hits += (uint32_t)from_host;
    if (from_host || layer->lines) {
        /* Of 300,000 misses of such steps 184 shared a page with another: looking for them costs more. */
        layer->wants[want] = (st_want){row_id, dest, ST_END, host};
        layer->reads[layer->read_count++] = (st_page_read){page_id, want, 0};
        return;
    }
    table_entry *entry = table_find(core->page_table, page_id);
    if (entry->generation == core->page_table->generation && entry->value >= published) {
        st_page_read *read = &layer->reads[entry->value];
        layer->wants[want] = (st_want){row_id, dest, read->first_want, host};
        read->first_want = want;
        return;
    }
    layer->wants[want] = (st_want){row_id, dest, ST_END, host};
    layer->reads[layer->read_count] = (st_page_read){page_id, want, 0};
    table_take(core->page_table, entry, page_id, layer->read_count++);
}

/* A row that gets no cache slot: once per step all the same. */
static uint32_t spill_row(st_core *core, st_layer *layer, uint32_t row_id, uint32_t host, uint32_t published) {
    table_entry *entry = table_find(core->row_table, row_id);
    if (entry->generation == core->row_table->generation) {
        layer->result.repeats++;
        return entry->value;
    }
    /* In pool lines the row stays where it arrives. */
    uint32_t dest = (layer->lines ? layer->want_count : layer->spill_count) | ST_SPILL_BIT;
    layer->spill_count++;
    table_take(core->row_table, entry, row_id, dest);
    layer->result.misses++;
    add_want(core, layer, row_id, dest, host, published);
    return dest;
}

/* Some of a step's lookups that this rank owns: where they stand in the step, and their sets. */
typedef struct block {
    uint32_t count;
    uint32_t at[BLOCK], row_ids[BLOCK], sets[BLOCK];
} block;

/* A whole block of rows of one table that this rank owns all of: without a branch per id. 0: not such a block. */
static int block_fill_plain(const st_core *core, const st_layer *layer, const int64_t *row_ids, block *out) {
    if (core->tp != 1)
        return 0;
    uint64_t high = 0;
    uint32_t row_count = layer->layout.row_count, beyond = 0;
    for (uint32_t i = 0; i < BLOCK; i++) {
        high |= (uint64_t)row_ids[i] >> 32;
        out->row_ids[i] = (uint32_t)row_ids[i];
        beyond |= out->row_ids[i] >= row_count;
    }
    return !high && !beyond;
}

/* Fill a block from lookups [*next, count) and start fetching its directory lines. 1 if an id was beyond the table: it
 * counts as nobody's. */
static int block_fill(const st_core *core, st_layer *layer, const int64_t *row_ids, uint64_t count, uint64_t *next,
                      block *out) {
    uint64_t row_count = layer->layout.row_count, i = *next;
    uint32_t filled = 0;
    int bad = 0;
    if (count - i >= BLOCK && block_fill_plain(core, layer, row_ids + i, out)) {
        for (; filled < BLOCK; filled++)
            out->at[filled] = (uint32_t)i++;
    }
    for (; i < count && filled < BLOCK; i++) {
        uint64_t row_id = (uint64_t)row_ids[i];
        layer->refs[i] = ST_NO_ROW;
        out->at[filled] = (uint32_t)i;
        out->row_ids[filled] = (uint32_t)row_id;
        bad |= row_id + 1 > row_count;
        filled += row_id < row_count && st_owned(core, (uint32_t)row_id);
    }
    *next = i;
    out->count = filled;
    if (layer->directory.set_count)
        st_directory_prefetch(&layer->directory, out->row_ids, filled, out->sets);
    return bad;
}

/* Where the second level has the rows that the first lacks, or will have them. */
static void look_up_host(st_core *core, st_layer *layer, const block *in, const uint32_t *missing, uint32_t count,
                         uint32_t *hosts) {
    uint32_t row_ids[BLOCK], sets[BLOCK], slots[BLOCK];
    for (uint32_t m = 0; m < count; m++)
        row_ids[m] = in->row_ids[missing[m]];
    st_directory_prefetch(&layer->host, row_ids, count, sets);
    st_claims claims = st_directory_claim(&layer->host, row_ids, sets, count, core->step, slots);
    for (uint32_t m = 0; m < count; m++) {
        uint64_t bit = (uint64_t)1 << m;
        if (claims.misses & bit)
            hosts[m] = slots[m];
        else
            hosts[m] = (claims.full | claims.repeats) & bit ? ST_END : slots[m] | ST_HOST_HIT;
    }
}

static void block_settle(st_core *core, st_layer *layer, const block *in, uint32_t published) {
    uint32_t slots[BLOCK] = {0};
    st_claims claims = {.full = ((uint64_t)1 << in->count) - 1};
    if (layer->directory.set_count)
        claims = st_directory_claim(&layer->directory, in->row_ids, in->sets, in->count, core->step, slots);
    for (uint32_t i = 0; i < in->count; i++)
        layer->refs[in->at[i]] = slots[i];
    /* Hits and misses come in no order that could be predicted: what needs no branch is done, then the misses alone. */
    uint32_t missing[BLOCK], count = 0, hosts[BLOCK], repeats = 0;
    for (uint64_t rest = claims.misses | claims.full; rest; rest &= rest - 1)
        missing[count++] = (uint32_t)__builtin_ctzll(rest);
    layer->result.hits += in->count - count;
    for (uint64_t rest = claims.repeats; rest; rest &= rest - 1, repeats++)
        if (core->reads_repeats)
            missing[count++] = (uint32_t)__builtin_ctzll(rest);
    layer->result.hits -= repeats;
    layer->result.owned += in->count;
    layer->result.repeats += repeats;
    if (layer->host_rows)
        look_up_host(core, layer, in, missing, count, hosts);
    for (uint32_t m = 0; m < count; m++) {
        uint32_t i = missing[m], host = layer->host_rows ? hosts[m] : ST_END;
        if (claims.full >> i & 1) {
            layer->refs[in->at[i]] = spill_row(core, layer, in->row_ids[i], host, published);
            continue;
        }
        layer->result.misses += (uint32_t)(claims.misses >> i & 1);
        add_want(core, layer, in->row_ids[i], slots[i], host, published);
    }
}

/* Two blocks in turn: while one is settled, the directory lines of the next are on their way. -ERANGE if an id is
 * beyond the table; the others were looked up all the same. */
static int pass(st_core *core, st_layer *layer, const int64_t *row_ids, uint64_t count) {
    uint64_t start_ns = st_now_ns(), next = 0;
    uint32_t published = 0;
    /* To a remote, all of a layer's misses go in one request. */
    int publish_early = (count < PUBLISH_AT_END_FROM || layer->lines) && !layer->start_lane;
    block blocks[2];
    table_reset(core->page_table, count);
    table_reset(core->row_table, count);
    int bad = block_fill(core, layer, row_ids, count, &next, &blocks[0]);
    for (uint32_t turn = 0; blocks[turn & 1].count || next < count; turn++) {
        bad |= block_fill(core, layer, row_ids, count, &next, &blocks[~turn & 1]);
        block_settle(core, layer, &blocks[turn & 1], published);
        if (publish_early && layer->read_count - published >= (published ? PUBLISH_EVERY : 1)) {
            publish(core, layer, published);
            published = layer->read_count;
        }
        if (core->progress && turn % PROGRESS_BLOCKS == PROGRESS_BLOCKS - 1)
            core->progress(core->progress_context);
    }
    publish(core, layer, published);
    layer->result.pass_ns = st_now_ns() - start_ns;
    return bad ? -ERANGE : 0;
}

static int ids_valid(const st_layer *layer, const int64_t *row_ids, uint64_t count) {
    uint64_t highest = 0; /* of id + 1: padding becomes 0, what lies below it wraps around to the top */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t id = (uint64_t)row_ids[i] + 1;
        highest = id > highest ? id : highest;
    }
    return highest <= layer->layout.row_count;
}

int st_step_in_flight(const st_core *core) {
    for (uint32_t k = 0; k < core->layer_count; k++)
        if (__atomic_load_n(&core->layers[k].done, __ATOMIC_ACQUIRE) != core->layers[k].read_count)
            return 1;
    return 0;
}

/* The first replica whose link is up; the first, where none is. */
static void choose_start(st_layer *layer) {
    uint32_t start = 0;
    while (start < layer->source_count && layer->lanes[start] && st_remote_state(layer->sources[start]) < 0)
        start++;
    layer->start = start < layer->source_count ? start : 0;
    const st_source *source = layer->sources[layer->start];
    __atomic_store_n(&layer->copies, source->kind == ST_SOURCE_MEMORY, __ATOMIC_RELAXED);
    __atomic_store_n(&layer->start_lane, layer->lanes[layer->start], __ATOMIC_RELAXED);
}

static void layer_reset(st_core *core, st_layer *layer, uint64_t lookup_count) {
    choose_start(layer);
    layer->lookup_count = lookup_count;
    layer->want_count = layer->read_count = layer->spill_count = 0;
    layer->release_ns = 0;
    layer->release_known = 0;
    layer->result = (st_layer_result){.lookups = lookup_count};
    layer->evictions_before = layer->directory.evictions;
    /* Atomic: the reader that finished the last step's last read may still be comparing the two. */
    __atomic_store_n(&layer->done, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&layer->wake_at, UINT32_MAX, __ATOMIC_RELAXED);
    layer->retries = 0;
    layer->failed_reads = 0;
    layer->fault_is_final = 0;
    __atomic_store_n(&layer->published, st_position_of(core->step, 0), __ATOMIC_RELEASE);
    __atomic_store_n(&layer->claimed, st_position_of(core->step, 0), __ATOMIC_RELEASE);
}

static uint64_t pages_of(const st_layer *layer) {
    return layer->read_count - layer->result.host_hits;
}

static st_delay_device *delay_of(const st_layer *layer) {
    return layer->sources[layer->start]->delay;
}

/* Ask each emulated device once for all of its layers: layers in order, so the first goes first. */
static int submit_delays(st_core *core) {
    uint64_t pages[ST_LAYERS_MAX], release_ns[ST_LAYERS_MAX];
    uint32_t members[ST_LAYERS_MAX];
    for (uint32_t k = 0; k < core->layer_count; k++) {
        st_delay_device *device = delay_of(&core->layers[k]);
        uint32_t count = 0;
        if (!device || core->layers[k].release_known)
            continue;
        for (uint32_t j = k; j < core->layer_count; j++) {
            st_delay_device *other = delay_of(&core->layers[j]);
            if (!other || core->layers[j].release_known || !st_delay_same(device, other))
                continue;
            core->layers[j].release_known = 1;
            members[count] = j;
            pages[count++] = pages_of(&core->layers[j]);
        }
        uint64_t now_ns = core->first_ns ? core->first_ns : st_now_ns();
        int rc = st_delay_submit(device, now_ns, pages, count, release_ns);
        if (rc < 0)
            return rc;
        for (uint32_t i = 0; i < count; i++)
            core->layers[members[i]].release_ns = pages[i] ? release_ns[i] : 0;
    }
    return 0;
}

/* Are reads of a step that timed out still out? */
static int draining(st_core *core) {
    if (core->draining)
        st_own_reads_reap(core, 0);
    return core->draining && st_step_in_flight(core);
}

int st_step_open(st_core *core) {
    if (core->in_step || draining(core))
        return -EBUSY;
    core->draining = 0;
    if (++core->step == 0)
        core->step = 1;
    core->begin_ns = st_now_ns();
    core->first_ns = 0;
    core->in_step = 1;
    for (uint32_t k = 0; k < core->layer_count; k++)
        layer_reset(core, &core->layers[k], 0);
    return 0;
}

int st_step_pass(st_core *core, uint32_t index, const int64_t *row_ids, uint64_t count) {
    st_layer *layer = &core->layers[index];
    if (count > core->lookups_max)
        return -E2BIG;
    layer->lookup_count = layer->result.lookups = count;
    return pass(core, layer, row_ids, count);
}

int st_step_submit(st_core *core) {
    return submit_delays(core);
}

int st_step_submit_early(st_core *core, uint32_t index) {
    st_layer *layer = &core->layers[index];
    st_delay_device *device = delay_of(layer);
    int rc = 1;
    if (device && pages_of(layer))
        rc = st_delay_submit_early(device, core->first_ns, pages_of(layer), &layer->release_ns);
    layer->release_known = rc == 1;
    return rc < 0 ? rc : 0;
}

int st_step_begin(st_core *core, const int64_t *const *row_ids, const uint64_t *counts) {
    if (core->in_step || draining(core))
        return -EBUSY;
    for (uint32_t k = 0; k < core->layer_count; k++)
        if (counts[k] > core->lookups_max)
            return -E2BIG;
    for (uint32_t k = 0; k < core->layer_count; k++)
        if (!ids_valid(&core->layers[k], row_ids[k], counts[k]))
            return -ERANGE;
    int rc = st_step_open(core);
    for (uint32_t k = 0; rc == 0 && k < core->layer_count; k++)
        rc = st_step_pass(core, k, row_ids[k], counts[k]);
    if (rc == 0)
        rc = submit_delays(core);
    if (rc < 0)
        st_step_end(core);
    return rc;
}

/* ---- wait, gather, end ---- */

void st_sleep_until(uint64_t until_ns) {
    uint64_t now_ns = st_now_ns();
    if (until_ns > now_ns + spin_before_ns) {
        uint64_t sleep_ns = until_ns - spin_before_ns;
        struct timespec at = {(time_t)(sleep_ns / 1000000000u), (long)(sleep_ns % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
            ;
    }
    while (st_now_ns() < until_ns)
        __builtin_ia32_pause();
}

static int wait_done(st_core *core, st_layer *layer, uint64_t deadline_ns) {
    uint32_t total = layer->read_count;
    __atomic_store_n(&layer->wake_at, total, __ATOMIC_SEQ_CST);
    for (;;) {
        uint32_t done = __atomic_load_n(&layer->done, __ATOMIC_SEQ_CST);
        if (done == total)
            return 0;
        uint64_t now_ns = st_now_ns();
        if (now_ns >= deadline_ns)
            return -ETIMEDOUT;
        if (layer == core->layers && st_own_reads_reap(core, deadline_ns - now_ns))
            continue;
        st_futex_wait(&layer->done, done, deadline_ns - now_ns);
    }
}

int st_step_arrived(const st_layer *layer, uint64_t now_ns) {
    return __atomic_load_n(&layer->done, __ATOMIC_ACQUIRE) == layer->read_count && now_ns >= layer->release_ns;
}

void st_step_count_timeout(st_layer *layer) {
    layer->stats.timeouts++;
}

int st_layer_error(const st_layer *layer) {
    if (__atomic_load_n(&layer->failed_reads, __ATOMIC_ACQUIRE) == 0)
        return 0;
    return layer->fault.error == -ETIMEDOUT ? -EIO : layer->fault.error;
}

int st_step_wait(st_core *core, uint32_t index, uint64_t timeout_ns, st_layer_result *result) {
    if (index >= core->layer_count || !core->in_step)
        return -EINVAL;
    st_layer *layer = &core->layers[index];
    uint64_t start_ns = st_now_ns();
    uint64_t deadline_ns = start_ns + timeout_ns;
    int rc = wait_done(core, layer, deadline_ns);
    if (rc == 0 && layer->release_ns > deadline_ns)
        rc = -ETIMEDOUT;
    if (rc == 0 && layer->release_ns)
        st_sleep_until(layer->release_ns);
    if (rc == 0)
        rc = st_layer_error(layer);
    if (rc == -ETIMEDOUT)
        layer->stats.timeouts++;
    st_layer_result *mine = &layer->result;
    mine->wait_ns = st_now_ns() - start_ns;
    mine->pages = pages_of(layer);
    mine->spills = layer->directory.set_count ? layer->spill_count : 0;
    mine->retries = __atomic_load_n(&layer->retries, __ATOMIC_RELAXED);
    if (layer->read_count && rc == 0) {
        uint64_t arrived_ns = __atomic_load_n(&layer->last_done_ns, __ATOMIC_RELAXED);
        if (layer->release_ns > arrived_ns)
            arrived_ns = layer->release_ns;
        mine->resolve_ns = core->first_ns - core->begin_ns;
        mine->read_ns = arrived_ns - core->first_ns;
        mine->arrived_ns = arrived_ns - core->begin_ns;
    }
    *result = *mine;
    return rc;
}

int st_step_gather(st_core *core, uint32_t index, uint8_t *out, uint64_t stride) {
    if (index >= core->layer_count || !core->in_step)
        return -EINVAL;
    st_layer *layer = &core->layers[index];
    uint64_t row_bytes = st_row_bytes(&layer->layout);
    if (stride < row_bytes || layer->lines)
        return -EINVAL;
    /* Only after everything arrived and was checked: a caller that skipped the wait gets an error, not old bytes. */
    if (__atomic_load_n(&layer->done, __ATOMIC_ACQUIRE) != layer->read_count || layer->failed_reads)
        return -EAGAIN;
    for (uint64_t i = 0; i < layer->lookup_count; i++, out += stride) {
        if (i + PREFETCH_AHEAD < layer->lookup_count && layer->refs[i + PREFETCH_AHEAD] != ST_NO_ROW)
            __builtin_prefetch(st_dest(layer, layer->refs[i + PREFETCH_AHEAD]));
        if (layer->refs[i] == ST_NO_ROW)
            memset(out, 0, row_bytes);
        else
            memcpy(out, st_dest(layer, layer->refs[i]), row_bytes);
    }
    return 0;
}

/* Rows whose bytes did not arrive leave the directory, so that no later step takes the slot for a hit. */
static void forget_missing(st_layer *layer, int whole_step) {
    for (uint32_t i = 0; i < layer->read_count; i++) {
        if (!whole_step && !layer->reads[i].failed)
            continue;
        for (uint32_t w = layer->reads[i].first_want; w != ST_END; w = layer->wants[w].next) {
            const st_want *want = &layer->wants[w];
            if (!(want->dest & ST_SPILL_BIT))
                st_directory_forget(&layer->directory, want->dest);
            if (!(__atomic_load_n(&want->host, __ATOMIC_RELAXED) & ST_HOST_HIT))
                st_directory_forget(&layer->host, want->host);
        }
    }
}

void st_step_forget(st_core *core, uint32_t index) {
    forget_missing(&core->layers[index], 1);
}

/* Reads of a step that timed out may still be in flight: what readers count is loaded, not read. */
static void count_step(st_layer *layer) {
    st_layer_stats *stats = &layer->stats;
    uint32_t failed_reads = __atomic_load_n(&layer->failed_reads, __ATOMIC_RELAXED);
    stats->steps++;
    stats->lookups += layer->result.lookups;
    stats->owned += layer->result.owned;
    stats->hits += layer->result.hits;
    stats->repeats += layer->result.repeats;
    stats->misses += layer->result.misses;
    stats->pages += pages_of(layer);
    stats->spills += layer->directory.set_count ? layer->spill_count : 0;
    stats->evictions += layer->directory.evictions - layer->evictions_before;
    stats->retries += __atomic_load_n(&layer->retries, __ATOMIC_RELAXED);
    stats->failed_reads += failed_reads;
    stats->failed_steps += failed_reads > 0;
}

int st_step_end(st_core *core) {
    if (!core->in_step)
        return -EINVAL;
    core->draining = st_step_in_flight(core);
    for (uint32_t k = 0; k < core->layer_count; k++) {
        st_layer *layer = &core->layers[k];
        if (core->draining || __atomic_load_n(&layer->failed_reads, __ATOMIC_RELAXED))
            forget_missing(layer, core->draining);
        count_step(layer);
    }
    core->in_step = 0;
    return 0;
}

/* ---- between steps ---- */

int st_core_busy(st_core *core) {
    return core->in_step || draining(core);
}

int st_core_set_cache_rows(st_core *core, uint32_t index, uint64_t cache_rows) {
    if (index >= core->layer_count)
        return -EINVAL;
    if (st_core_busy(core))
        return -EBUSY;
    st_layer *layer = &core->layers[index];
    if (cache_rows == layer->cache_rows)
        return 0;
    st_directory directory;
    uint8_t *cache;
    uint64_t map_bytes, row_bytes = st_row_bytes(&layer->layout);
    int rc = cache_open(layer, cache_rows, &directory, &cache, &map_bytes);
    if (rc < 0)
        return rc;
    /* Under a step of its own, so that a full set refuses further rows instead of evicting those just moved. */
    if (++core->step == 0)
        core->step = 1;
    uint64_t slot_count = (uint64_t)layer->directory.set_count * ST_WAYS;
    /* With pool lines the rows are in the caller's memory, where they cannot be moved from here: start empty. */
    for (uint64_t slot = 0; !layer->lines && directory.set_count && slot < slot_count; slot++) {
        int64_t row_id = st_directory_row(&layer->directory, (uint32_t)slot);
        if (row_id < 0)
            continue;
        uint32_t target;
        if (st_directory_claim_row(&directory, (uint32_t)row_id, core->step, &target) == ST_MISS)
            memcpy(cache + target * row_bytes, layer->cache + slot * row_bytes, row_bytes);
    }
    directory.evictions = layer->directory.evictions;
    st_directory_close(&layer->directory);
    if (layer->cache)
        munmap(layer->cache, layer->cache_map_bytes);
    layer->directory = directory;
    layer->cache = cache;
    layer->cache_map_bytes = map_bytes;
    layer->cache_rows = cache_rows;
    return 0;
}

/* Rows of the old second level into the new one, as far as they fit. */
static void host_move(st_core *core, const st_layer *from, st_layer *to) {
    uint64_t slot_count = (uint64_t)from->host.set_count * ST_WAYS;
    if (++core->step == 0)
        core->step = 1;
    for (uint64_t slot = 0; slot < slot_count; slot++) {
        int64_t row_id = st_directory_row(&from->host, (uint32_t)slot);
        if (row_id < 0)
            continue;
        uint32_t target;
        if (st_directory_claim_row(&to->host, (uint32_t)row_id, core->step, &target) == ST_MISS)
            memcpy(st_host_record(to, target), st_host_record(from, (uint32_t)slot),
                   ST_HOST_SEED_BYTES + from->layout.record_bytes);
    }
}

int st_core_set_host_rows(st_core *core, uint32_t index, uint64_t host_rows) {
    if (index >= core->layer_count)
        return -EINVAL;
    if (st_core_busy(core))
        return -EBUSY;
    st_layer *layer = &core->layers[index];
    st_layer fresh = {.layout = layer->layout, .host_rows = host_rows};
    int rc = st_directory_open(&fresh.host, host_rows, ST_CACHE_CLOCK);
    fresh.host_map_bytes = (uint64_t)fresh.host.set_count * ST_WAYS * (ST_HOST_SEED_BYTES + layer->layout.record_bytes);
    if (rc == 0 && fresh.host_map_bytes && !(fresh.host_records = map_lazily(fresh.host_map_bytes))) {
        st_directory_close(&fresh.host);
        rc = -ENOMEM;
    }
    if (rc < 0)
        return rc;
    if (fresh.host_records) {
        madvise(fresh.host_records, fresh.host_map_bytes, MADV_HUGEPAGE);
        host_move(core, layer, &fresh);
    }
    host_close(layer);
    layer->host = fresh.host;
    layer->host_records = fresh.host_records;
    layer->host_rows = host_rows;
    layer->host_map_bytes = fresh.host_map_bytes;
    return 0;
}

int st_core_attach_lines(st_core *core, uint32_t index, uint8_t *lines, uint32_t line_bytes, uint32_t *refs) {
    if (index >= core->layer_count || !lines || !refs)
        return -EINVAL;
    st_layer *layer = &core->layers[index];
    if (line_bytes < layer->layout.record_bytes || layer->lines)
        return -EINVAL;
    if (st_core_busy(core))
        return -EBUSY;
    munmap(layer->refs, core->lookups_max * sizeof *layer->refs);
    layer->refs = refs;
    layer->external_refs = 1;
    layer->lines = lines;
    layer->line_bytes = line_bytes;
    return st_core_drop_cache(core, index);
}

int st_core_set_dedup(st_core *core, int dedup) {
    if (st_core_busy(core))
        return -EBUSY;
    core->reads_repeats = !dedup;
    return 0;
}

int st_core_drop_cache(st_core *core, uint32_t index) {
    if (index >= core->layer_count)
        return -EINVAL;
    uint64_t cache_rows = core->layers[index].cache_rows, host_rows = core->layers[index].host_rows;
    int rc = st_core_set_cache_rows(core, index, 0);
    if (rc == 0)
        rc = st_core_set_host_rows(core, index, 0);
    if (rc == 0)
        rc = st_core_set_cache_rows(core, index, cache_rows);
    return rc < 0 ? rc : st_core_set_host_rows(core, index, host_rows);
}

static void put_sources(st_layer *layer, st_source *const *sources, uint32_t count) {
    memcpy(layer->sources, sources, count * sizeof *sources);
    layer->source_count = count;
    layer->layout = sources[0]->layout;
}

int st_core_set_sources(st_core *core, uint32_t index, st_source *const *sources, uint32_t source_count,
                        int keep_cache) {
    if (index >= core->layer_count || !sources_valid(sources, source_count))
        return -EINVAL;
    if (st_core_busy(core))
        return -EBUSY;
    st_layer *layer = &core->layers[index];
    if (!st_same_geometry(&sources[0]->layout, &layer->layout))
        return -EINVAL;
    st_source *before[ST_REPLICAS_MAX];
    uint32_t before_count = layer->source_count;
    memcpy(before, layer->sources, sizeof before);
    for (uint32_t i = 0; i < source_count; i++)
        st_source_retain(sources[i]);
    put_sources(layer, sources, source_count);
    int rc = st_lanes_update(core);
    if (rc < 0) {
        put_sources(layer, before, before_count);
        st_lanes_update(core); /* has nothing to open */
    }
    for (uint32_t i = 0; i < (rc < 0 ? source_count : before_count); i++)
        st_source_close(rc < 0 ? sources[i] : before[i]);
    if (rc == 0)
        rc = list_files(core);
    return rc == 0 && !keep_cache ? st_core_drop_cache(core, index) : rc;
}

int st_core_fault(const st_core *core, uint32_t index, st_fault_report *report) {
    if (index >= core->layer_count)
        return -EINVAL;
    st_layer *layer = &core->layers[index];
    pthread_mutex_lock(&layer->fault_lock);
    *report = layer->fault;
    pthread_mutex_unlock(&layer->fault_lock);
    return 0;
}

int st_core_stats(const st_core *core, uint32_t index, st_layer_stats *stats) {
    if (index >= core->layer_count)
        return -EINVAL;
    const st_layer *layer = &core->layers[index];
    *stats = layer->stats;
    stats->bad_records = __atomic_load_n(&layer->bad_records, __ATOMIC_RELAXED);
    stats->read_errors = __atomic_load_n(&layer->read_errors, __ATOMIC_RELAXED);
    for (uint32_t r = 0; r < ST_REPLICAS_MAX; r++)
        stats->replica_rows[r] = __atomic_load_n(&layer->replica_rows[r], __ATOMIC_RELAXED);
    stats->cache_rows = layer->cache_rows;
    stats->cache_bytes = layer->cache_map_bytes;
    stats->directory_bytes = st_directory_bytes(&layer->directory);
    stats->host_hits = __atomic_load_n(&layer->host_hits, __ATOMIC_RELAXED);
    stats->host_rows = layer->host_rows;
    stats->host_bytes = layer->host_map_bytes + st_directory_bytes(&layer->host);
    return 0;
}
