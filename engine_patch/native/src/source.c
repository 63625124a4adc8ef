/* SPDX-License-Identifier: Apache-2.0 */
#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOAD_BYTES = 4 << 20 };

st_source *st_source_new(st_source_kind kind, const st_layout *layout) {
    st_source *source = calloc(1, sizeof *source);
    if (!source)
        return NULL;
    source->kind = kind;
    source->references = 1;
    source->layout = *layout;
    for (int i = 0; i < ST_STRIPES_MAX; i++)
        source->fds[i] = -1;
    return source;
}

static void source_free(st_source *source) {
    for (int i = 0; i < ST_STRIPES_MAX; i++)
        if (source->fds[i] >= 0)
            close(source->fds[i]);
    st_delay_close(source->delay);
    st_link_close(source->link);
    if (source->base)
        st_source_close(source->base);
    else if (source->memory_bytes)
        munmap((void *)source->memory, source->memory_bytes);
    free(source);
}

void st_source_close(st_source *source) {
    if (source && __atomic_sub_fetch(&source->references, 1, __ATOMIC_ACQ_REL) == 0)
        source_free(source);
}

int st_source_is_direct(const st_source *source) {
    return source->direct;
}

const uint8_t *st_source_memory(const st_source *source, uint64_t *byte_count) {
    if (source->kind != ST_SOURCE_MEMORY)
        return NULL;
    *byte_count = source->layout.page_count * ST_PAGE_BYTES;
    return source->memory;
}

/* O_DIRECT where the filesystem has it: the tier must not fill the page cache that others live on. */
static int open_stripe(const char *path, int *direct) {
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL) {
        *direct = 0;
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    return fd < 0 ? -errno : fd;
}

int st_source_open_files(const char *const *paths, uint32_t stripe_count, const st_layout *layout, st_source **out) {
    if (stripe_count == 0 || stripe_count > ST_STRIPES_MAX || stripe_count != layout->stripe_count)
        return -EINVAL;
    st_source *source = st_source_new(ST_SOURCE_FILES, layout);
    if (!source)
        return -ENOMEM;
    source->direct = 1;
    for (uint32_t i = 0; i < stripe_count; i++) {
        int fd = open_stripe(paths[i], &source->direct);
        if (fd < 0) {
            source_free(source);
            return fd;
        }
        source->fds[i] = fd;
    }
    *out = source;
    return 0;
}

/* Read one stripe's data pages into their places in memory. buffer is aligned for O_DIRECT. */
static int load_stripe(const st_source *files, uint32_t stripe, uint8_t *buffer, uint8_t *memory) {
    const st_layout *layout = &files->layout;
    uint64_t page_id = stripe;
    while (page_id < layout->page_count) {
        ssize_t got = pread(files->fds[stripe], buffer, LOAD_BYTES, (off_t)st_source_offset(files, page_id));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < ST_PAGE_BYTES)
            return got < 0 ? -errno : -ENODATA;
        for (ssize_t at = 0; at + ST_PAGE_BYTES <= got && page_id < layout->page_count; at += ST_PAGE_BYTES) {
            memcpy(memory + page_id * ST_PAGE_BYTES, buffer + at, ST_PAGE_BYTES);
            page_id += layout->stripe_count;
        }
    }
    return 0;
}

static const uint64_t huge_page_bytes = 2 << 20;

/* Memory for a table: reserved huge pages if the system has enough of them, else what the kernel puts together by itself.
 * *byte_count becomes what was mapped. */
static uint8_t *map_table(uint64_t *byte_count, st_page_kind *kind) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t whole = (*byte_count + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    uint8_t *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
    if (memory != MAP_FAILED) {
        *byte_count = whole;
        *kind = ST_PAGES_RESERVED;
        return memory;
    }
    memory = mmap(NULL, *byte_count, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory != MAP_FAILED)
        *kind = madvise(memory, *byte_count, MADV_HUGEPAGE) == 0 ? ST_PAGES_TRANSPARENT : ST_PAGES_SMALL;
    return memory;
}

st_page_kind st_source_pages(const st_source *source) {
    return source->pages;
}

int st_source_open_memory(const char *const *paths, uint32_t stripe_count, const st_layout *layout, st_source **out) {
    st_source *files;
    int rc = st_source_open_files(paths, stripe_count, layout, &files);
    if (rc < 0)
        return rc;
    st_source *source = st_source_new(ST_SOURCE_MEMORY, layout);
    uint8_t *buffer = aligned_alloc(ST_PAGE_BYTES, LOAD_BYTES);
    uint64_t byte_count = layout->page_count * ST_PAGE_BYTES;
    st_page_kind kind = ST_PAGES_SMALL;
    uint8_t *memory = map_table(&byte_count, &kind);
    if (!source || !buffer || memory == MAP_FAILED)
        rc = -ENOMEM;
    for (uint32_t stripe = 0; rc == 0 && stripe < stripe_count; stripe++)
        rc = load_stripe(files, stripe, buffer, memory);
    free(buffer);
    st_source_close(files);
    if (rc < 0) {
        if (memory != MAP_FAILED)
            munmap(memory, byte_count);
        free(source);
        return rc;
    }
    source->memory = memory;
    source->memory_bytes = byte_count;
    source->pages = kind;
    *out = source;
    return 0;
}

int st_source_open_borrowed(const uint8_t *pages, const st_layout *layout, st_source **out) {
    if (!pages)
        return -EINVAL;
    st_source *source = st_source_new(ST_SOURCE_MEMORY, layout);
    if (!source)
        return -ENOMEM;
    source->memory = pages;
    *out = source;
    return 0;
}

int st_source_open_emulated(st_source *base, const char *device, st_source **out) {
    if (base->kind != ST_SOURCE_MEMORY || base->delay)
        return -EINVAL;
    st_source *source = st_source_new(ST_SOURCE_MEMORY, &base->layout);
    if (!source)
        return -ENOMEM;
    int rc = st_delay_open(device, &source->delay);
    if (rc < 0) {
        free(source);
        return rc;
    }
    st_source_retain(base);
    source->base = base;
    source->memory = base->memory;
    source->pages = base->pages;
    source->memory_bytes = base->memory_bytes;
    *out = source;
    return 0;
}

int st_source_open_callback(st_read_callback read, void *context, const st_layout *layout, st_source **out) {
    st_source *source = st_source_new(ST_SOURCE_CALLBACK, layout);
    if (!source)
        return -ENOMEM;
    source->read = read;
    source->context = context;
    *out = source;
    return 0;
}

static int64_t read_pattern(void *context, uint64_t page_id, uint8_t *page) {
    const st_source *source = context;
    const st_layout *layout = &source->layout;
    uint8_t weights[ST_PAGE_BYTES], scales[ST_PAGE_BYTES];
    uint64_t first = page_id * layout->rows_per_page;
    uint64_t count =
        layout->row_count - first < layout->rows_per_page ? layout->row_count - first : layout->rows_per_page;
    st_pattern_fill(source->pattern_seed, first, count, layout->payload_bytes, layout->scale_bytes, weights, scales);
    int rc = st_pages_encode(layout, page_id, 1, weights, scales, page);
    return rc < 0 ? rc : ST_PAGE_BYTES;
}

int st_source_open_pattern(uint64_t seed, const st_layout *layout, st_source **out) {
    int rc = st_source_open_callback(read_pattern, NULL, layout, out);
    if (rc < 0)
        return rc;
    (*out)->context = *out;
    (*out)->pattern_seed = seed;
    return 0;
}
