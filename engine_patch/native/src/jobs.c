/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "lane.h"
#include "remote.h"

enum { LINE_BYTES = 64 };

uint32_t st_claim(st_layer *layer, uint32_t limit, uint32_t *first) {
    for (;;) {
        st_position claimed = __atomic_load_n(&layer->claimed, __ATOMIC_ACQUIRE);
        st_position published = __atomic_load_n(&layer->published, __ATOMIC_ACQUIRE);
        if (claimed >> 32 != published >> 32 || (uint32_t)claimed >= (uint32_t)published)
            return 0;
        uint32_t available = (uint32_t)published - (uint32_t)claimed;
        uint32_t count = available < limit ? available : limit;
        if (__atomic_compare_exchange_n(&layer->claimed, &claimed, claimed + count, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            *first = (uint32_t)claimed;
            return count;
        }
    }
}

/* A record that was checked, into the second level, where its want has a slot there. */
static void keep_on_host(st_layer *layer, const st_layout *layout, const st_want *want, const uint8_t *record) {
    if (want->host & ST_HOST_HIT) /* it came from there, or there is no slot */
        return;
    st_host_keep(layer, want->host, layout, record);
}

st_fault st_deliver_row(st_layer *layer, const st_layout *layout, uint32_t index, const uint8_t *record) {
    const st_want *want = &layer->wants[index];
    uint32_t row_bytes = st_row_bytes(layout);
    uint8_t space[ST_PAGE_BYTES];
    uint8_t *copy = layer->lines ? layer->lines + (size_t)index * layer->line_bytes : space;
    memcpy(copy, record, layout->record_bytes);
    st_fault fault = st_record_check(layout, copy, want->row_id);
    if (fault == ST_FAULT_NONE)
        keep_on_host(layer, layout, want, copy);
    if (layer->lines)
        memcpy(copy + row_bytes, &want->dest, sizeof want->dest); /* the tag has done its work */
    else if (fault == ST_FAULT_NONE)
        memcpy(st_dest(layer, want->dest), copy, row_bytes);
    return fault;
}

int st_deliver_from_host(st_layer *layer, uint32_t read) {
    uint32_t index = layer->reads[read].first_want;
    st_want *want = &layer->wants[index];
    const uint8_t *kept = st_host_record(layer, want->host & ~ST_HOST_HIT);
    st_layout layout = layer->layout;
    memcpy(&layout.crc_seed, kept, sizeof layout.crc_seed);
    if (st_deliver_row(layer, &layout, index, kept + ST_HOST_SEED_BYTES) == ST_FAULT_NONE)
        return 1;
    __atomic_add_fetch(&layer->bad_records, 1, __ATOMIC_RELAXED);
    __atomic_and_fetch(&want->host, ~ST_HOST_HIT, __ATOMIC_RELAXED); /* the source's record takes its place */
    return 0;
}

st_fault_report st_read_fault(const st_layer *layer, const st_job *job, int error, int64_t bytes) {
    const st_page_read *read = &layer->reads[job->read];
    return (st_fault_report){.error = error,
                             .replica = job->replica,
                             .row_id = layer->wants[read->first_want].row_id,
                             .page_id = read->page_id,
                             .bytes = bytes};
}

void st_prefetch_read(const st_layer *layer, const st_job *job, const uint8_t *page) {
    const st_layout *layout = &layer->sources[job->replica]->layout;
    const uint8_t *record = st_page_record(layout, page, layer->wants[layer->reads[job->read].first_want].row_id);
    __builtin_prefetch(page);
    for (uint32_t at = 0; at < layout->record_bytes + LINE_BYTES; at += LINE_BYTES)
        __builtin_prefetch(record + at);
}

int st_deliver_page(st_layer *layer, const st_job *job, const uint8_t *page, st_fault_report *why) {
    const st_layout *layout = &layer->sources[job->replica]->layout;
    const st_page_read *read = &layer->reads[job->read];
    st_fault fault = st_page_header_check(layout, page, read->page_id);
    uint32_t index = read->first_want;
    int rows = 0;
    for (; fault == ST_FAULT_NONE && index != ST_END; index = layer->wants[index].next, rows++) {
        fault = st_deliver_row(layer, layout, index, st_page_record(layout, page, layer->wants[index].row_id));
        if (fault != ST_FAULT_NONE)
            break;
    }
    if (fault == ST_FAULT_NONE)
        return rows;
    *why = st_read_fault(layer, job, -EBADMSG, ST_PAGE_BYTES);
    why->fault = fault;
    why->row_id = layer->wants[index].row_id;
    return -EBADMSG;
}

static void count_done(st_layer *layer, uint32_t reads) {
    __atomic_store_n(&layer->last_done_ns, st_now_ns(), __ATOMIC_RELAXED);
    uint32_t done = __atomic_add_fetch(&layer->done, reads, __ATOMIC_SEQ_CST);
    if (done == __atomic_load_n(&layer->wake_at, __ATOMIC_SEQ_CST))
        st_futex_wake(&layer->done, 1);
}

void st_complete(st_layer *layer, uint32_t replica, uint32_t reads, uint32_t rows) {
    __atomic_add_fetch(&layer->replica_rows[replica], rows, __ATOMIC_RELAXED);
    count_done(layer, reads);
}

void st_complete_from_host(st_layer *layer, uint32_t reads) {
    __atomic_add_fetch(&layer->host_hits, reads, __ATOMIC_RELAXED);
    count_done(layer, reads);
}

/* ---- the next attempt ---- */

static int usable(const st_source *source) {
    return source->kind != ST_SOURCE_REMOTE || st_remote_state(source) == 0;
}

/* Replicas take their turns from the one that the step began with; those whose link is down lose theirs. */
static int to_next_replica(const st_layer *layer, st_job *job) {
    job->attempt = 0;
    while (++job->tried < layer->source_count) {
        job->replica = (uint8_t)((job->replica + 1) % layer->source_count);
        if (usable(layer->sources[job->replica]))
            return 1;
    }
    return 0;
}

/* Nobody is left to ask: a link that has just gone down may come back in time. Once per job; where no link is down, it
 * may have come back between two looks. */
static int to_last_chance(const st_layer *layer, st_job *job) {
    uint32_t chosen = layer->source_count;
    if (job->last_chance)
        return 0;
    for (uint32_t r = layer->source_count; r-- > 0;)
        if (layer->sources[r]->kind == ST_SOURCE_REMOTE &&
            (chosen == layer->source_count || !usable(layer->sources[r])))
            chosen = r;
    if (chosen == layer->source_count)
        return 0;
    job->replica = (uint8_t)chosen;
    job->last_chance = 1;
    return 1;
}

static int advance(const st_layer *layer, st_job *job) {
    if (!job->last_chance) {
        if (++job->attempt < ST_READ_ATTEMPTS && usable(layer->sources[job->replica]))
            return 1;
        if (to_next_replica(layer, job))
            return 1;
    }
    return to_last_chance(layer, job);
}

/* The report of a read that no replica delivered stands above those of reads that one did, later. */
static void report(st_layer *layer, const st_fault_report *why, int final) {
    pthread_mutex_lock(&layer->fault_lock);
    if (final || !layer->fault_is_final)
        layer->fault = *why;
    layer->fault_is_final |= final;
    pthread_mutex_unlock(&layer->fault_lock);
}

int st_job_retry(st_layer *layer, st_job *job, const st_fault_report *why) {
    uint64_t *counter = why->fault ? &layer->bad_records : &layer->read_errors;
    __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
    uint32_t failed_at = job->replica;
    int again = advance(layer, job);
    report(layer, why, !again);
    if (again) {
        __atomic_add_fetch(&layer->retries, 1, __ATOMIC_RELAXED);
        return 1;
    }
    layer->reads[job->read].failed = 1;
    __atomic_add_fetch(&layer->failed_reads, 1, __ATOMIC_RELAXED);
    st_complete(layer, failed_at, 1, 0);
    return 0;
}

/* ---- inboxes ---- */

int st_inbox_open(st_inbox *inbox, uint64_t capacity) {
    size_t byte_count = capacity * sizeof *inbox->jobs;
    inbox->jobs = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (inbox->jobs == MAP_FAILED) {
        inbox->jobs = NULL;
        return -ENOMEM;
    }
    inbox->capacity = capacity;
    pthread_mutex_init(&inbox->lock, NULL);
    return 0;
}

void st_inbox_close(st_inbox *inbox) {
    if (!inbox->jobs)
        return;
    munmap(inbox->jobs, inbox->capacity * sizeof *inbox->jobs);
    pthread_mutex_destroy(&inbox->lock);
    inbox->jobs = NULL;
}

/* Never full: a read is in one inbox at a time, and an inbox has room for the reads of all layers. */
static void inbox_put(st_inbox *inbox, const st_job *job) {
    pthread_mutex_lock(&inbox->lock);
    inbox->jobs[inbox->count] = *job;
    __atomic_store_n(&inbox->count, inbox->count + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&inbox->lock);
}

uint32_t st_inbox_take(st_inbox *inbox, st_job *jobs, uint32_t limit) {
    uint32_t count = 0;
    if (__atomic_load_n(&inbox->count, __ATOMIC_ACQUIRE) == 0)
        return 0;
    pthread_mutex_lock(&inbox->lock);
    uint64_t left = inbox->count;
    while (left && count < limit && (count == 0 || inbox->jobs[left - 1].layer == jobs[0].layer))
        jobs[count++] = inbox->jobs[--left];
    __atomic_store_n(&inbox->count, left, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&inbox->lock);
    return count;
}

void st_job_dispatch(st_core *core, const st_job *job) {
    st_lane *lane = core->layers[job->layer].lanes[job->replica];
    if (lane) {
        inbox_put(st_lane_inbox(lane), job);
        st_lane_notify(lane);
        return;
    }
    inbox_put(&core->inbox, job);
    st_readers_notify(core, 1);
}

void st_idle(uint32_t *work, uint32_t *sleepers, uint32_t seen, uint32_t spin_us) {
    uint64_t until_ns = spin_us ? st_now_ns() + spin_us * 1000ull : 0;
    while (until_ns && __atomic_load_n(work, __ATOMIC_ACQUIRE) == seen && st_now_ns() < until_ns)
        __builtin_ia32_pause();
    __atomic_add_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(work, __ATOMIC_SEQ_CST) == seen)
        st_futex_wait(work, seen, 0);
    __atomic_sub_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
}
