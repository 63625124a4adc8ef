/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual devices: what they hold, how long they take, and every way in which they can answer wrongly. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "sim.h"

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_close(int fd);
int __wrap_close(int fd);
ssize_t __wrap_pread(int fd, void *buffer, size_t byte_count, off_t offset);

enum {
    FD_FIRST = 100000,
    SECTOR_BYTES = 512,
    SECTORS = ST_PAGE_BYTES / SECTOR_BYTES,
    EPOCH = 7,
    EPOCH_OLDER = 5,
    ROTTEN_ONE_IN = 9 /* pages of a rotten copy */
};
static const uint64_t us_ns = 1000;

const char *const sim_fault_names[SIM_FAULT_KINDS] = {
    "sound",   "errno",       "short",       "zero_bytes",  "stale",   "torn",  "misdirected",
    "flipped", "other_layer", "other_table", "older_epoch", "garbage", "zeros", "late",
};
uint64_t sim_fault_counts[SIM_FAULT_KINDS];

static sim_device devices[SIM_LAYERS][SIM_REPLICAS];
static st_layout older[SIM_LAYERS], other_table[SIM_LAYERS];
static uint8_t *pages[SIM_LAYERS][SIM_REPLICAS], *rotten[SIM_LAYERS][SIM_REPLICAS];

uint64_t sim_row_seed(uint32_t layer) {
    return 100 + layer;
}

static st_layout layout_of(uint32_t layer, uint32_t epoch, const char table[16]) {
    st_layout layout;
    if (st_layout_init(&layout, SIM_ROWS, SIM_PAYLOAD, SIM_SCALES, (const uint8_t *)table, layer + 1, epoch, 1) < 0)
        sim_fail("layout");
    return layout;
}

static void make_page(const st_layout *layout, uint64_t seed, uint64_t page_id, uint8_t *page) {
    uint8_t weights[ST_PAGE_BYTES], scales[ST_PAGE_BYTES];
    uint64_t first = page_id * layout->rows_per_page, left = layout->row_count - first;
    st_pattern_fill(seed, first, left < layout->rows_per_page ? left : layout->rows_per_page, SIM_PAYLOAD, SIM_SCALES,
                    weights, scales);
    st_pages_encode(layout, page_id, 1, weights, scales, page);
}

static uint8_t *make_pages(const st_layout *layout, uint64_t seed) {
    uint8_t *made = aligned_alloc(ST_PAGE_BYTES, layout->page_count * ST_PAGE_BYTES);
    for (uint64_t page_id = 0; page_id < layout->page_count; page_id++)
        make_page(layout, seed, page_id, made + page_id * ST_PAGE_BYTES);
    return made;
}

sim_device *sim_device_of(uint32_t layer, uint32_t replica) {
    return &devices[layer][replica];
}

int sim_device_sound(const sim_device *device) {
    return device->faults_per_1000 == 0 && device->late_per_1000 == 0 && device->always == SIM_SOUND &&
           device->dead_until_ns <= sim_now();
}

const uint8_t *sim_pages(uint32_t layer, uint32_t replica) {
    return pages[layer][replica];
}

const uint8_t *sim_rotten_pages(uint32_t layer, uint32_t replica) {
    return rotten[layer][replica];
}

