/* SPDX-License-Identifier: Apache-2.0 */
/* The life of one read, whoever does it: claim -> deliver | next attempt | fail. Readers (reader.c) and lanes (lane.c)
 * share it; a job that neither finishes goes through an inbox to the one who has the next replica. */
#ifndef ST_JOBS_H
#define ST_JOBS_H

#include "core.h"

/* A read that nobody has tried yet: the replica that the step begins with has the first turn. */
static inline st_job st_first_try(const st_layer *layer, uint32_t layer_index, uint32_t read) {
    return (st_job){.layer = layer_index, .read = read, .replica = (uint8_t)layer->start};
}

/* Up to limit reads of a layer: the first index, and how many. */
uint32_t st_claim(st_layer *layer, uint32_t limit, uint32_t *first);

/* Copy one record to where it will be used from and check it there: what it is copied from may be memory that others
 * can write. */
st_fault st_deliver_row(st_layer *layer, const st_layout *layout, uint32_t want, const uint8_t *record);

/* Has the second level the read's row? */
static inline int st_is_on_host(const st_layer *layer, uint32_t read) {
    uint32_t host = layer->wants[layer->reads[read].first_want].host;
    return host != ST_END && (host & ST_HOST_HIT);
}

/* The row of such a read from there: 1, to be counted by st_complete_from_host; 0 if it is damaged and has to be read. */
int st_deliver_from_host(st_layer *layer, uint32_t read);
void st_complete_from_host(st_layer *layer, uint32_t reads);

/* Check every row that the job's read must deliver and put it in place: how many, or -EBADMSG and why. */
int st_deliver_page(st_layer *layer, const st_job *job, const uint8_t *page, st_fault_report *why);

enum { ST_PREFETCH_READS = 3 };
/* Bring the header and the first wanted record of a job's page towards this core: checks and copies then wait for memory
 * together, not one after the other. */
void st_prefetch_read(const st_layer *layer, const st_job *job, const uint8_t *page);

/* Reads of a layer are over; rows of them came from replica. */
void st_complete(st_layer *layer, uint32_t replica, uint32_t reads, uint32_t rows);

/* What a read that did not come at all failed with. */
st_fault_report st_read_fault(const st_layer *layer, const st_job *job, int error, int64_t bytes);

/* The job failed: move it to its next attempt (1), or, when there is none left, count its read as failed and over (0). */
int st_job_retry(st_layer *layer, st_job *job, const st_fault_report *why);

/* Hand a job to whoever reads its replica. */
void st_job_dispatch(st_core *core, const st_job *job);

int st_inbox_open(st_inbox *inbox, uint64_t capacity);
void st_inbox_close(st_inbox *inbox);
/* Up to limit jobs of one layer: the last one's in. */
uint32_t st_inbox_take(st_inbox *inbox, st_job *jobs, uint32_t limit);

/* Spin, then sleep until *work is no longer seen. */
void st_idle(uint32_t *work, uint32_t *sleepers, uint32_t seen, uint32_t spin_us);

#endif
