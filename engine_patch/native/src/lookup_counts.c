/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said of a trace without a cache: distinct rows, use counts, reuse within a session. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim_stream.h"

static int in_phase(st_sim_phase phase, int is_decode) {
    return phase == ST_SIM_ALL || (phase == ST_SIM_DECODE) == !!is_decode;
}

int st_sim_distinct(const st_sim_stream *stream, const uint64_t *bounds, uint64_t range_count, st_sim_phase phase,
                    const uint32_t *group_of, uint32_t *lookups, uint32_t *distinct) {
    if (range_count >= UINT32_MAX || (range_count && bounds[range_count] > stream->token_count))
        return -EINVAL;
    uint32_t *stamps = calloc(stream->key_count + 1, sizeof *stamps);
    if (!stamps)
        return -ENOMEM;
    for (uint64_t range = 0; range < range_count; range++) {
        st_sim_stream part = *stream;
        part.order += bounds[range];
        part.token_count = bounds[range + 1] - bounds[range];
        lookups[range] = distinct[range] = 0;
        FOR_EACH_LOOKUP(&part, {
            if (!in_phase(phase, is_decode))
                continue;
            uint32_t *stamp = &stamps[group_of ? group_of[key] : key];
            lookups[range]++;
            distinct[range] += *stamp != range + 1;
            *stamp = (uint32_t)range + 1;
        })
    }
    free(stamps);
    return 0;
}

void st_sim_count(const st_sim_stream *stream, st_sim_phase phase, uint32_t *counts) {
    FOR_EACH_LOOKUP(stream, {
        if (in_phase(phase, is_decode))
            counts[key]++;
    })
}

int st_sim_handoff(const st_sim_stream *stream, const uint64_t *session_offsets, uint64_t session_count,
                   const uint32_t *turn_start, st_handoff *out) {
    /* 1 + the first position of the session that uses the key; positions only rise, so an older session's
     * value is below the session's first position and needs no clearing. */
    uint32_t *first_use = calloc(stream->key_count + 1, sizeof *first_use);
    if (!first_use)
        return -ENOMEM;
    memset(out, 0, sizeof *out * ST_SIM_CLASSES);
    for (uint64_t session = 0; session < session_count; session++) {
        uint64_t start = session_offsets[session], end = session_offsets[session + 1], first_turn = end;
        for (uint64_t position = start; position < end; position++) {
            int is_decode = stream->decode[position];
            if (is_decode && first_turn == end)
                first_turn = turn_start[position];
            int in_first = is_decode && turn_start[position] == first_turn;
            for (uint64_t i = stream->first[position]; i < stream->first[position + 1]; i++) {
                uint32_t key = stream->keys[i];
                int seen = first_use[key] > start;
                if (!seen)
                    first_use[key] = (uint32_t)position + 1;
                if (!is_decode)
                    continue;
                uint64_t used_at = first_use[key] - 1;
                int in_prompt = seen && used_at < turn_start[position];
                st_handoff *reuse = &out[stream->class_of[key]];
                reuse->lookups++;
                reuse->prompt += in_prompt;
                reuse->session += seen && used_at < position;
                reuse->first_lookups += in_first;
                reuse->first_prompt += in_first && in_prompt;
            }
        }
    }
    free(first_use);
    return 0;
}
