/* SPDX-License-Identifier: Apache-2.0 */
/* Renames row ids to dense keys: an open-addressing table that holds keys only, the row ids beside it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "st_cache_sim.h"

struct st_row_index {
    uint32_t *slots; /* 1 + key, 0 free; open addressing, at most half full */
    uint32_t *row_ids;
    uint64_t slot_mask, count, capacity;
};

static uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

static uint32_t *slot_for(const st_row_index *index, uint32_t row_id) {
    uint64_t at = mix32(row_id) & index->slot_mask;
    while (index->slots[at] && index->row_ids[index->slots[at] - 1] != row_id)
        at = (at + 1) & index->slot_mask;
    return &index->slots[at];
}

static int row_index_grow(st_row_index *index, uint64_t capacity) {
    uint32_t *row_ids = realloc(index->row_ids, capacity * sizeof *row_ids);
    if (!row_ids)
        return -ENOMEM;
    index->row_ids = row_ids;
    uint32_t *slots = calloc(2 * capacity, sizeof *slots);
    if (!slots)
        return -ENOMEM;
    free(index->slots);
    index->slots = slots;
    index->slot_mask = 2 * capacity - 1;
    index->capacity = capacity;
    for (uint64_t key = 0; key < index->count; key++)
        *slot_for(index, index->row_ids[key]) = (uint32_t)key + 1;
    return 0;
}

st_row_index *st_row_index_open(void) {
    st_row_index *index = calloc(1, sizeof *index);
    if (index && row_index_grow(index, 1u << 16)) {
        st_row_index_close(index);
        return NULL;
    }
    return index;
}

void st_row_index_close(st_row_index *index) {
    if (!index)
        return;
    free(index->slots);
    free(index->row_ids);
    free(index);
}

int st_row_index_add(st_row_index *index, const uint32_t *row_ids, uint64_t count, uint32_t *keys) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t *slot = slot_for(index, row_ids[i]);
        if (!*slot) {
            if (index->count == index->capacity) {
                if (index->capacity >> 30)
                    return -EFBIG;
                if (row_index_grow(index, 2 * index->capacity))
                    return -ENOMEM;
                slot = slot_for(index, row_ids[i]);
            }
            index->row_ids[index->count] = row_ids[i];
            *slot = (uint32_t)++index->count;
        }
        keys[i] = *slot - 1;
    }
    return 0;
}

uint64_t st_row_index_count(const st_row_index *index) {
    return index->count;
}

void st_row_index_rows(const st_row_index *index, uint32_t *row_ids) {
    memcpy(row_ids, index->row_ids, index->count * sizeof *row_ids);
}
