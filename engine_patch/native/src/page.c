/* SPDX-License-Identifier: Apache-2.0 */
/* Data pages and records: st_page.h says what each byte is. */
#include "st_page.h"

#include <errno.h>
#include <string.h>

enum { TAG_CRC_BYTES = 8, RECORD_ALIGN = 16 };

static uint32_t crc_table[256];

__attribute__((constructor)) static void crc_table_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
        crc_table[byte] = crc;
    }
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *bytes, size_t byte_count) {
    for (size_t i = 0; i < byte_count; i++)
        crc = (crc >> 8) ^ crc_table[(crc ^ bytes[i]) & 0xFF];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *bytes, size_t byte_count) {
    uint64_t wide = crc;
    for (; byte_count >= 8; bytes += 8, byte_count -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; byte_count; bytes++, byte_count--)
        crc = _mm_crc32_u8(crc, *bytes);
    return crc;
}

static int has_sse42;
__attribute__((constructor)) static void cpu_init(void) {
    __builtin_cpu_init();
    has_sse42 = __builtin_cpu_supports("sse4.2");
}
#endif

static uint32_t crc_continue(uint32_t raw, const void *bytes, size_t byte_count) {
#if defined(__x86_64__)
    if (has_sse42)
        return crc32c_sse42(raw, bytes, byte_count);
#endif
    return crc32c_portable(raw, bytes, byte_count);
}

uint32_t st_crc32c(uint32_t crc, const void *bytes, size_t byte_count) {
    return ~crc_continue(~crc, bytes, byte_count);
}

static uint32_t record_crc(const st_layout *layout, const uint8_t *row, uint32_t tag) {
    uint32_t raw = crc_continue(~layout->crc_seed, &tag, sizeof tag);
    return ~crc_continue(raw, row, st_row_bytes(layout));
}

