/* SPDX-License-Identifier: Apache-2.0 */
/* The step path of a GPU: a thread that serves row ids which a captured graph publishes to pinned memory.
 *
 * Per layer, in this order within a step:
 *   GPU   writes row_ids[0, n), then mail->published = n << 32 | step (system scope)
 *   CPU   sees the step, looks the ids up, hands misses to the core's readers while it goes on
 *   CPU   once every missing row is in its pool line and checked: the answer's head, then mail->ready = 1
 *   GPU   passes its wait for ready == 1, resets ready, copies the answer into device memory
 * The next step's ids are published after the GPU has read all of that, so nothing here is ever overwritten early.
 * Steps are numbered 1, 2, 3, ... by the GPU; 0 is skipped on overflow. Nothing here calls CUDA: all it sees are
 * addresses that stay valid until st_step_path_close.
 *
 * A step that cannot be served ends with failed != 0 in the answer's head and ready = 1: the GPU goes on, its rows are
 * poison (NaN), and st_step_path_status says what happened. It never hangs and never delivers a wrong row.
 */
#ifndef ST_STEP_PATH_H
#define ST_STEP_PATH_H

#include <stddef.h>

#include "slacktier_io.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ST_STEP_RECORDS = 8192,
};

/* What a layer's answer to n lookups begins with; one piece, so that one copy brings all of it to the device:
 *   0                               st_answer_head
 *   64                              refs: u32 [n]; a slot, 0x80000000 | line index, or 0xFFFFFFFF for nobody's row
 *   64 + 4 n, rounded up to 64      lines: records of line_bytes: payload, scales, u32 ref in the tag's place */
typedef struct st_answer_head {
    uint32_t line_count; /* of this step */
    int32_t failed;      /* 0, or -errno: refs and lines are not to be used */
    uint32_t reserved[14];
} st_answer_head;

/* One layer's pinned mail box, 64-byte aligned. */
typedef struct st_step_mail {
    uint64_t published; /* GPU writes: lookups << 32 | step */
    uint32_t reserved0[14];
    uint32_t ready; /* CPU sets to 1, GPU resets to 0 */
    uint32_t reserved1[15];
} st_step_mail;

_Static_assert(sizeof(st_answer_head) == 64, "refs begin on a cache line");
_Static_assert(offsetof(st_step_mail, ready) == 64, "ready has a line of its own");
_Static_assert(sizeof(st_step_mail) == 128, "mail box");

/* Where the lines of an answer to count lookups begin. */
static inline uint64_t st_answer_lines(uint64_t count) {
    return (sizeof(st_answer_head) + 4 * count + 63) / 64 * 64;
}

typedef struct st_step_layer {
    st_step_mail *mail;
    int64_t *row_ids; /* lookups_max of the core */
    uint8_t *answer;  /* st_answer_lines(lookups_max) + lookups_max * line_bytes, 64-byte aligned */
    uint32_t line_bytes;
    uint32_t reserved;
} st_step_layer;

typedef struct st_step_settings {
    uint64_t timeout_ns;   /* of a step; then it fails by name */
    uint64_t spin_ns;      /* how long the thread spins for the next step before it sleeps */
    uint64_t idle_poll_ns; /* asleep, it looks this often; st_step_path_arm wakes it at once */
} st_step_settings;

/* One step as the thread saw it; instants in ns since the step's ids were seen. */
typedef struct st_step_record {
    uint64_t step;
    uint64_t first_read_ns;     /* first miss handed to a reader, 0 if none missed */
    uint64_t first_resolved_ns; /* the first layer's misses all known */
    uint64_t resolved_ns;       /* all layers' */
    uint64_t first_ready_ns;    /* the first layer released */
    uint64_t ready_ns;          /* all layers released */
    uint32_t owned[2], hits[2], repeats[2], misses[2], pages[2], spills[2]; /* of the first two layers */
} st_step_record;

typedef struct st_step_status {
    uint64_t steps, failed_steps;
    int32_t error;  /* of the first failed step since the last clear: -ETIMEDOUT, -EBADMSG, -ERANGE, ... */
    uint32_t layer; /* index of the layer that it failed on */
    uint64_t failed_step;
    uint64_t sleeps; /* times that the thread went to sleep for want of steps */
} st_step_status;

typedef struct st_step_path st_step_path;

/* Takes the core over: no other st_step_* call is made on it until close. layers: one per layer of the core. */
int st_step_path_open(st_core *core, const st_step_layer *layers, const st_step_settings *settings, st_step_path **out);
/* Stops the thread. The pool lines stay in use until the core is closed: readers of a late step may still write. */
void st_step_path_close(st_step_path *path);

/* Steps are about to come: wake the thread and the readers where they sleep. Costs two atomic loads if none does. */
void st_step_path_arm(st_step_path *path);

/* Keep the thread between two steps, for st_core_set_*; a step that comes meanwhile waits. -ETIMEDOUT if a step is
 * under way for longer than timeout_ns. */
int st_step_path_pause(st_step_path *path, uint64_t timeout_ns);
void st_step_path_resume(st_step_path *path);

void st_step_path_status(st_step_path *path, st_step_status *status);
void st_step_path_clear(st_step_path *path);

/* The newest records, oldest first; how many. At most ST_STEP_RECORDS are kept. */
uint32_t st_step_path_records(st_step_path *path, st_step_record *records, uint32_t count_max);

#ifdef __cplusplus
}
#endif
#endif
