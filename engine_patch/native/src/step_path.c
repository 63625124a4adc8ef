/* SPDX-License-Identifier: Apache-2.0 */
/* The thread behind st_step_path.h: polls for published ids, drives the core, releases layers in order of arrival. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"
#include "st_step_path.h"

enum { PAUSES_PER_CLOCK = 64 };

struct st_step_path {
    st_core *core;
    st_step_layer layers[ST_LAYERS_MAX];
    st_step_settings settings;
    pthread_t thread;
    pthread_mutex_t between; /* held by the thread while it serves a step, by others while it must not */
    pthread_mutex_t report;
    uint32_t stop;
    uint32_t wake; /* futex */
    uint32_t asleep;
    uint64_t sleeps;

    /* the step in progress */
    uint32_t step;
    uint64_t seen_ns, deadline_ns;
    uint32_t opened;        /* the core accepted the step */
    uint32_t passed;        /* layers whose pass is over */
    uint32_t refused_layer; /* whose ids were not accepted, or ST_LAYERS_MAX */
    uint32_t failed_layer;
    uint32_t raised[ST_LAYERS_MAX];
    int32_t failed[ST_LAYERS_MAX];
    st_step_record record;

    st_step_status status;
    uint64_t record_count;
    st_step_record records[ST_STEP_RECORDS];
};

static uint32_t next_step(uint32_t step) {
    return step == UINT32_MAX ? 1 : step + 1;
}

/* The layer's ids of this step are whole; *count says how many. */
static int published(const st_step_path *path, uint32_t layer, uint64_t *count) {
    uint64_t word = __atomic_load_n(&path->layers[layer].mail->published, __ATOMIC_ACQUIRE);
    *count = word >> 32;
    return (uint32_t)word == path->step;
}

/* Every layer's flag is raised exactly once per step: a second 1 would release the next step's wait. */
static void raise_layer(st_step_path *path, uint32_t layer, uint32_t line_count, int32_t failed) {
    st_step_mail *mail = path->layers[layer].mail;
    st_answer_head *head = (st_answer_head *)path->layers[layer].answer;
    head->line_count = line_count;
    head->failed = failed;
    path->raised[layer] = 1;
    path->failed[layer] = failed;
    __atomic_store_n(&mail->ready, 1, __ATOMIC_RELEASE);
    uint64_t since_ns = st_now_ns() - path->seen_ns;
    if (layer == 0)
        path->record.first_ready_ns = since_ns;
    path->record.ready_ns = since_ns;
}

/* Release what has arrived of the first `limit` layers; 1 once all of them are released. */
static int raise_arrived(st_step_path *path, uint32_t limit) {
    int all = 1;
    uint64_t now_ns = st_now_ns();
    for (uint32_t k = 0; k < limit; k++) {
        st_layer *layer = &path->core->layers[k];
        if (path->raised[k])
            continue;
        if (!st_step_arrived(layer, now_ns)) {
            all = 0;
            continue;
        }
        raise_layer(path, k, layer->want_count, st_layer_error(layer));
    }
    return all;
}

/* While a later layer's pass runs: what is known to be over of the layers before it. */
static void raise_during_pass(void *context) {
    st_step_path *path = context;
    uint32_t known = 0;
    while (known < path->passed && path->core->layers[known].release_known)
        known++;
    raise_arrived(path, known);
}

static void fail_rest(st_step_path *path, int32_t error) {
    for (uint32_t k = 0; k < path->core->layer_count; k++)
        if (!path->raised[k])
            raise_layer(path, k, 0, error);
}

/* The ids of the first layer are here; those of later ones follow within microseconds, or something is broken. */
static int await_ids(st_step_path *path, uint32_t layer, uint64_t *count) {
    while (!published(path, layer, count)) {
        if (__atomic_load_n(&path->stop, __ATOMIC_ACQUIRE))
            return -ECANCELED;
        if (st_now_ns() > path->deadline_ns)
            return -ETIMEDOUT;
        __builtin_ia32_pause();
    }
    return 0;
}

/* The lines follow the step's refs. A count beyond the room is the pass's to refuse. */
static void place_lines(st_step_path *path, uint32_t layer, uint64_t count) {
    if (count <= path->core->lookups_max)
        path->core->layers[layer].lines = path->layers[layer].answer + st_answer_lines(count);
}

