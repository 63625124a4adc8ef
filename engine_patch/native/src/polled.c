/* SPDX-License-Identifier: Apache-2.0 */
#include "polled.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifdef ST_HAVE_URING
#include <liburing.h>

#include "st_page.h"

static int has_poll_queues(int fd) {
    static const char *const places[] = {"queue", "../queue"}; /* a partition's queue is its disk's */
    struct stat file;
    if (fstat(fd, &file) < 0 || !S_ISBLK(file.st_mode))
        return 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char path[80], answer = 0;
        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s/io_poll", major(file.st_rdev), minor(file.st_rdev),
                 places[i]);
        int setting = open(path, O_RDONLY | O_CLOEXEC);
        if (setting < 0)
            continue;
        ssize_t got = read(setting, &answer, 1);
        close(setting);
        return got == 1 && answer == '1';
    }
    return 0;
}

int st_file_is_polled(int fd) {
    struct io_uring ring;
    struct io_uring_cqe *answer;
    void *page = NULL;
    int is_polled = 0;
    if (!has_poll_queues(fd) || io_uring_queue_init(1, &ring, IORING_SETUP_IOPOLL) < 0)
        return 0;
    if (posix_memalign(&page, ST_PAGE_BYTES, ST_PAGE_BYTES) == 0) {
        io_uring_prep_read(io_uring_get_sqe(&ring), fd, page, ST_PAGE_BYTES, 0);
        is_polled =
            io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &answer) == 0 && answer->res == ST_PAGE_BYTES;
    }
    io_uring_queue_exit(&ring);
    free(page);
    return is_polled;
}
#else
int st_file_is_polled(int fd) {
    return 0;
}
#endif
