/* SPDX-License-Identifier: Apache-2.0 */
/* What runs over the rows of a call, included by directory.c once per instruction set with VARIANT(name), TARGET,
 * MATCH(tags, key) and DONE() defined; undefines them again. */

TARGET static void VARIANT(prefetch)(const st_directory *directory, const uint32_t *row_ids, uint32_t count,
                                     uint32_t *sets) {
    for (uint32_t i = 0; i < count; i++)
        sets[i] = set_of(directory, row_ids[i]);
    for (uint32_t i = 0; i < count; i++) {
        __builtin_prefetch(directory->tags[sets[i]], 1);
        __builtin_prefetch(&directory->meta[sets[i]], 1);
    }
    for (uint32_t i = 0; directory->ghosts && i < count; i++)
        __builtin_prefetch(&directory->ghosts[sets[i]], 1);
    DONE();
}

TARGET static st_claims VARIANT(claim)(st_directory *directory, const uint32_t *row_ids, const uint32_t *sets,
                                       uint32_t count, uint32_t step, uint32_t *slots) {
    st_claims claims = {0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t set = sets[i];
        st_set_meta *meta = &directory->meta[set];
        if (meta->step != step) {
            meta->step = step;
            meta->pinned = meta->fresh = 0;
        }
        uint32_t found = MATCH(directory->tags[set], row_ids[i] + 1);
        if (__builtin_expect(found == 0, 0)) {
            found = claim_way(directory, row_ids[i], set, MATCH(directory->tags[set], 0));
            claims.misses |= (uint64_t)(found != 0) << i;
            claims.full |= (uint64_t)(found == 0) << i;
            slots[i] = set * ST_WAYS + (found ? (uint32_t)__builtin_ctz(found) : 0);
            continue;
        }
        meta->pinned |= (uint16_t)found;
        meta->used |= (uint16_t)found;
        claims.repeats |= (uint64_t)((meta->fresh & found) != 0) << i;
        slots[i] = set * ST_WAYS + (uint32_t)__builtin_ctz(found);
    }
    DONE();
    return claims;
}

#undef VARIANT
#undef TARGET
#undef MATCH
#undef DONE
