/* SPDX-License-Identifier: Apache-2.0 */
/* What a core does where a sandbox refuses io_uring: each case in a child with a seccomp filter of its own. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "pattern_core.h"

/* io_uring_setup of so many entries and more gives error, from now on and for good. */
static void refuse_rings(uint32_t entries_from, int error) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, entries_from, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof steps / sizeof *steps, .filter = steps};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
}

static void open_and_read(int error) {
    st_layout layouts[2] = {layout_of(1, 1), layout_of(14, 1)};
    fault_plan plans[2];
    st_source *sources[2];
    for (int k = 0; k < 2; k++) {
        plans[k] = (fault_plan){.pages = make_pages(&layouts[k], seeds[k]), .page_count = layouts[k].page_count};
        CHECK(st_source_open_callback(read_page, &plans[k], &layouts[k], &sources[k]) == 0);
    }
    st_core *core = open_core(sources[0], sources[1], 400, 0, 1, ST_BACKEND_AUTO);
    int reason = 0;
    CHECK(st_core_backend(core, &reason) == ST_BACKEND_POSIX && reason == -error);
    run_steps(core, 10, 0, 1);
    st_core_close(core);
    const st_core_config only_uring = {
        .layer_count = 1, .tp = 1, .queue_depth = 64, .backend = ST_BACKEND_URING, .lookups_max = 16};
    const st_layer_config layer = {.source_count = 1, .sources = {sources[0]}};
    CHECK(st_core_open(&only_uring, &layer, &core) == -error);
}

static void test_refused(uint32_t entries_from, int error) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        refuse_rings(entries_from, error);
        open_and_read(error);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    test_refused(0, EPERM);
    test_refused(0, ENOSYS);
    test_refused(32, ENOMEM); /* the probe's small ring is given, the readers' are not */
    puts("test_sandbox: ok");
    return 0;
}
