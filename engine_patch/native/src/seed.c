/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that another instance has sent go into the cache between steps. They come from outside, so all are checked first. */
#include <errno.h>
#include <string.h>

#include "core.h"

static int check_all(const st_layout *layout, const uint32_t *row_ids, const uint8_t *records, uint64_t count,
                     uint32_t *bad_row) {
    for (uint64_t i = 0; i < count; i++) {
        *bad_row = row_ids[i];
        if (row_ids[i] >= layout->row_count)
            return -ERANGE;
        if (st_record_check(layout, records + i * layout->record_bytes, row_ids[i]))
            return -EBADMSG;
    }
    return 0;
}

/* ST_MISS: a slot that wants the row's bytes. Otherwise the row is there already, or its set is full. */
static st_found claim(st_directory *directory, uint32_t row_id, uint32_t step, uint32_t *slot) {
    return directory->set_count ? st_directory_claim_row(directory, row_id, step, slot) : ST_FULL;
}

/* With pool lines the first level is the caller's memory, which cannot be filled from here. */
static int put_in_cache(st_core *core, st_layer *layer, uint32_t row_id, const uint8_t *record) {
    if (layer->lines)
        return 0;
    uint32_t slot;
    st_found found = claim(&layer->directory, row_id, core->step, &slot);
    if (found == ST_MISS)
        memcpy(st_dest(layer, slot), record, st_row_bytes(&layer->layout));
    return found != ST_FULL;
}

static int put_on_host(st_core *core, st_layer *layer, const st_layout *layout, uint32_t row_id,
                       const uint8_t *record) {
    uint32_t slot;
    st_found found = claim(&layer->host, row_id, core->step, &slot);
    if (found == ST_MISS)
        st_host_keep(layer, slot, layout, record);
    return found != ST_FULL;
}

int st_core_seed(st_core *core, uint32_t index, const st_layout *layout, const uint32_t *row_ids,
                 const uint8_t *records, uint64_t count, uint64_t *kept, uint32_t *bad_row) {
    *kept = 0;
    if (index >= core->layer_count || !st_same_geometry(layout, &core->layers[index].layout))
        return -EINVAL;
    if (st_core_busy(core))
        return -EBUSY;
    st_layer *layer = &core->layers[index];
    int rc = check_all(layout, row_ids, records, count, bad_row);
    if (rc < 0)
        return rc;
    /* Under a step of its own, so that a full set refuses further rows instead of evicting those just put in. */
    if (++core->step == 0)
        core->step = 1;
    uint64_t evictions = layer->directory.evictions;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *record = records + i * layout->record_bytes;
        if (st_owned(core, row_ids[i]))
            *kept += (uint64_t)(put_in_cache(core, layer, row_ids[i], record) ||
                                put_on_host(core, layer, layout, row_ids[i], record));
    }
    layer->stats.evictions += layer->directory.evictions - evictions;
    return 0;
}
