/* SPDX-License-Identifier: Apache-2.0 */
/* Usage: sim [--seed N] [--rows N] [--era N] [--break RULE]
 *
 * Prints one JSON object; exits with 1 at the first thing that is wrong, after saying how to see it again. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

static uint64_t seed, era_first, era_end = UINT64_MAX, rows_wanted = 10000000, era_now, all_digest;
static const char *broken;

void sim_fail(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fprintf(stderr, "sim: seed %lu: ", (unsigned long)seed);
    vfprintf(stderr, format, rest);
    fprintf(stderr, "; digest of the era %016lx\n", (unsigned long)sim_digest());
    fprintf(stderr, "sim: see it again with --seed %lu --era %lu%s%s\n", (unsigned long)seed, (unsigned long)era_now,
            broken ? " --break " : "", broken ? broken : "");
    va_end(rest);
    exit(1);
}

static uint64_t number(const char *text, const char *option) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-') {
        fprintf(stderr, "sim: %s %s: expected a number\n", option, text);
        exit(2);
    }
    return value;
}

static void parse(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *option = argv[i], *value = argv[i + 1];
        if (!strcmp(option, "--seed")) {
            seed = number(value, option);
        } else if (!strcmp(option, "--rows")) {
            rows_wanted = number(value, option);
        } else if (!strcmp(option, "--era")) {
            era_first = number(value, option);
            era_end = era_first + 1;
        } else if (!strcmp(option, "--break") && sim_break(value) == 0) {
            broken = value;
        } else {
            fprintf(stderr, "sim: %s %s: expected --seed N, --rows N, --era N or --break one of %s\n", option, value,
                    sim_break_names);
            exit(2);
        }
    }
    if (argc % 2 == 0) {
        fprintf(stderr, "sim: %s: needs a value\n", argv[argc - 1]);
        exit(2);
    }
}

static void print_totals(void) {
    printf("{\"seed\": %lu, \"eras\": %lu, \"steps\": %lu, \"lookups\": %lu, \"rows_compared\": %lu, "
           "\"slots_compared\": %lu, \"wrong_rows\": %lu, ",
           seed, sim_total.eras, sim_total.steps, sim_total.lookups, sim_total.rows_compared, sim_total.slots_compared,
           sim_total.wrong_rows);
    printf("\"failed_steps\": %lu, \"timed_out_steps\": %lu, \"refused_steps\": %lu, \"retries\": %lu, "
           "\"bad_records\": %lu, \"evictions\": %lu, \"spills\": %lu, \"resizes\": %lu, \"switches\": %lu, "
           "\"links_mended\": %lu, ",
           sim_total.failed_steps, sim_total.timed_out_steps, sim_total.refused_steps, sim_total.retries,
           sim_total.bad_records, sim_total.evictions, sim_total.spills, sim_total.resizes, sim_total.switches,
           sim_total.links_mended);
    printf("\"reads\": {");
    for (int kind = 0; kind < SIM_FAULT_KINDS; kind++)
        printf("%s\"%s\": %lu", kind ? ", " : "", sim_fault_names[kind], sim_fault_counts[kind]);
    printf("}, \"digest\": \"%016lx\"}\n", all_digest);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    sim_seed(seed);
    sim_devices_init();
    for (era_now = era_first; era_now < era_end && sim_total.rows_compared < rows_wanted; era_now++) {
        sim_digest_reset(0);
        sim_era(seed, era_now);
        all_digest = all_digest * 31 ^ sim_digest();
    }
    print_totals();
    return 0;
}
