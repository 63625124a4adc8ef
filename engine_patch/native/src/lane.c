/* SPDX-License-Identifier: Apache-2.0 */
/* A lane claims the reads of layers that start at its source, and takes those that other replicas did not deliver; it
 * asks for their rows in one request, and passes on what does not come. */
#include "lane.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "jobs.h"
#include "remote.h"

/* What became of one row of the batch that is being fetched. */
enum { NOT_HERE = 0, ARRIVED = 1, BAD = 2 /* + st_fault */ };

struct st_lane {
    st_core *core;
    st_source *source;
    pthread_t thread;
    int started;
    int wanted; /* by some layer; st_lanes_update's */
    st_inbox inbox;
    uint32_t work; /* futex: changes when there is something to do */
    uint32_t sleepers, stop;

    /* the thread's own; rows_max entries each */
    uint32_t rows_max;
    st_job *jobs;      /* claimed or taken, of one layer */
    uint32_t *row_ids; /* of the batch */
    uint32_t *wants;
    uint8_t *outcomes;
    uint32_t row_count;
    st_layer *layer;
};

st_inbox *st_lane_inbox(st_lane *lane) {
    return &lane->inbox;
}

void st_lane_notify(st_lane *lane) {
    __atomic_add_fetch(&lane->work, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&lane->sleepers, __ATOMIC_SEQ_CST))
        st_futex_wake(&lane->work, 1);
}

/* ---- one batch ---- */

static void arrived(void *sink, uint32_t index, const uint8_t *record) {
    st_lane *lane = sink;
    if (index >= lane->row_count)
        return;
    st_fault fault = st_deliver_row(lane->layer, &lane->source->layout, lane->wants[index], record);
    lane->outcomes[index] = fault == ST_FAULT_NONE ? ARRIVED : (uint8_t)(BAD + fault);
}

/* As many of the jobs' rows as fit into one fetch; returns the number of jobs. */
static uint32_t fill_batch(st_lane *lane, const st_job *jobs, uint32_t job_count) {
    const st_layer *layer = lane->layer;
    uint32_t job, rows = 0;
    for (job = 0; job < job_count; job++) {
        uint32_t before = rows;
        uint32_t want = layer->reads[jobs[job].read].first_want;
        for (; want != ST_END && rows < lane->rows_max; want = layer->wants[want].next, rows++) {
            lane->wants[rows] = want;
            lane->row_ids[rows] = layer->wants[want].row_id;
        }
        if (want != ST_END) { /* a page's rows stay together */
            rows = before;
            break;
        }
    }
    memset(lane->outcomes, NOT_HERE, rows);
    lane->row_count = rows;
    return job;
}

static void settle_failed(st_lane *lane, st_job *job, int rc, uint32_t row) {
    uint8_t outcome = lane->outcomes[row];
    int error = outcome > BAD ? -EBADMSG : rc < 0 ? rc : -EIO;
    st_fault_report why = st_read_fault(lane->layer, job, error, error);
    why.fault = outcome > BAD ? outcome - BAD : ST_FAULT_NONE;
    why.row_id = lane->row_ids[row];
    if (st_job_retry(lane->layer, job, &why))
        st_job_dispatch(lane->core, job);
}

/* Each job whose rows all came is over; the others go on to their next attempt. */
static void settle(st_lane *lane, st_job *jobs, uint32_t job_count, int rc) {
    uint32_t row = 0, done = 0, done_rows = 0, replica = jobs[0].replica;
    for (uint32_t j = 0; j < job_count; j++) {
        uint32_t first = row, bad = UINT32_MAX;
        uint32_t want = lane->layer->reads[jobs[j].read].first_want;
        for (; want != ST_END; want = lane->layer->wants[want].next, row++)
            if (lane->outcomes[row] != ARRIVED)
                bad = row;
        if (bad == UINT32_MAX) {
            done++;
            done_rows += row - first;
        } else {
            settle_failed(lane, &jobs[j], rc, bad);
        }
    }
    if (done)
        st_complete(lane->layer, replica, done, done_rows);
}

/* 0, or why the rows need not be asked for. */
static int await_link(st_lane *lane, const st_job *jobs, uint32_t count) {
    int waits = 0;
    for (uint32_t j = 0; j < count; j++)
        waits |= jobs[j].last_chance;
    return waits ? st_link_await_up(lane->source->link) : 0;
}

/* Drops the jobs that the second level answers; returns how many are left. */
static uint32_t answer_from_host(st_lane *lane, st_job *jobs, uint32_t count) {
    uint32_t left = 0;
    for (uint32_t j = 0; j < count; j++) {
        if (!st_is_on_host(lane->layer, jobs[j].read) || !st_deliver_from_host(lane->layer, jobs[j].read))
            jobs[left++] = jobs[j];
    }
    if (left < count)
        st_complete_from_host(lane->layer, count - left);
    return left;
}

static void run(st_lane *lane, uint32_t layer_index, st_job *jobs, uint32_t count) {
    struct st_link *link = lane->source->link;
    lane->layer = &lane->core->layers[layer_index];
    count = answer_from_host(lane, jobs, count);
    for (uint32_t first = 0, batch; first < count; first += batch) {
        batch = fill_batch(lane, jobs + first, count - first);
        int rc = await_link(lane, jobs + first, batch);
        if (rc == 0)
            rc = st_link_fetch(link, lane->row_ids, lane->row_count, arrived, lane,
                               st_now_ns() + st_link_timeout_ns(link));
        settle(lane, jobs + first, batch, rc);
    }
}

