/* SPDX-License-Identifier: Apache-2.0 */
/* A replica behind a link: rows by id, some, none, late or wrong, and connections that break and come back. */
#include <errno.h>
#include <stdlib.h>

#include "sim.h"
#include "st_remote.h"

enum { ROWS_MAX = 512, WRONG_ROWS_ONE_IN = 5 };
static const uint64_t us_ns = 1000;

static int never(void *context) {
    return 0;
}

static void sleep_until(uint64_t until_ns) {
    sim_block(never, NULL, until_ns);
}

/* Hand over one row as the fault has it; some of the batch's rows are right all the same. */
static void hand_over(const sim_device *device, sim_fault fault, const uint32_t *row_ids, uint32_t index,
                      st_remote_arrived arrived, void *sink) {
    uint8_t page[ST_PAGE_BYTES] = {0};
    const st_layout *layout = &device->layout;
    uint32_t row_id = row_ids[index];
    int wrong = fault != SIM_SOUND && fault != SIM_LATE && sim_chance(WRONG_ROWS_ONE_IN);
    int64_t got = sim_perform(device, wrong ? fault : SIM_SOUND, row_id / layout->rows_per_page, sim_random(), page);
    if (got == ST_PAGE_BYTES)
        arrived(sink, index, st_page_record(layout, page, row_id));
    if (wrong && sim_chance(4)) /* a row that nobody asked for */
        arrived(sink, ROWS_MAX + index, st_page_record(layout, page, row_id));
}

static int fetch(void *context, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                 uint64_t deadline_ns) {
    const sim_device *device = context;
    sim_fault fault = sim_draw_fault(device);
    sim_fault_counts[fault]++;
    sim_note(count << 4 | fault);
    if (device->dead_until_ns > sim_now() || fault == SIM_LATE) { /* silence until the deadline */
        sleep_until(deadline_ns);
        return -ETIMEDOUT;
    }
    sleep_until(sim_now() + (20 + sim_below(200)) * us_ns);
    uint32_t limit = fault == SIM_SHORT || fault == SIM_ERRNO ? (uint32_t)sim_below(count) : count;
    uint32_t first = (uint32_t)sim_below(count); /* in any order */
    for (uint32_t i = 0; fault != SIM_ZERO_BYTES && i < limit; i++) {
        hand_over(device, fault, row_ids, (first + i) % count, arrived, sink);
        if (sim_chance(100))
            sleep_until(sim_now() + sim_below(50) * us_ns);
    }
    return fault == SIM_ERRNO ? -ECONNRESET : 0;
}

int sim_open_remote(uint32_t layer, uint32_t replica, uint64_t timeout_ns, st_source **out) {
    sim_device *device = sim_device_of(layer, replica);
    const st_remote remote = {.rows_max = ROWS_MAX, .timeout_ns = timeout_ns, .fetch = fetch};
    return st_source_open_remote(&remote, device, &device->layout, 1, out);
}