static void flip_bits(uint8_t *page, uint64_t drawn) {
    for (uint32_t i = 0; i <= drawn % 3; i++) {
        uint64_t bit = (drawn >> (8 + 16 * i)) % (ST_PAGE_BYTES * 8);
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* Some other whole page that this read could have got. */
static void other_page(const sim_device *device, sim_fault kind, uint64_t page_id, uint64_t drawn, uint8_t *out) {
    uint64_t page_count = device->layout.page_count, another = (page_id + 1 + drawn % (page_count - 1)) % page_count;
    uint32_t layer = device->layer;
    switch (kind) {
    case SIM_OTHER_LAYER:
        layer = (layer + 1 + (uint32_t)(drawn % (SIM_LAYERS - 1))) % SIM_LAYERS;
        memcpy(out, pages[layer][device->replica] + page_id * ST_PAGE_BYTES, ST_PAGE_BYTES);
        break;
    case SIM_OTHER_TABLE: make_page(&other_table[layer], 300 + layer, page_id, out); break;
    case SIM_OLDER_EPOCH: make_page(&older[layer], 200 + layer, page_id, out); break;
    case SIM_GARBAGE:
        for (uint32_t i = 0; i < ST_PAGE_BYTES; i += 8, drawn = drawn * 6364136223846793005ull + 1442695040888963407ull)
            memcpy(out + i, &drawn, 8);
        break;
    case SIM_ZEROS: memset(out, 0, ST_PAGE_BYTES); break;
    default: memcpy(out, pages[layer][device->replica] + another * ST_PAGE_BYTES, ST_PAGE_BYTES); break;
    }
}

/* Whole sectors from two pages, in either order: the header may be of the one and the record of the other. */
static void torn_page(const sim_device *device, uint64_t page_id, uint64_t drawn, uint8_t *out) {
    static const sim_fault mixed_with[] = {SIM_OLDER_EPOCH, SIM_MISDIRECTED, SIM_ZEROS, SIM_OTHER_LAYER,
                                           SIM_OTHER_TABLE};
    const uint8_t *right = pages[device->layer][device->replica] + page_id * ST_PAGE_BYTES;
    size_t cut = (1 + drawn % (SECTORS - 1)) * SECTOR_BYTES;
    other_page(device, mixed_with[(drawn >> 8) % 5], page_id, drawn >> 16, out);
    if (drawn >> 63)
        memcpy(out, right, cut);
    else
        memcpy(out + cut, right + cut, ST_PAGE_BYTES - cut);
}

int64_t sim_perform(const sim_device *device, sim_fault fault, uint64_t page_id, uint64_t drawn, uint8_t *buffer) {
    static const int errors[] = {EIO, ENODATA, EAGAIN, ENXIO, EINTR, ENODEV, EREMOTEIO};
    const uint8_t *right = pages[device->layer][device->replica] + page_id * ST_PAGE_BYTES;
    size_t byte_count;
    switch (fault) {
    case SIM_SOUND:
    case SIM_LATE: memcpy(buffer, right, ST_PAGE_BYTES); return ST_PAGE_BYTES;
    case SIM_ERRNO: return -errors[drawn % (sizeof errors / sizeof *errors)];
    case SIM_SHORT:
        byte_count = drawn & 1 ? (1 + (drawn >> 8) % (SECTORS - 1)) * SECTOR_BYTES : 1 + (drawn >> 8) % 4095;
        memcpy(buffer, right, byte_count);
        return (int64_t)byte_count;
    case SIM_ZERO_BYTES: return 0;
    case SIM_STALE: return ST_PAGE_BYTES;
    case SIM_TORN: torn_page(device, page_id, drawn, buffer); return ST_PAGE_BYTES;
    case SIM_FLIPPED:
        memcpy(buffer, right, ST_PAGE_BYTES);
        flip_bits(buffer, drawn);
        return ST_PAGE_BYTES;
    default: other_page(device, fault, page_id, drawn, buffer); return ST_PAGE_BYTES;
    }
}

void sim_devices_init(void) {
    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
        older[layer] = layout_of(layer, EPOCH_OLDER, "the same table.");
        other_table[layer] = layout_of(layer, EPOCH, "another table..");
        for (uint32_t replica = 0; replica < SIM_REPLICAS; replica++) {
            /* Replicas are stagings of their own: the same rows under epochs of their own. */
            st_layout layout = layout_of(layer, EPOCH + 2 * replica, "the same table.");
            devices[layer][replica] = (sim_device){.layer = layer, .replica = replica, .layout = layout};
            pages[layer][replica] = make_pages(&layout, sim_row_seed(layer));
        }
    }
    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++)
        for (uint32_t replica = 0; replica < SIM_REPLICAS; replica++) {
            const sim_device *device = &devices[layer][replica];
            uint64_t byte_count = device->layout.page_count * ST_PAGE_BYTES;
            uint8_t *copy = rotten[layer][replica] = aligned_alloc(ST_PAGE_BYTES, byte_count);
            memcpy(copy, pages[layer][replica], byte_count);
            for (uint64_t page_id = 0; page_id < device->layout.page_count; page_id++)
                if (sim_chance(ROTTEN_ONE_IN))
                    sim_perform(device, SIM_TORN + (sim_fault)sim_below(SIM_ZEROS - SIM_TORN + 1), page_id,
                                sim_random(), copy + page_id * ST_PAGE_BYTES);
        }
}

/* ---- reads ---- */

static void read_due(void *context) {
    sim_read *read = context;
    if (!read->owner) { /* its ring is gone, and the device may have been laid out anew since */
        read->done(read);
        return;
    }
    const sim_device *device = &devices[read->device / SIM_REPLICAS][read->device % SIM_REPLICAS];
    uint64_t page = read->offset / ST_PAGE_BYTES - ST_SUPERBLOCK_PAGES;
    uint64_t page_id = page * device->layout.stripe_count + read->stripe;
    if (read->offset % ST_PAGE_BYTES || read->offset < ST_SUPERBLOCK_PAGES * ST_PAGE_BYTES ||
        page_id >= device->layout.page_count)
        sim_fail("a read at %lu of layer %u, stripe %u: no page is there", read->offset, device->layer, read->stripe);
    if (read->result == 0)
        read->result = sim_perform(device, read->fault, page_id, read->drawn, read->buffer);
    sim_note(page_id << 8 ^ (uint64_t)read->result << 32 ^ sim_now());
    read->done(read);
}

