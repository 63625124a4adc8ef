/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a data page and a record: encode, verify, check one row.
 *
 * Must stay identical to contracts/slacktier/page.py; layout in docs/page-format.md.
 *
 * offset  type        field                      one data page, 4096 bytes
 * 0       u32         magic 0x47504C53 "SLPG"
 * 4       u16         format version
 * 6       u16         reserved, zero
 * 8       u32         page id, low 32 bits
 * 12      u32         epoch
 * 16      record[n]   payload | scales | tag u32 | crc u32 | zero padding to 16
 *         zero        to the end of the page
 */
#ifndef ST_PAGE_H
#define ST_PAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ST_PAGE_BYTES = 4096,
    ST_PAGE_HEADER_BYTES = 16,
    ST_SUPERBLOCK_PAGES = 2,
    ST_FORMAT_VERSION = 1,
};
#define ST_PAGE_MAGIC 0x47504C53u

typedef struct st_page_header {
    uint32_t magic;
    uint16_t version;
    uint16_t reserved;
    uint32_t page_id;
    uint32_t epoch;
} st_page_header;

_Static_assert(sizeof(st_page_header) == ST_PAGE_HEADER_BYTES, "page header");
_Static_assert(offsetof(st_page_header, page_id) == 8, "page id");
_Static_assert(offsetof(st_page_header, epoch) == 12, "epoch");

/* What every reader of a region knows and a record does not store. */
typedef struct st_layout {
    uint64_t row_count;
    uint64_t page_count;
    uint32_t payload_bytes;
    uint32_t scale_bytes;
    uint32_t record_bytes;
    uint32_t rows_per_page;
    uint32_t layer_id;
    uint32_t epoch;
    uint32_t crc_seed; /* CRC32C of table uuid, layer id, epoch */
    uint32_t stripe_count;
} st_layout;

/* Why bytes were refused. Kept apart from errno: these are about content. */
typedef enum st_fault {
    ST_FAULT_NONE = 0,
    ST_FAULT_NOT_STAGED = 1, /* the page is all zero where its header should be */
    ST_FAULT_HEADER = 2,
    ST_FAULT_TAG = 3,
    ST_FAULT_CRC = 4,
    ST_FAULT_PADDING = 5,
} st_fault;

/* Fill the derived fields. Returns 0, or -EINVAL for a geometry that no region has. */
int st_layout_init(st_layout *layout, uint64_t row_count, uint32_t payload_bytes, uint32_t scale_bytes,
                   const uint8_t table_uuid[16], uint32_t layer_id, uint32_t epoch, uint32_t stripe_count);

static inline uint32_t st_row_bytes(const st_layout *layout) {
    return layout->payload_bytes + layout->scale_bytes;
}

/* CRC32C (Castagnoli), continuing from crc; SSE4.2 where the processor has it. */
uint32_t st_crc32c(uint32_t crc, const void *bytes, size_t byte_count);

/* Is this the page of that id? Constant time; reads the header only. */
st_fault st_page_header_check(const st_layout *layout, const uint8_t *page, uint64_t page_id);

/* The record of row_id inside its page; no check. */
static inline const uint8_t *st_page_record(const st_layout *layout, const uint8_t *page, uint64_t row_id) {
    return page + ST_PAGE_HEADER_BYTES + (size_t)(row_id % layout->rows_per_page) * layout->record_bytes;
}

/* Does the record hold row_id of this table, layer and epoch, whole? Reads tag, CRC, payload, scales. */
st_fault st_record_check(const st_layout *layout, const uint8_t *record, uint64_t row_id);

/* Every bit of a page: header, records, padding, unused records. *row_id names the first bad row. */
st_fault st_page_verify(const st_layout *layout, const uint8_t *page, uint64_t page_id, uint64_t *row_id);

/* Encode page_count pages from page_first on into out (page_count * 4096 bytes).
 * weights, scales: rows from page_first * rows_per_page on, packed; scales may be NULL if scale_bytes is 0.
 * Returns 0, or -ERANGE if the pages reach past the table. */
int st_pages_encode(const st_layout *layout, uint64_t page_first, uint64_t page_count, const uint8_t *weights,
                    const uint8_t *scales, uint8_t *out);

/* Records of rows of any ids, row_bytes each and packed, into records (count * record_bytes). 0, or -ERANGE for an id
 * outside the table. */
int st_records_encode(const st_layout *layout, const uint32_t *row_ids, uint64_t count, const uint8_t *rows,
                      uint8_t *records);

/* Verify page_count pages. Returns 0 or -EBADMSG with *fault, *page_id and *row_id of the first bad one. */
int st_pages_verify(const st_layout *layout, uint64_t page_first, uint64_t page_count, const uint8_t *pages, int *fault,
                    uint64_t *page_id, uint64_t *row_id);

/* The inverse of encode without checks: weights and scales of whole pages, for digests of what was staged. */
int st_pages_unpack(const st_layout *layout, uint64_t page_first, uint64_t page_count, const uint8_t *pages,
                    uint8_t *weights, uint8_t *scales);

/* Test pattern: row bytes as a function of (seed, row id), so that any row can be checked without a copy.
 * Never a NaN, neither as FP8 E4M3 nor as BF16; E8M0 scales lie in 2^-7 .. 2^0. */
void st_pattern_fill(uint64_t seed, uint64_t row_first, uint64_t row_count, uint32_t payload_bytes,
                     uint32_t scale_bytes, uint8_t *weights, uint8_t *scales);

/* Rows that differ from the pattern: row_ids[row_count], rows packed payload|scales, row_stride apart.
 * ids < 0 stand for rows that another rank owns: they must be all zero. *first_bad is the index of the first. */
uint64_t st_pattern_check(uint64_t seed, const int64_t *row_ids, uint64_t row_count, uint32_t payload_bytes,
                          uint32_t scale_bytes, const uint8_t *rows, uint64_t row_stride, uint64_t *first_bad);

#ifdef __cplusplus
}
#endif
#endif
