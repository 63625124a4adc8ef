/* SPDX-License-Identifier: Apache-2.0 */
/* Eras: a core with drawn settings over drawn devices, and steps on it. Every row that a step hands out is compared with
 * what its id says, and between steps every row that the cache says it has. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "sim.h"
#include "st_remote.h"

enum { LOOKUPS_MAX = 20000, STEPS_PER_ERA = 60, REMOTE_TIMEOUT_MS = 30 };
static const uint64_t ms_ns = 1000000;

sim_totals sim_total;

/* What an era's devices do. */
typedef enum weather { CALM, ONE_SOUND_REPLICA, FLAKY, LATE_READS, STORM, WEATHERS } weather;

typedef struct era {
    st_core *core;
    weather weather;
    uint64_t number, step;
    uint32_t layer_count, rank, tp;
    uint32_t source_count[SIM_LAYERS];
    int has_sound[SIM_LAYERS];
    st_source *sources[SIM_LAYERS][SIM_REPLICAS];
} era;

static int64_t ids[SIM_LAYERS][LOOKUPS_MAX], expected[LOOKUPS_MAX];
static uint8_t rows[(size_t)LOOKUPS_MAX * SIM_ROW_BYTES];

/* ---- settings ---- */

static void draw_devices(const era *now, uint32_t layer) {
    static const sim_fault wrong[] = {SIM_ERRNO,       SIM_SHORT,       SIM_ZERO_BYTES, SIM_STALE, SIM_OTHER_LAYER,
                                      SIM_OTHER_TABLE, SIM_OLDER_EPOCH, SIM_GARBAGE,    SIM_ZEROS, SIM_MISDIRECTED};
    uint32_t sound = (uint32_t)sim_below(now->source_count[layer]);
    for (uint32_t replica = 0; replica < SIM_REPLICAS; replica++) {
        sim_device *device = sim_device_of(layer, replica);
        device->faults_per_1000 = device->late_per_1000 = 0;
        device->always = SIM_SOUND;
        device->dead_until_ns = 0;
        if (now->weather == CALM || (now->weather == ONE_SOUND_REPLICA && replica == sound))
            continue;
        device->faults_per_1000 = now->weather == FLAKY ? 40 : 20 + (uint32_t)sim_below(400);
        if (now->weather == LATE_READS || now->weather == STORM)
            device->late_per_1000 = 1;
        if (now->weather != FLAKY && now->weather != LATE_READS && sim_chance(3))
            device->always = wrong[sim_below(sizeof wrong / sizeof *wrong)];
    }
}

/* A replica as files on striped devices, behind a link, as a callback, or as memory, which may have rotted. */
static st_source *open_source(era *now, uint32_t layer, uint32_t replica) {
    sim_device *device = sim_device_of(layer, replica);
    st_source *source = NULL;
    int rc, is_sound = sim_device_sound(device);
    uint64_t kind = sim_below(8);
    if (kind == 0) {
        rc = st_source_open_callback(sim_read_callback, device, &device->layout, &source);
    } else if (kind == 1) {
        rc = st_source_open_borrowed(is_sound ? sim_pages(layer, replica) : sim_rotten_pages(layer, replica),
                                     &device->layout, &source);
    } else if (kind <= 3) {
        rc = sim_open_remote(layer, replica, REMOTE_TIMEOUT_MS * ms_ns, &source);
    } else {
        rc = sim_open_device(layer, replica, 1 + (uint32_t)sim_below(5), &source);
    }
    if (rc < 0)
        sim_fail("source of layer %u: %d", layer, rc);
    now->has_sound[layer] |= is_sound;
    return source;
}

static void draw_sources(era *now, uint32_t layer) {
    now->source_count[layer] = now->weather == CALM ? 1 : 1 + (uint32_t)sim_below(SIM_REPLICAS);
    draw_devices(now, layer);
    now->has_sound[layer] = 0;
    for (uint32_t replica = 0; replica < now->source_count[layer]; replica++)
        now->sources[layer][replica] = open_source(now, layer, replica);
}

static void close_sources(era *now, uint32_t layer) {
    for (uint32_t replica = 0; replica < now->source_count[layer]; replica++)
        st_source_close(now->sources[layer][replica]);
}

static uint64_t draw_cache_rows(void) {
    static const uint64_t sizes[] = {0, 16, 100, 1000, 4000, 9000};
    return sizes[sim_below(sizeof sizes / sizeof *sizes)];
}