/* A device that is gone answers at once with an error, or only when it is back. */
static uint64_t dead_latency_ns(const sim_device *device, sim_read *read) {
    if (read->drawn & 1)
        return device->dead_until_ns - sim_now() + 100 * us_ns;
    read->result = read->drawn & 2 ? -ENODEV : -EIO;
    return 30 * us_ns;
}

static uint64_t latency_ns(const sim_device *device, sim_read *read) {
    if (device->dead_until_ns > sim_now())
        return dead_latency_ns(device, read);
    if (read->fault == SIM_LATE)
        return (60000 + sim_below(3000000)) * us_ns;
    if (sim_chance(60))
        return (1000 + sim_below(4000)) * us_ns;
    return (20 + sim_below(180)) * us_ns;
}

sim_fault sim_draw_fault(const sim_device *device) {
    if (device->always)
        return device->always;
    uint64_t drawn = sim_below(1000);
    if (drawn < device->late_per_1000)
        return SIM_LATE;
    if (drawn < device->late_per_1000 + device->faults_per_1000)
        return SIM_ERRNO + (sim_fault)sim_below(SIM_LATE - SIM_ERRNO);
    return SIM_SOUND;
}

void sim_read_start(sim_read *read, int fd) {
    uint32_t index = (uint32_t)(fd - FD_FIRST);
    if (fd < FD_FIRST || index / ST_STRIPES_MAX >= SIM_LAYERS * SIM_REPLICAS)
        sim_fail("a read of file descriptor %d", fd);
    read->device = index / ST_STRIPES_MAX;
    read->stripe = index % ST_STRIPES_MAX;
    const sim_device *device = &devices[read->device / SIM_REPLICAS][read->device % SIM_REPLICAS];
    read->fault = sim_draw_fault(device);
    read->drawn = sim_random();
    read->result = 0;
    uint64_t due_ns = sim_now() + latency_ns(device, read);
    sim_fault_counts[read->fault]++;
    sim_at(due_ns, read_due, read);
}

typedef struct blocked_read {
    sim_read read; /* first: done() gets its address */
    int over;
} blocked_read;

static void blocked_read_done(sim_read *read) {
    ((blocked_read *)read)->over = 1;
}

static int read_over(void *context) {
    return ((blocked_read *)context)->over;
}

static int64_t read_blocking(int fd, uint64_t offset, uint8_t *buffer) {
    blocked_read blocked = {.read = {.offset = offset, .buffer = buffer, .done = blocked_read_done}};
    blocked.read.owner = &blocked;
    sim_read_start(&blocked.read, fd);
    sim_block(read_over, &blocked, SIM_NEVER);
    return blocked.read.result;
}

int64_t sim_read_callback(void *device, uint64_t page_id, uint8_t *page) {
    const sim_device *from = device;
    uint32_t index = from->layer * SIM_REPLICAS + from->replica, stripes = from->layout.stripe_count;
    return read_blocking(FD_FIRST + (int)(index * ST_STRIPES_MAX + page_id % stripes),
                         (ST_SUPERBLOCK_PAGES + page_id / stripes) * ST_PAGE_BYTES, page);
}

/* ---- what the sources call ---- */

int __wrap_open(const char *path, int flags, ...) {
    unsigned layer, replica, stripe;
    if (sscanf(path, "/sim/%u/%u/%u", &layer, &replica, &stripe) != 3) {
        va_list rest;
        va_start(rest, flags);
        int mode = flags & O_CREAT ? va_arg(rest, int) : 0;
        va_end(rest);
        return __real_open(path, flags, mode);
    }
    if (flags & O_DIRECT && sim_chance(8)) { /* a file system without it */
        errno = EINVAL;
        return -1;
    }
    return FD_FIRST + (int)((layer * SIM_REPLICAS + replica) * ST_STRIPES_MAX + stripe);
}

int __wrap_close(int fd) {
    return fd >= FD_FIRST ? 0 : __real_close(fd);
}

ssize_t __wrap_pread(int fd, void *buffer, size_t byte_count, off_t offset) {
    if (byte_count != ST_PAGE_BYTES)
        sim_fail("pread of %zu bytes", byte_count);
    int64_t got = read_blocking(fd, (uint64_t)offset, buffer);
    if (got >= 0)
        return (ssize_t)got;
    errno = (int)-got;
    return -1;
}

int sim_open_device(uint32_t layer, uint32_t replica, uint32_t stripe_count, st_source **out) {
    sim_device *device = &devices[layer][replica];
    char names[ST_STRIPES_MAX][32];
    const char *paths[ST_STRIPES_MAX];
    device->layout.stripe_count = stripe_count;
    for (uint32_t stripe = 0; stripe < stripe_count; stripe++) {
        snprintf(names[stripe], sizeof names[stripe], "/sim/%u/%u/%u", layer, replica, stripe);
        paths[stripe] = names[stripe];
    }
    return st_source_open_files(paths, stripe_count, &device->layout, out);
}
