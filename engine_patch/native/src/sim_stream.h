/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a stream of lookups; shared by the simulators and the counters. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "st_cache_sim.h"

/* Runs BODY for every lookup of the stream in order of use, with `key` and `is_decode` set. The stream is
 * walked by five simulators whose per-lookup work is a few instructions, so a callback would dominate. */
#define FOR_EACH_LOOKUP(stream, BODY)                                     \
    for (uint64_t at_ = 0; at_ < (stream)->token_count; at_++) {          \
        const uint32_t position_ = (stream)->order[at_];                  \
        const int is_decode = (stream)->decode[position_];                \
        const uint64_t end_ = (stream)->first[position_ + 1];             \
        for (uint64_t i_ = (stream)->first[position_]; i_ < end_; i_++) { \
            const uint32_t key = (stream)->keys[i_];                      \
            if ((stream)->skip && (stream)->skip[key])                    \
                continue;                                                 \
            BODY                                                          \
        }                                                                 \
    }

#endif