static void draw_own_reads(era *now) {
    int on = sim_chance(2), reason;
    int in_force = on && st_core_backend(now->core, &reason) == ST_BACKEND_URING;
    if (st_core_set_own_reads(now->core, on) != in_force)
        sim_fail("own reads: not as asked for");
}

static void era_open(era *now) {
    static const uint32_t depths[] = {1, 3, 32, 256};
    int posix = sim_chance(3), refused = posix && sim_chance(2);
    now->weather = (weather)sim_below(WEATHERS);
    now->layer_count = 1 + (uint32_t)sim_below(SIM_LAYERS);
    now->tp = 1 + (uint32_t)sim_below(4);
    now->rank = (uint32_t)sim_below(now->tp);
    st_core_config config = {.layer_count = now->layer_count,
                             .rank = now->rank,
                             .tp = now->tp,
                             .io_threads = 1 + (uint32_t)sim_below(posix ? 6 : 4),
                             .queue_depth = depths[sim_below(4)],
                             .backend = refused || !posix ? ST_BACKEND_AUTO : ST_BACKEND_POSIX,
                             .spin_us = sim_chance(4) ? 5 : 0,
                             .lookups_max = LOOKUPS_MAX};
    st_layer_config layers[SIM_LAYERS];
    for (uint32_t k = 0; k < now->layer_count; k++) {
        draw_sources(now, k);
        layers[k] = (st_layer_config){.cache_rows = draw_cache_rows(),
                                      .cache_policy = (uint32_t)sim_chance(2),
                                      .source_count = now->source_count[k]};
        memcpy(layers[k].sources, now->sources[k], now->source_count[k] * sizeof *now->sources[k]);
    }
#ifdef ST_HAVE_URING
    sim_refuse_rings(refused ? EPERM : 0);
#endif
    int rc = st_core_open(&config, layers, &now->core);
    if (rc < 0)
        sim_fail("st_core_open: %d", rc);
    for (uint32_t k = 0; k < now->layer_count; k++)
        if (sim_chance(2) && st_core_set_host_rows(now->core, k, 1 + sim_below(6000)) < 0)
            sim_fail("st_core_set_host_rows");
    int reason;
    if (refused && st_core_backend(now->core, &reason) != ST_BACKEND_POSIX)
        sim_fail("rings were refused and the back end is not preadv");
    draw_own_reads(now);
}

/* ---- what must hold ---- */

static const char *where(const era *now) {
    static char text[64];
    snprintf(text, sizeof text, "era %lu step %lu", (unsigned long)now->number, (unsigned long)now->step);
    return text;
}

static void compare_rows(const era *now, uint32_t layer, uint64_t count) {
    uint64_t first_bad = 0;
    for (uint64_t i = 0; i < count; i++)
        expected[i] = ids[layer][i] >= 0 && ids[layer][i] % now->tp == now->rank ? ids[layer][i] : -1;
    memset(rows, 0xEE, count * SIM_ROW_BYTES);
    int rc = st_step_gather(now->core, layer, rows, SIM_ROW_BYTES);
    if (rc < 0)
        sim_fail("%s: gather of layer %u after a wait that succeeded: %d", where(now), layer, rc);
    sim_total.rows_compared += count;
    sim_total.wrong_rows += st_pattern_check(sim_row_seed(layer), expected, count, SIM_PAYLOAD, SIM_SCALES, rows,
                                             SIM_ROW_BYTES, &first_bad);
    if (sim_total.wrong_rows)
        sim_fail("%s: wrong row: layer %u lookup %lu row %ld", where(now), layer, (unsigned long)first_bad,
                 (long)ids[layer][first_bad]);
}

/* No directory entry may stand for bytes that are not the row's. */
static void compare_cache(const era *now) {
    for (uint32_t k = 0; k < now->layer_count; k++) {
        const st_layer *layer = &now->core->layers[k];
        for (uint64_t slot = 0; slot < (uint64_t)layer->directory.set_count * ST_WAYS; slot++) {
            int64_t row_id = st_directory_row(&layer->directory, (uint32_t)slot);
            uint64_t first_bad;
            if (row_id < 0)
                continue;
            sim_total.slots_compared++;
            if (st_pattern_check(sim_row_seed(k), &row_id, 1, SIM_PAYLOAD, SIM_SCALES,
                                 layer->cache + slot * SIM_ROW_BYTES, SIM_ROW_BYTES, &first_bad)) {
                sim_total.wrong_rows++;
                sim_fail("%s: wrong row: layer %u cache slot %lu row %ld", where(now), k, (unsigned long)slot,
                         (long)row_id);
            }
        }
    }
}

