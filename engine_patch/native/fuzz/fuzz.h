/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz targets share: a small table of the test pattern, and bytes that are right but for a few edits. */
#ifndef ST_FUZZ_H
#define ST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "slacktier_io.h"

enum { FUZZ_ROWS = 100, FUZZ_PAYLOAD = 20, FUZZ_SCALES = 4, FUZZ_SEED = 5, FUZZ_PAGES_MAX = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A finding: the fuzzer stops here and keeps the input. */
static inline void fuzz_require(int condition) {
    if (!condition)
        abort();
}

static inline st_layout fuzz_layout(void) {
    st_layout layout;
    fuzz_require(st_layout_init(&layout, FUZZ_ROWS, FUZZ_PAYLOAD, FUZZ_SCALES, (const uint8_t *)"slacktier-fuzzed", 1,
                                3, 1) == 0);
    return layout;
}

static inline void fuzz_pages(const st_layout *layout, uint8_t pages[FUZZ_PAGES_MAX * ST_PAGE_BYTES]) {
    uint8_t weights[FUZZ_ROWS * FUZZ_PAYLOAD], scales[FUZZ_ROWS * FUZZ_SCALES];
    fuzz_require(layout->page_count <= FUZZ_PAGES_MAX);
    st_pattern_fill(FUZZ_SEED, 0, FUZZ_ROWS, FUZZ_PAYLOAD, FUZZ_SCALES, weights, scales);
    fuzz_require(st_pages_encode(layout, 0, layout->page_count, weights, scales, pages) == 0);
}

/* Each three bytes of the input: where in bytes, and what to flip there. A checksum lets little else through, so the
 * code behind it sees only inputs that began as right ones. */
static inline void fuzz_edit(uint8_t *bytes, size_t byte_count, const uint8_t *edits, size_t edit_bytes) {
    for (; edit_bytes >= 3; edits += 3, edit_bytes -= 3)
        bytes[(edits[0] | (size_t)edits[1] << 8) % byte_count] ^= edits[2];
}

#endif
