/* SPDX-License-Identifier: Apache-2.0 */
/* Body of st_directory_claim, included by directory.c once per instruction set with
 * CLAIM_NAME, CLAIM_TARGET, CLAIM_MATCH(tags, key) and CLAIM_DONE() defined; undefines them again. */

CLAIM_TARGET static void CLAIM_NAME(st_directory *directory, const uint32_t *row_ids, const uint32_t *sets,
                                    uint32_t count, uint32_t step, st_lookup_answer *answers) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t set = sets[i];
        st_set_meta *meta = &directory->meta[set];
        if (meta->step != step) {
            meta->step = step;
            meta->pinned = meta->fresh = 0;
        }
        uint32_t found = CLAIM_MATCH(directory->tags[set], row_ids[i] + 1);
        if (__builtin_expect(found == 0, 0)) {
            answers[i] = claim_miss(directory, row_ids[i], set, CLAIM_MATCH(directory->tags[set], 0));
            continue;
        }
        meta->pinned |= (uint16_t)found;
        meta->used |= (uint16_t)found;
        answers[i].kind = meta->fresh & found ? ST_REPEAT : ST_HIT;
        answers[i].slot = set * ST_WAYS + (uint32_t)__builtin_ctz(found);
    }
    CLAIM_DONE();
}

#undef CLAIM_NAME
#undef CLAIM_TARGET
#undef CLAIM_MATCH
#undef CLAIM_DONE