static void check_counts(const era *now, uint32_t layer, uint64_t count, const st_layer_result *result) {
    if (result->lookups != count || result->hits + result->repeats + result->misses != result->owned ||
        result->pages > result->misses || result->spills > result->misses)
        sim_fail("%s: layer %u: %lu lookups, owned %lu = hits %lu + repeats %lu + misses %lu, pages %lu, spills %lu",
                 where(now), layer, result->lookups, result->owned, result->hits, result->repeats, result->misses,
                 result->pages, result->spills);
}

static int late_possible(const era *now) {
    return now->weather == LATE_READS || now->weather == STORM;
}

/* A wait that failed must have had a reason to. */
static void check_failure(const era *now, uint32_t layer, int rc) {
    int died = sim_device_of(layer, 0)->dead_until_ns || sim_device_of(layer, 1)->dead_until_ns ||
               sim_device_of(layer, 2)->dead_until_ns;
    if (rc == -ETIMEDOUT && !late_possible(now))
        sim_fail("%s: layer %u timed out with all devices in time", where(now), layer);
    if (rc != -ETIMEDOUT && now->has_sound[layer] && !died)
        sim_fail("%s: layer %u failed with %d although a replica is sound", where(now), layer, rc);
    st_fault_report report;
    /* -ETIMEDOUT is the step's own deadline: a peer's silence is -EIO, and by its name in the report. */
    if (rc != -ETIMEDOUT &&
        (st_core_fault(now->core, layer, &report) < 0 || (report.error == -ETIMEDOUT ? -EIO : report.error) != rc))
        sim_fail("%s: layer %u failed with %d, the report says %d", where(now), layer, rc, report.error);
    if (st_step_gather(now->core, layer, rows, SIM_ROW_BYTES) != -EAGAIN)
        sim_fail("%s: layer %u gave rows out after a wait that failed with %d", where(now), layer, rc);
}

/* ---- steps ---- */

static uint64_t draw_count(void) {
    uint64_t drawn = sim_below(200);
    if (drawn == 0)
        return 16384 + sim_below(LOOKUPS_MAX - 16384); /* a prefill chunk: reads handed over at the end */
    return drawn < 20 ? sim_below(3000) : sim_below(400);
}

static void draw_ids(uint32_t layer, uint64_t count) {
    uint64_t hot = 50 + sim_below(SIM_ROWS / 4);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t drawn = sim_random();
        ids[layer][i] = drawn % 41 == 0 ? -1 : (int64_t)((drawn >> 8) % (drawn % 3 ? hot : SIM_ROWS));
    }
}

/* Begin; while reads of an earlier step are out, nothing may begin or change, and they do come back. */
static void begin(era *now, const uint64_t *counts) {
    const int64_t *pointers[SIM_LAYERS] = {ids[0], ids[1], ids[2]};
    uint32_t tries = 0;
    int rc;
    while ((rc = st_step_begin(now->core, pointers, counts)) == -EBUSY) {
        sim_total.refused_steps++;
        if (!st_step_in_flight(now->core))
            sim_fail("%s: refused although nothing is in flight", where(now));
        if (sim_chance(4) && (st_core_set_cache_rows(now->core, 0, 5000) != -EBUSY ||
                              st_core_set_sources(now->core, 0, now->sources[0], 1, 1) != -EBUSY))
            sim_fail("%s: a change was taken while reads are in flight", where(now));
        if (++tries > 1000)
            sim_fail("%s: reads of a step that timed out never came back", where(now));
        sim_sleep(ms_ns + sim_below(200 * ms_ns));
    }
    if (rc < 0)
        sim_fail("%s: st_step_begin: %d", where(now), rc);
}

static void finish_layer(era *now, uint32_t layer, uint64_t count, int *failed, int *timed_out) {
    /* Where no read can be late, a deadline that even the longest queue of a single reader meets. */
    uint64_t timeout_ns = late_possible(now) ? 20 * ms_ns + sim_below(80 * ms_ns) : 60000 * ms_ns;
    st_layer_result result;
    int rc = st_step_wait(now->core, layer, timeout_ns, &result);
    sim_note((uint64_t)(uint32_t)rc << 32 ^ result.hits << 16 ^ result.misses);
    check_counts(now, layer, count, &result);
    if (rc == 0) {
        compare_rows(now, layer, count);
        return;
    }
    check_failure(now, layer, rc);
    *failed = 1;
    *timed_out |= rc == -ETIMEDOUT;
}