static int look_up_layers(st_step_path *path) {
    st_core *core = path->core;
    for (uint32_t k = 0; k < core->layer_count; k++) {
        uint64_t count = 0;
        int rc = await_ids(path, k, &count);
        if (rc == 0 && k == 0 && (rc = st_step_open(core)) == 0)
            path->opened = 1;
        if (rc == 0) {
            place_lines(path, k, count);
            rc = st_step_pass(core, k, path->layers[k].row_ids, count);
        }
        if (rc == 0)
            rc = st_step_submit_early(core, k);
        if (rc < 0) {
            path->refused_layer = k;
            return rc;
        }
        path->passed = k + 1;
        if (k == 0)
            path->record.first_resolved_ns = st_now_ns() - path->seen_ns;
    }
    path->record.resolved_ns = st_now_ns() - path->seen_ns;
    if (core->first_ns)
        path->record.first_read_ns = core->first_ns - path->seen_ns;
    return st_step_submit(core);
}

/* Reads that a refused step has started: over in no time, and then the next step need not be refused, too. */
static void drain(st_step_path *path) {
    while (st_step_in_flight(path->core) && st_now_ns() < path->deadline_ns)
        __builtin_ia32_pause();
}

static int await_rows(st_step_path *path) {
    while (!raise_arrived(path, path->core->layer_count)) {
        if (__atomic_load_n(&path->stop, __ATOMIC_ACQUIRE))
            return -ECANCELED;
        if (st_now_ns() > path->deadline_ns)
            return -ETIMEDOUT;
        __builtin_ia32_pause();
    }
    return 0;
}

/* Which layer to name: the one whose ids were refused, else the first that failed or is not there yet. */
static uint32_t find_failed_layer(const st_step_path *path) {
    uint32_t late = path->core->layer_count;
    if (path->refused_layer < ST_LAYERS_MAX)
        return path->refused_layer;
    for (uint32_t k = path->core->layer_count; k-- > 0;) {
        if (path->failed[k])
            return k;
        late = path->raised[k] ? late : k;
    }
    return late;
}

static void keep_record(st_step_path *path, int32_t error) {
    st_step_record *record = &path->record;
    record->step = path->step;
    for (uint32_t k = 0; k < path->core->layer_count && k < 2; k++) {
        const st_layer *layer = &path->core->layers[k];
        record->owned[k] = (uint32_t)layer->result.owned;
        record->hits[k] = (uint32_t)layer->result.hits;
        record->repeats[k] = (uint32_t)layer->result.repeats;
        record->misses[k] = (uint32_t)layer->result.misses;
        record->pages[k] = layer->read_count - (uint32_t)layer->result.host_hits;
        record->spills[k] = layer->directory.set_count ? layer->spill_count : 0;
    }
    pthread_mutex_lock(&path->report);
    path->records[path->record_count++ % ST_STEP_RECORDS] = *record;
    path->status.steps++;
    if (error) {
        path->status.failed_steps++;
        if (path->status.error == 0) {
            path->status.error = error;
            path->status.layer = path->failed_layer;
            path->status.failed_step = path->step;
        }
    }
    pthread_mutex_unlock(&path->report);
}

static void serve(st_step_path *path, uint64_t seen_ns) {
    path->seen_ns = seen_ns;
    path->deadline_ns = seen_ns + path->settings.timeout_ns;
    path->opened = path->passed = 0;
    memset(path->raised, 0, sizeof path->raised);
    memset(path->failed, 0, sizeof path->failed);
    memset(&path->record, 0, sizeof path->record);
    path->refused_layer = ST_LAYERS_MAX;
    int rc = look_up_layers(path);
    if (rc == 0)
        rc = await_rows(path);
    path->failed_layer = find_failed_layer(path);
    if (rc == -ETIMEDOUT && path->opened)
        for (uint32_t k = 0; k < path->core->layer_count; k++)
            if (!path->raised[k])
                st_step_count_timeout(&path->core->layers[k]);
    if (rc < 0)
        fail_rest(path, rc);
    for (uint32_t k = 0; rc == 0 && k < path->core->layer_count; k++)
        rc = path->failed[k];
    if (path->opened) {
        if (rc < 0)
            drain(path);
        st_step_end(path->core);
        /* The GPU takes nothing of a layer that failed, so no row of it may count as cached. */
        for (uint32_t k = 0; k < path->core->layer_count; k++)
            if (path->failed[k])
                st_step_forget(path->core, k);
    }
    keep_record(path, rc);
    path->step = next_step(path->step);
}

