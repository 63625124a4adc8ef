/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the product switched off on purpose: a simulator that finds nothing wrong then would prove nothing. */
#include <string.h>

#include "directory.h"
#include "sim.h"

st_fault __real_st_record_check(const st_layout *layout, const uint8_t *record, uint64_t row_id);
st_fault __wrap_st_record_check(const st_layout *layout, const uint8_t *record, uint64_t row_id);
void __real_st_directory_forget(st_directory *directory, uint32_t slot);
void __wrap_st_directory_forget(st_directory *directory, uint32_t slot);

static int without_crc, without_tag, without_forgetting;
const char *const sim_break_names = "crc, tag, forget";

int sim_break(const char *name) {
    without_crc |= !strcmp(name, "crc");
    without_tag |= !strcmp(name, "tag");
    without_forgetting |= !strcmp(name, "forget");
    return without_crc | without_tag | without_forgetting ? 0 : -1;
}

st_fault __wrap_st_record_check(const st_layout *layout, const uint8_t *record, uint64_t row_id) {
    uint32_t tag;
    memcpy(&tag, record + st_row_bytes(layout), sizeof tag);
    st_fault fault = __real_st_record_check(layout, record, without_tag ? tag : row_id);
    return without_crc && fault == ST_FAULT_CRC ? ST_FAULT_NONE : fault;
}

void __wrap_st_directory_forget(st_directory *directory, uint32_t slot) {
    if (!without_forgetting)
        __real_st_directory_forget(directory, slot);
}