static void step(era *now) {
    uint64_t counts[SIM_LAYERS] = {0};
    int failed = 0, timed_out = 0;
    for (uint32_t k = 0; k < now->layer_count; k++) {
        counts[k] = draw_count();
        draw_ids(k, counts[k]);
        sim_total.lookups += counts[k];
    }
    begin(now, counts);
    if (sim_chance(2))
        sim_interleave((uint32_t)sim_below(60));
    for (uint32_t k = 0; k < now->layer_count; k++)
        if (!sim_chance(50)) /* a caller may leave a layer out */
            finish_layer(now, k, counts[k], &failed, &timed_out);
    if (st_step_end(now->core) < 0)
        sim_fail("%s: st_step_end", where(now));
    sim_total.steps++;
    sim_total.failed_steps += (uint64_t)failed;
    sim_total.timed_out_steps += (uint64_t)timed_out;
    if (!st_step_in_flight(now->core) && sim_chance(8))
        compare_cache(now);
}

/* ---- between steps ---- */

static void switch_sources(era *now, uint32_t layer) {
    close_sources(now, layer);
    draw_sources(now, layer);
    int rc = st_core_set_sources(now->core, layer, now->sources[layer], now->source_count[layer], sim_chance(2));
    if (rc < 0)
        sim_fail("%s: st_core_set_sources: %d", where(now), rc);
    sim_total.switches++;
}

/* What the keeper of connections does, some time after a link went down. */
static void mend_links(era *now) {
    for (uint32_t k = 0; k < now->layer_count; k++)
        for (uint32_t replica = 0; replica < now->source_count[k]; replica++) {
            st_source *source = now->sources[k][replica];
            if (source->kind == ST_SOURCE_REMOTE && st_remote_state(source) && sim_chance(3)) {
                if (st_remote_wait_down(source, 0) != 1)
                    sim_fail("%s: a link that is down is said to be up", where(now));
                st_remote_set_up(source);
                sim_total.links_mended++;
            }
        }
}

static void kill_device(uint32_t layer) {
    sim_device *device = sim_device_of(layer, (uint32_t)sim_below(SIM_REPLICAS));
    device->dead_until_ns = sim_now() + sim_below(400 * ms_ns);
}

static void change_something(era *now) {
    uint32_t layer = (uint32_t)sim_below(now->layer_count);
    mend_links(now);
    if (st_step_in_flight(now->core))
        return;
    switch (sim_below(12)) {
    case 0:
        if (st_core_set_cache_rows(now->core, layer, draw_cache_rows()) < 0)
            sim_fail("%s: st_core_set_cache_rows", where(now));
        sim_total.resizes++;
        break;
    case 1: switch_sources(now, layer); break;
    case 5:
        if (st_core_set_host_rows(now->core, layer, sim_chance(2) ? 0 : sim_below(9000)) < 0)
            sim_fail("%s: st_core_set_host_rows", where(now));
        break;
    case 2:
        if (st_core_drop_cache(now->core, layer) < 0)
            sim_fail("%s: st_core_drop_cache", where(now));
        break;
    case 3:
        if (now->weather != CALM && now->weather != FLAKY)
            kill_device(layer);
        break;
    case 4: sim_sleep(sim_below(100 * ms_ns)); break;
    case 6: draw_own_reads(now); break;
    }
}

static void add_totals(const era *now) {
    for (uint32_t k = 0; k < now->layer_count; k++) {
        st_layer_stats stats;
        st_core_stats(now->core, k, &stats);
        sim_total.retries += stats.retries;
        sim_total.bad_records += stats.bad_records;
        sim_total.evictions += stats.evictions;
        sim_total.spills += stats.spills;
    }
}

void sim_era(uint64_t seed, uint64_t number) {
    sim_seed(seed ^ number * 0xD1342543DE82EF95ull);
    era now = {.number = number};
    era_open(&now);
    for (now.step = 0; now.step < STEPS_PER_ERA; now.step++) {
        step(&now);
        change_something(&now);
    }
    add_totals(&now);
    st_core_close(now.core);
    for (uint32_t k = 0; k < now.layer_count; k++)
        close_sources(&now, k);
    sim_rewind();
    sim_total.eras++;
}
