/* SPDX-License-Identifier: Apache-2.0 */
/* Where a layer's pages come from. Immutable once opened, a remote's link apart; shared by reference count. */
#ifndef ST_SOURCE_H
#define ST_SOURCE_H

#include "delay.h"
#include "slacktier_io.h"

typedef enum st_source_kind { ST_SOURCE_FILES, ST_SOURCE_MEMORY, ST_SOURCE_CALLBACK, ST_SOURCE_REMOTE } st_source_kind;

struct st_link; /* remote.c */

struct st_source {
    st_source_kind kind;
    int references; /* atomic */
    st_layout layout;
    /* ST_SOURCE_FILES */
    int fds[ST_STRIPES_MAX];
    int direct;
    /* ST_SOURCE_MEMORY: pages in order of page id, without superblocks */
    const uint8_t *memory;
    uint64_t memory_bytes; /* 0: the caller's memory */
    st_page_kind pages;
    st_source *base;        /* emulated: who owns the memory */
    st_delay_device *delay; /* emulated only */
    /* ST_SOURCE_CALLBACK */
    st_read_callback read;
    void *context;
    uint64_t pattern_seed;
    struct st_link *link; /* ST_SOURCE_REMOTE */
};

st_source *st_source_new(st_source_kind kind, const st_layout *layout); /* NULL: no memory */

static inline void st_source_retain(st_source *source) {
    __atomic_add_fetch(&source->references, 1, __ATOMIC_RELAXED);
}

static inline int st_source_fd(const st_source *source, uint64_t page_id) {
    return source->fds[page_id % source->layout.stripe_count];
}

static inline uint64_t st_source_offset(const st_source *source, uint64_t page_id) {
    return (ST_SUPERBLOCK_PAGES + page_id / source->layout.stripe_count) * (uint64_t)ST_PAGE_BYTES;
}

#endif
