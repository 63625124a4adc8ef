/* SPDX-License-Identifier: Apache-2.0 */
/* Emulated devices: one queue per device name in shared memory, with a delay model that can change at run time. */
#ifndef ST_DELAY_H
#define ST_DELAY_H

#include <stdint.h>

typedef struct st_delay_device st_delay_device;

int st_delay_open(const char *name, st_delay_device **out);
void st_delay_close(st_delay_device *device);

/* Do both handles mean the same queue? */
int st_delay_same(const st_delay_device *a, const st_delay_device *b);

/* One step's reads of several layers, in order: pages[count] in, release_ns[count] out (CLOCK_MONOTONIC).
 * Layer k is released a + b * (its pages) + c * (pages of later layers) after the device is free for it; what the
 * device still owes to earlier layers or to other processes goes first. A layer without pages is released now. */
int st_delay_submit(st_delay_device *device, uint64_t now_ns, const uint64_t *pages, uint32_t count,
                    uint64_t *release_ns);

/* The same for one layer before the later ones are known: 1 if it was submitted, 0 if the model asks what they read. */
int st_delay_submit_early(st_delay_device *device, uint64_t now_ns, uint64_t pages, uint64_t *release_ns);

#endif