int st_layout_init(st_layout *layout, uint64_t row_count, uint32_t payload_bytes, uint32_t scale_bytes,
                   const uint8_t table_uuid[16], uint32_t layer_id, uint32_t epoch, uint32_t stripe_count) {
    if (row_count == 0 || row_count >> 32 || payload_bytes == 0 || payload_bytes > ST_PAGE_BYTES ||
        scale_bytes > ST_PAGE_BYTES || stripe_count == 0)
        return -EINVAL;
    uint32_t used = payload_bytes + scale_bytes + TAG_CRC_BYTES;
    uint32_t record_bytes = (used + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
    uint32_t rows_per_page = (ST_PAGE_BYTES - ST_PAGE_HEADER_BYTES) / record_bytes;
    if (rows_per_page == 0)
        return -EINVAL;
    uint8_t identity[24];
    memcpy(identity, table_uuid, 16);
    memcpy(identity + 16, &layer_id, 4);
    memcpy(identity + 20, &epoch, 4);
    *layout = (st_layout){
        .row_count = row_count,
        .page_count = (row_count + rows_per_page - 1) / rows_per_page,
        .payload_bytes = payload_bytes,
        .scale_bytes = scale_bytes,
        .record_bytes = record_bytes,
        .rows_per_page = rows_per_page,
        .layer_id = layer_id,
        .epoch = epoch,
        .crc_seed = st_crc32c(0, identity, sizeof identity),
        .stripe_count = stripe_count,
    };
    return 0;
}

static st_page_header header_of(const st_layout *layout, uint64_t page_id) {
    return (st_page_header){
        .magic = ST_PAGE_MAGIC, .version = ST_FORMAT_VERSION, .page_id = (uint32_t)page_id, .epoch = layout->epoch};
}

st_fault st_page_header_check(const st_layout *layout, const uint8_t *page, uint64_t page_id) {
    static const st_page_header zero;
    st_page_header expected = header_of(layout, page_id);
    if (memcmp(page, &expected, sizeof expected) == 0)
        return ST_FAULT_NONE;
    return memcmp(page, &zero, sizeof zero) == 0 ? ST_FAULT_NOT_STAGED : ST_FAULT_HEADER;
}

st_fault st_record_check(const st_layout *layout, const uint8_t *record, uint64_t row_id) {
    uint32_t tag, crc;
    memcpy(&tag, record + st_row_bytes(layout), 4);
    memcpy(&crc, record + st_row_bytes(layout) + 4, 4);
    if (tag != (uint32_t)row_id)
        return ST_FAULT_TAG;
    return crc == record_crc(layout, record, tag) ? ST_FAULT_NONE : ST_FAULT_CRC;
}

static int all_zero(const uint8_t *bytes, size_t byte_count) {
    for (size_t i = 0; i < byte_count; i++)
        if (bytes[i])
            return 0;
    return 1;
}

st_fault st_page_verify(const st_layout *layout, const uint8_t *page, uint64_t page_id, uint64_t *row_id) {
    uint64_t row = page_id * layout->rows_per_page;
    *row_id = row;
    st_fault fault = st_page_header_check(layout, page, page_id);
    if (fault)
        return fault;
    uint64_t end = row + layout->rows_per_page < layout->row_count ? row + layout->rows_per_page : layout->row_count;
    const uint8_t *record = page + ST_PAGE_HEADER_BYTES;
    uint32_t used = st_row_bytes(layout) + TAG_CRC_BYTES;
    for (; row < end; row++, record += layout->record_bytes) {
        *row_id = row;
        if ((fault = st_record_check(layout, record, row)))
            return fault;
        if (!all_zero(record + used, layout->record_bytes - used))
            return ST_FAULT_PADDING;
    }
    return all_zero(record, (size_t)(page + ST_PAGE_BYTES - record)) ? ST_FAULT_NONE : ST_FAULT_PADDING;
}

/* Tag, CRC and padding behind a row that is in place. */
static void record_finish(const st_layout *layout, uint8_t *record, uint32_t tag) {
    uint32_t used = st_row_bytes(layout), crc = record_crc(layout, record, tag);
    memcpy(record + used, &tag, 4);
    memcpy(record + used + 4, &crc, 4);
    memset(record + used + TAG_CRC_BYTES, 0, layout->record_bytes - used - TAG_CRC_BYTES);
}

int st_records_encode(const st_layout *layout, const uint32_t *row_ids, uint64_t count, const uint8_t *rows,
                      uint8_t *records) {
    for (uint64_t i = 0; i < count; i++) {
        if (row_ids[i] >= layout->row_count)
            return -ERANGE;
        memcpy(records, rows, st_row_bytes(layout));
        record_finish(layout, records, row_ids[i]);
        rows += st_row_bytes(layout);
        records += layout->record_bytes;
    }
    return 0;
}

int st_pages_encode(const st_layout *layout, uint64_t page_first, uint64_t page_count, const uint8_t *weights,
                    const uint8_t *scales, uint8_t *out) {
    if (page_first + page_count > layout->page_count)
        return -ERANGE;
    uint64_t row = page_first * layout->rows_per_page;
    for (uint64_t page_id = page_first; page_id < page_first + page_count; page_id++, out += ST_PAGE_BYTES) {
        st_page_header header = header_of(layout, page_id);
        memcpy(out, &header, sizeof header);
        uint8_t *record = out + ST_PAGE_HEADER_BYTES;
        for (uint32_t i = 0; i < layout->rows_per_page && row < layout->row_count; i++, row++) {
            memcpy(record, weights, layout->payload_bytes);
            if (layout->scale_bytes)
                memcpy(record + layout->payload_bytes, scales, layout->scale_bytes);
            record_finish(layout, record, (uint32_t)row);
            weights += layout->payload_bytes;
            scales = layout->scale_bytes ? scales + layout->scale_bytes : scales;
            record += layout->record_bytes;
        }
        memset(record, 0, (size_t)(out + ST_PAGE_BYTES - record));
    }
    return 0;
}

int st_pages_verify(const st_layout *layout, uint64_t page_first, uint64_t page_count, const uint8_t *pages, int *fault,
                    uint64_t *page_id, uint64_t *row_id) {
    if (page_first + page_count > layout->page_count)
        return -ERANGE;
    for (uint64_t i = 0; i < page_count; i++) {
        st_fault found = st_page_verify(layout, pages + i * ST_PAGE_BYTES, page_first + i, row_id);
        if (found) {
            *fault = found;
            *page_id = page_first + i;
            return -EBADMSG;
        }
    }
    *fault = ST_FAULT_NONE;
    return 0;
}

int st_pages_unpack(const st_layout *layout, uint64_t page_first, uint64_t page_count, const uint8_t *pages,
                    uint8_t *weights, uint8_t *scales) {
    if (page_first + page_count > layout->page_count)
        return -ERANGE;
    uint64_t row = page_first * layout->rows_per_page;
    for (uint64_t p = 0; p < page_count; p++) {
        const uint8_t *record = pages + p * ST_PAGE_BYTES + ST_PAGE_HEADER_BYTES;
        for (uint32_t i = 0; i < layout->rows_per_page && row < layout->row_count; i++, row++) {
            memcpy(weights, record, layout->payload_bytes);
            weights += layout->payload_bytes;
            if (layout->scale_bytes) {
                memcpy(scales, record + layout->payload_bytes, layout->scale_bytes);
                scales += layout->scale_bytes;
            }
            record += layout->record_bytes;
        }
    }
    return 0;
}
