/* SPDX-License-Identifier: Apache-2.0 */
/* The fault simulator: the product's own core, readers, directory and sources, linked unchanged, over a virtual kernel.
 *
 *   kernel.c    threads as coroutines, futexes, a clock that moves only when nothing can run
 *   ring.c      io_uring: the kernel's side of the rings that liburing's inline functions fill and read
 *   device.c    open, close and pread of virtual devices, and every way in which a read can go wrong
 *   remote.c    replicas behind a link that breaks and comes back
 *   breaks.c    rules of the product switched off on purpose, to prove that the simulator notices
 *   workload.c  eras of a core with drawn settings: steps, timeouts, resizes, new sources; every row compared
 *
 * What the product calls is replaced at link time (--wrap), so its sources know nothing of this. All that is drawn
 * comes from one seed; two runs of a seed do the same, which the printed digest of all events shows.
 */
#ifndef ST_SIM_H
#define ST_SIM_H

#include <stdint.h>

#include "slacktier_io.h"

enum { SIM_LAYERS = 3, SIM_REPLICAS = 3, SIM_ROWS = 12000, SIM_PAYLOAD = 256, SIM_SCALES = 8 };
enum { SIM_ROW_BYTES = SIM_PAYLOAD + SIM_SCALES };
#define SIM_NEVER UINT64_MAX

/* ---- drawn numbers, and the digest of what happened ---- */
void sim_seed(uint64_t seed);
uint64_t sim_random(void);
uint64_t sim_below(uint64_t limit);
int sim_chance(uint32_t one_in);
void sim_note(uint64_t what);
uint64_t sim_digest(void);
void sim_digest_reset(uint64_t value);

/* ---- kernel.c ---- */
uint64_t sim_now(void);
/* Block the running coroutine until ready(context), or until the clock reads until_ns: 0 then, else 1. */
int sim_block(int (*ready)(void *context), void *context, uint64_t until_ns);
/* Let other coroutines run and reads complete, up to turns times; never blocks, the clock moves only with them. */
void sim_interleave(uint32_t turns);
void sim_sleep(uint64_t ns);
/* Something of a known kind is due at due_ns: fire(context) will be called then, in the scheduler. */
void sim_at(uint64_t due_ns, void (*fire)(void *context), void *context);
/* Let everything that is due become due, then set the clock back: an era alone does what it does after others. */
void sim_rewind(void);

/* ---- ring.c ---- */
void sim_refuse_rings(int error); /* 0: rings can be made */

/* ---- device.c ---- */
typedef enum sim_fault {
    SIM_SOUND,
    SIM_ERRNO,       /* EIO, ENODATA, EAGAIN, ENXIO, EINTR */
    SIM_SHORT,       /* fewer bytes, the rest of the buffer untouched */
    SIM_ZERO_BYTES,  /* end of file */
    SIM_STALE,       /* a whole page is reported and nothing was written */
    SIM_TORN,        /* whole sectors of two versions, or of two pages */
    SIM_MISDIRECTED, /* another page of the same table */
    SIM_FLIPPED,     /* one to three bits */
    SIM_OTHER_LAYER,
    SIM_OTHER_TABLE,
    SIM_OLDER_EPOCH, /* the same page as an earlier staging wrote it, other rows in it */
    SIM_GARBAGE,
    SIM_ZEROS, /* a whole page of zeros, as from a hole */
    SIM_LATE,  /* the right bytes, long after any deadline */
    SIM_FAULT_KINDS
} sim_fault;
extern const char *const sim_fault_names[SIM_FAULT_KINDS];

typedef struct sim_device {
    uint32_t layer, replica;
    st_layout layout;
    uint32_t faults_per_1000; /* of reads */
    uint32_t late_per_1000;
    sim_fault always; /* what a device that serves the wrong thing serves; SIM_SOUND: nothing wrong */
    uint64_t dead_until_ns;
} sim_device;

typedef struct sim_read {
    uint32_t device, stripe;
    uint64_t offset;
    uint8_t *buffer;
    sim_fault fault;
    int64_t result;
    uint64_t drawn;
    void (*done)(struct sim_read *read);
    void *owner; /* NULL: nobody is left to take the result, and the buffer is gone */
    uint64_t user_data;
} sim_read;

void sim_devices_init(void);
sim_device *sim_device_of(uint32_t layer, uint32_t replica);
int sim_device_sound(const sim_device *device);
const uint8_t *sim_pages(uint32_t layer, uint32_t replica);
const uint8_t *sim_rotten_pages(uint32_t layer, uint32_t replica);
uint64_t sim_row_seed(uint32_t layer);
/* Draw when this read completes and how, and have done() called then. */
void sim_read_start(sim_read *read, int fd);
int sim_open_device(uint32_t layer, uint32_t replica, uint32_t stripe_count, st_source **out);
int64_t sim_read_callback(void *device, uint64_t page_id, uint8_t *page);
sim_fault sim_draw_fault(const sim_device *device);
/* Do to the buffer what the device does, and say what it reports. */
int64_t sim_perform(const sim_device *device, sim_fault fault, uint64_t page_id, uint64_t drawn, uint8_t *buffer);
extern uint64_t sim_fault_counts[SIM_FAULT_KINDS];

/* ---- remote.c ---- */
int sim_open_remote(uint32_t layer, uint32_t replica, uint64_t timeout_ns, st_source **out);

/* ---- breaks.c ---- */
int sim_break(const char *name); /* 0, or -1: no rule of that name */
extern const char *const sim_break_names;

/* ---- workload.c ---- */
typedef struct sim_totals {
    uint64_t lookups, rows_compared, wrong_rows, slots_compared, steps, failed_steps, timed_out_steps, refused_steps;
    uint64_t eras, retries, bad_records, evictions, spills, resizes, switches, links_mended;
} sim_totals;
extern sim_totals sim_total;

/* One era: its own seed, a core from open to close. */
void sim_era(uint64_t seed, uint64_t era);

/* Print what is wrong and where, and exit with 1. */
__attribute__((noreturn, format(printf, 1, 2))) void sim_fail(const char *format, ...);

#endif
