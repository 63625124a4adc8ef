/* SPDX-License-Identifier: Apache-2.0 */
/* The test pattern: what row id's bytes are in a table that make-checkpoint wrote. See st_page.h. */
#include <string.h>

#include "st_page.h"

/* Clearing bit 6 of every byte rules out the FP8 NaNs 0x7F and 0xFF, and clears a BF16's top exponent bit. */
static const uint64_t payload_mask = 0xBFBFBFBFBFBFBFBFull;

static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static void row_pattern(uint64_t seed, uint64_t row_id, uint32_t payload_bytes, uint32_t scale_bytes, uint8_t *payload,
                        uint8_t *scales) {
    uint64_t key = mix(seed ^ mix(row_id));
    uint32_t at = 0;
    for (uint64_t word_index = 0; at < payload_bytes; word_index++) {
        uint64_t word = mix(key + word_index) & payload_mask;
        uint32_t byte_count = payload_bytes - at < 8 ? payload_bytes - at : 8;
        memcpy(payload + at, &word, byte_count);
        at += byte_count;
    }
    for (uint32_t i = 0; i < scale_bytes; i++)
        scales[i] = (uint8_t)(120 + ((mix(~key + i / 8) >> (i % 8 * 8)) & 7));
}

void st_pattern_fill(uint64_t seed, uint64_t row_first, uint64_t row_count, uint32_t payload_bytes,
                     uint32_t scale_bytes, uint8_t *weights, uint8_t *scales) {
    for (uint64_t i = 0; i < row_count; i++)
        row_pattern(seed, row_first + i, payload_bytes, scale_bytes, weights + i * payload_bytes,
                    scale_bytes ? scales + i * scale_bytes : NULL);
}

uint64_t st_pattern_check(uint64_t seed, const int64_t *row_ids, uint64_t row_count, uint32_t payload_bytes,
                          uint32_t scale_bytes, const uint8_t *rows, uint64_t row_stride, uint64_t *first_bad) {
    uint8_t expected[ST_PAGE_BYTES];
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < row_count; i++) {
        if (row_ids[i] < 0)
            memset(expected, 0, payload_bytes + scale_bytes);
        else
            row_pattern(seed, (uint64_t)row_ids[i], payload_bytes, scale_bytes, expected, expected + payload_bytes);
        if (memcmp(expected, rows + i * row_stride, payload_bytes + scale_bytes)) {
            if (bad_count == 0)
                *first_bad = i;
            bad_count++;
        }
    }
    return bad_count;
}
