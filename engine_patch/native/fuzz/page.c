/* SPDX-License-Identifier: Apache-2.0 */
/* The page parser: raw bytes under any geometry, and right pages with a few edits. What it calls sound is encoded
 * again and must come out the same. */
#include "fuzz.h"

static void check_page(const st_layout *layout, const uint8_t *page, uint64_t page_id) {
    uint8_t weights[ST_PAGE_BYTES], scales[ST_PAGE_BYTES], again[ST_PAGE_BYTES];
    uint64_t row_id;
    st_fault fault = st_page_verify(layout, page, page_id, &row_id);
    fuzz_require(row_id < layout->row_count);
    for (uint64_t row = page_id * layout->rows_per_page; row <= row_id; row++) {
        const uint8_t *record = st_page_record(layout, page, row);
        fuzz_require(record + layout->record_bytes <= page + ST_PAGE_BYTES);
        if (fault == ST_FAULT_NONE)
            fuzz_require(st_record_check(layout, record, row) == ST_FAULT_NONE);
    }
    if (fault != ST_FAULT_NONE)
        return;
    fuzz_require(st_pages_unpack(layout, page_id, 1, page, weights, scales) == 0);
    fuzz_require(st_pages_encode(layout, page_id, 1, weights, scales, again) == 0);
    fuzz_require(memcmp(page, again, ST_PAGE_BYTES) == 0);
}

/* u64 rows | u32 payload | u32 scales | u32 page id | page */
static void raw_page(const uint8_t *data, size_t size) {
    uint8_t page[ST_PAGE_BYTES] = {0};
    struct {
        uint64_t row_count;
        uint32_t payload_bytes, scale_bytes, page_id, reserved;
    } asked = {0};
    memcpy(&asked, data, size < sizeof asked ? size : sizeof asked);
    size_t used = size < sizeof asked ? size : sizeof asked;
    memcpy(page, data + used, size - used < ST_PAGE_BYTES ? size - used : ST_PAGE_BYTES);
    st_layout layout;
    if (st_layout_init(&layout, asked.row_count, asked.payload_bytes, asked.scale_bytes,
                       (const uint8_t *)"slacktier-fuzzed", 1, 3, 1) < 0)
        return;
    fuzz_require(layout.rows_per_page * layout.record_bytes + ST_PAGE_HEADER_BYTES <= ST_PAGE_BYTES);
    check_page(&layout, page, asked.page_id % layout.page_count);
}

static void edited_page(const uint8_t *data, size_t size) {
    uint8_t pages[FUZZ_PAGES_MAX * ST_PAGE_BYTES], right[ST_PAGE_BYTES];
    st_layout layout = fuzz_layout();
    fuzz_pages(&layout, pages);
    uint64_t page_id = data[0] % layout.page_count, row_id;
    uint8_t *page = pages + page_id * ST_PAGE_BYTES;
    memcpy(right, page, sizeof right);
    fuzz_edit(page, ST_PAGE_BYTES, data + 1, size - 1);
    check_page(&layout, page, page_id);
    if (size < 24) /* CRC32C finds every change of so few bytes in a record; what it does not cover is compared */
        fuzz_require((st_page_verify(&layout, page, page_id, &row_id) == ST_FAULT_NONE) ==
                     (memcmp(page, right, sizeof right) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    if (data[0] & 1)
        raw_page(data + 1, size - 1);
    else
        edited_page(data + 1, size - 1);
    return 0;
}