/* Spin for the next step for a while, then sleep and look now and then. 0 if the thread is to stop. */
static uint64_t await_step(st_step_path *path) {
    uint64_t count, spin_until_ns = st_now_ns() + path->settings.spin_ns;
    while (!__atomic_load_n(&path->stop, __ATOMIC_ACQUIRE)) {
        for (uint32_t i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (published(path, 0, &count))
                return st_now_ns();
            __builtin_ia32_pause();
        }
        if (st_now_ns() < spin_until_ns)
            continue;
        uint32_t wake = __atomic_load_n(&path->wake, __ATOMIC_SEQ_CST);
        __atomic_store_n(&path->asleep, 1, __ATOMIC_SEQ_CST);
        if (!published(path, 0, &count) && !__atomic_load_n(&path->stop, __ATOMIC_SEQ_CST)) {
            __atomic_add_fetch(&path->sleeps, 1, __ATOMIC_RELAXED);
            st_futex_wait(&path->wake, wake, path->settings.idle_poll_ns);
        }
        __atomic_store_n(&path->asleep, 0, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&path->wake, __ATOMIC_SEQ_CST) != wake)
            spin_until_ns = st_now_ns() + path->settings.spin_ns;
    }
    return 0;
}

static void *path_main(void *argument) {
    st_step_path *path = argument;
    uint64_t seen_ns;
    while ((seen_ns = await_step(path))) {
        pthread_mutex_lock(&path->between);
        serve(path, seen_ns);
        pthread_mutex_unlock(&path->between);
    }
    return NULL;
}

/* ---- the caller's side ---- */

static int layers_valid(const st_core *core, const st_step_layer *layers) {
    for (uint32_t k = 0; k < core->layer_count; k++)
        if (!layers[k].mail || (uintptr_t)layers[k].mail % 64 || !layers[k].row_ids || !layers[k].answer ||
            (uintptr_t)layers[k].answer % 64)
            return 0;
    return 1;
}

int st_step_path_open(st_core *core, const st_step_layer *layers, const st_step_settings *settings,
                      st_step_path **out) {
    if (!layers_valid(core, layers) || settings->timeout_ns == 0 || settings->idle_poll_ns == 0)
        return -EINVAL;
    st_step_path *path = calloc(1, sizeof *path);
    if (!path)
        return -ENOMEM;
    path->core = core;
    path->settings = *settings;
    path->step = 1;
    pthread_mutex_init(&path->between, NULL);
    pthread_mutex_init(&path->report, NULL);
    core->progress = raise_during_pass;
    core->progress_context = path;
    int rc = 0;
    for (uint32_t k = 0; rc == 0 && k < core->layer_count; k++) {
        path->layers[k] = layers[k];
        memset(layers[k].mail, 0, sizeof *layers[k].mail);
        rc = st_core_attach_lines(core, k, layers[k].answer + st_answer_lines(core->lookups_max), layers[k].line_bytes,
                                  (uint32_t *)(layers[k].answer + sizeof(st_answer_head)));
    }
    if (rc == 0)
        rc = -pthread_create(&path->thread, NULL, path_main, path);
    if (rc < 0) {
        core->progress = NULL;
        free(path);
        return rc;
    }
    *out = path;
    return 0;
}

void st_step_path_arm(st_step_path *path) {
    st_readers_wake(path->core);
    if (!__atomic_load_n(&path->asleep, __ATOMIC_SEQ_CST))
        return;
    __atomic_add_fetch(&path->wake, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&path->wake, 1);
}

void st_step_path_close(st_step_path *path) {
    if (!path)
        return;
    __atomic_store_n(&path->stop, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&path->wake, 1, __ATOMIC_SEQ_CST);
    st_futex_wake(&path->wake, 1);
    pthread_join(path->thread, NULL);
    path->core->progress = NULL;
    pthread_mutex_destroy(&path->between);
    pthread_mutex_destroy(&path->report);
    free(path);
}

int st_step_path_pause(st_step_path *path, uint64_t timeout_ns) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t at_ns = (uint64_t)until.tv_nsec + timeout_ns;
    until.tv_sec += (time_t)(at_ns / 1000000000u);
    until.tv_nsec = (long)(at_ns % 1000000000u);
    return -pthread_mutex_timedlock(&path->between, &until);
}

void st_step_path_resume(st_step_path *path) {
    pthread_mutex_unlock(&path->between);
}

void st_step_path_status(st_step_path *path, st_step_status *status) {
    pthread_mutex_lock(&path->report);
    *status = path->status;
    status->sleeps = __atomic_load_n(&path->sleeps, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&path->report);
}

void st_step_path_clear(st_step_path *path) {
    pthread_mutex_lock(&path->report);
    path->status.error = 0;
    pthread_mutex_unlock(&path->report);
}

uint32_t st_step_path_records(st_step_path *path, st_step_record *records, uint32_t count_max) {
    pthread_mutex_lock(&path->report);
    uint64_t kept = path->record_count < ST_STEP_RECORDS ? path->record_count : ST_STEP_RECORDS;
    uint64_t count = kept < count_max ? kept : count_max;
    for (uint64_t i = 0; i < count; i++)
        records[i] = path->records[(path->record_count - count + i) % ST_STEP_RECORDS];
    pthread_mutex_unlock(&path->report);
    return (uint32_t)count;
}
