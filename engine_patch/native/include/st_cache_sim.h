/* SPDX-License-Identifier: Apache-2.0 */
/* Cache simulators for `slacktier characterize`: what a cache of n rows would have missed on a trace.
 *
 * Rows are renamed to keys 0 .. key_count-1 first, so that every simulator keeps its state in plain arrays
 * indexed by key and never probes a hash table. A stream is the rows of all tokens in trace order and the
 * order in which a server with many sessions would have used the tokens.
 *
 * Every lookup goes through the cache, in order; misses are counted by phase (0 prefill, 1 decode) and by class
 * (the n-gram order of the row's column). All functions return 0, a count, or -errno, and touch no global state.
 */
#ifndef ST_CACHE_SIM_H
#define ST_CACHE_SIM_H

#include <stdint.h>

#include "slacktier_io.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ST_SIM_PHASES = 2,
    ST_SIM_CLASSES = 8,    /* column classes; a class index is below it */
    ST_SIM_SIZES_MAX = 64, /* cache sizes in one LRU pass */
};

typedef struct st_sim_stream {
    const uint32_t *order; /* [token_count] token positions in order of use */
    uint64_t token_count;
    const uint64_t *first;   /* [positions + 1] position p looks up keys[first[p] .. first[p + 1]) */
    const uint32_t *keys;    /* each below key_count */
    uint64_t key_count;      /* below 2^31 */
    const uint8_t *decode;   /* [positions] 1 where the token was decoded */
    const uint8_t *class_of; /* [key_count] each below ST_SIM_CLASSES */
    const uint8_t *skip;     /* [key_count] 1: lookups of it are left out; NULL: none is */
} st_sim_stream;

/* Row ids to keys, in order of first appearance. */
typedef struct st_row_index st_row_index;
st_row_index *st_row_index_open(void); /* NULL: out of memory */
void st_row_index_close(st_row_index *index);
int st_row_index_add(st_row_index *index, const uint32_t *row_ids, uint64_t count, uint32_t *keys);
uint64_t st_row_index_count(const st_row_index *index);
/* The row of each key: row_ids[st_row_index_count()]. */
void st_row_index_rows(const st_row_index *index, uint32_t *row_ids);

/* Misses of an LRU cache at each of size_count sizes, in one pass over stack distances (Mattson 1970).
 * rows[size_count] ascending; misses[size_count][phase][class]. -EFBIG past 2^32 - 1 lookups. */
int st_sim_lru(const st_sim_stream *stream, const uint64_t *rows, uint32_t size_count, uint64_t *misses);

/* One cache of `rows` rows; misses[phase][class].
 * clock      one ring; a hit sets the row's bit, the hand clears bits until it finds a clear one
 * s3fifo     10 % small queue, main queue, ghost of as many entries as main; a row is promoted at its second hit
 * directory  the row cache's own directory, with that policy; row_of[key_count] is the row id of each key */
int st_sim_clock(const st_sim_stream *stream, uint64_t rows, uint64_t *misses);
int st_sim_s3fifo(const st_sim_stream *stream, uint64_t rows, uint64_t *misses);
int st_sim_directory(const st_sim_stream *stream, const uint32_t *row_of, st_cache_policy policy, uint64_t rows,
                     uint64_t *misses);

typedef enum st_sim_phase {
    ST_SIM_ALL = 0,
    ST_SIM_DECODE = 1,
    ST_SIM_PREFILL = 2,
} st_sim_phase;

/* For each of range_count ranges of the order, [bounds[i], bounds[i + 1]): lookups of that phase and how many
 * distinct groups they name. group_of[key_count] maps a key to its group, each below key_count (a page, say);
 * NULL counts the keys themselves. */
int st_sim_distinct(const st_sim_stream *stream, const uint64_t *bounds, uint64_t range_count, st_sim_phase phase,
                    const uint32_t *group_of, uint32_t *lookups, uint32_t *distinct);

/* counts[key_count] += lookups of that phase, by key. */
void st_sim_count(const st_sim_stream *stream, st_sim_phase phase, uint32_t *counts);

typedef struct st_handoff {
    uint64_t lookups;       /* decode lookups */
    uint64_t prompt;        /* of them, the row was used before this turn's first decoded token */
    uint64_t session;       /* used before this token */
    uint64_t first_lookups; /* decode lookups of the session's first decoded turn */
    uint64_t first_prompt;  /* of them, the row was used before that turn */
} st_handoff;

/* How many decode lookups name a row that the same session used before; the order is the trace's own here,
 * session s being positions [session_offsets[s], session_offsets[s + 1]).
 * turn_start[positions] is the first position of a position's turn; out[ST_SIM_CLASSES]. */
int st_sim_handoff(const st_sim_stream *stream, const uint64_t *session_offsets, uint64_t session_count,
                   const uint32_t *turn_start, st_handoff *out);

#ifdef __cplusplus
}
#endif
#endif