/* ---- the thread ---- */

/* Reads of the first layer that starts here and has some. */
static uint32_t claim(st_lane *lane, uint32_t *layer_index) {
    st_core *core = lane->core;
    for (uint32_t k = 0; k < core->layer_count; k++) {
        st_layer *layer = &core->layers[k];
        uint32_t first, count;
        if (__atomic_load_n(&layer->start_lane, __ATOMIC_RELAXED) != lane)
            continue;
        if ((count = st_claim(layer, lane->rows_max, &first)) == 0)
            continue;
        for (uint32_t i = 0; i < count; i++)
            lane->jobs[i] = st_first_try(layer, k, first + i);
        *layer_index = k;
        if (layer->lanes[layer->start] == lane)
            return count;
        for (uint32_t i = 0; i < count; i++) /* this thread slept between looking and claiming */
            st_job_dispatch(core, &lane->jobs[i]);
        k = UINT32_MAX;
    }
    return 0;
}

static void *lane_main(void *argument) {
    st_lane *lane = argument;
    while (!__atomic_load_n(&lane->stop, __ATOMIC_ACQUIRE)) {
        uint32_t seen = __atomic_load_n(&lane->work, __ATOMIC_SEQ_CST), layer_index;
        uint32_t count = claim(lane, &layer_index);
        if (count == 0 && (count = st_inbox_take(&lane->inbox, lane->jobs, lane->rows_max)) > 0)
            layer_index = lane->jobs[0].layer;
        if (count)
            run(lane, layer_index, lane->jobs, count);
        else
            st_idle(&lane->work, &lane->sleepers, seen, lane->core->spin_us);
    }
    return NULL;
}

static void lane_join(st_lane *lane) {
    __atomic_store_n(&lane->stop, 1, __ATOMIC_RELEASE);
    st_lane_notify(lane);
    if (lane->started)
        pthread_join(lane->thread, NULL);
    lane->started = 0;
}

static void lane_close(st_lane *lane) {
    lane_join(lane);
    st_inbox_close(&lane->inbox);
    st_source_close(lane->source);
    free(lane->jobs);
    free(lane->row_ids);
    free(lane->wants);
    free(lane->outcomes);
    free(lane);
}

static int lane_open(st_core *core, st_source *source, st_lane **out) {
    st_lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return -ENOMEM;
    uint32_t rows_max = st_link_rows_max(source->link);
    lane->core = core;
    lane->source = source;
    st_source_retain(source);
    lane->rows_max = rows_max;
    lane->jobs = malloc(rows_max * sizeof *lane->jobs);
    lane->row_ids = malloc(rows_max * sizeof *lane->row_ids);
    lane->wants = malloc(rows_max * sizeof *lane->wants);
    lane->outcomes = malloc(rows_max);
    int rc = lane->jobs && lane->row_ids && lane->wants && lane->outcomes ? 0 : -ENOMEM;
    if (rc == 0)
        rc = st_inbox_open(&lane->inbox, core->layer_count * core->lookups_max);
    if (rc == 0)
        rc = -pthread_create(&lane->thread, NULL, lane_main, lane);
    lane->started = rc == 0;
    if (rc < 0)
        lane_close(lane);
    else
        *out = lane;
    return rc;
}

/* ---- which lanes there are ---- */

static st_lane *find(const st_core *core, const st_source *source) {
    for (uint32_t i = 0; i < core->lane_count; i++)
        if (core->lanes[i]->source == source)
            return core->lanes[i];
    return NULL;
}

static int assign(st_core *core, st_layer *layer, uint32_t replica) {
    st_source *source = layer->sources[replica];
    layer->lanes[replica] = NULL;
    if (source->kind != ST_SOURCE_REMOTE)
        return 0;
    st_lane *lane = find(core, source);
    if (!lane) {
        int rc = lane_open(core, source, &lane);
        if (rc < 0)
            return rc;
        core->lanes[core->lane_count++] = lane;
    }
    lane->wanted = 1;
    layer->lanes[replica] = lane;
    return 0;
}

/* End the lanes that no layer wants. */
static void sweep(st_core *core) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < core->lane_count; i++) {
        if (core->lanes[i]->wanted)
            core->lanes[kept++] = core->lanes[i];
        else
            lane_close(core->lanes[i]);
    }
    core->lane_count = kept;
}

int st_lanes_update(st_core *core) {
    int rc = 0;
    for (uint32_t i = 0; i < core->lane_count; i++)
        core->lanes[i]->wanted = 0;
    for (uint32_t k = 0; k < core->layer_count; k++)
        for (uint32_t r = 0; rc == 0 && r < core->layers[k].source_count; r++)
            rc = assign(core, &core->layers[k], r);
    if (rc == 0)
        sweep(core);
    return rc;
}

void st_lanes_stop(st_core *core) {
    for (uint32_t i = 0; i < core->lane_count; i++)
        core->lanes[i]->wanted = 0;
    for (uint32_t i = 0; i < core->lane_count; i++) /* all of them first: they hand jobs to each other */
        lane_join(core->lanes[i]);
    sweep(core);
}
