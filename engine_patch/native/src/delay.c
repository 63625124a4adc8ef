/* SPDX-License-Identifier: Apache-2.0 */
#include "delay.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "slacktier_io.h"

#define SHARED_MAGIC 0x32594C4544544C53ull /* "SLTDELY2" */

typedef struct shared_queue {
    uint64_t magic;
    pthread_mutex_t lock; /* robust: a process killed inside must not stop the others */
    double a_us, b_us, c_us;
    uint64_t busy_until_ns;
} shared_queue;

struct st_delay_device {
    shared_queue *queue;
    char name[65];
};

static int queue_init(shared_queue *queue) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int rc = -pthread_mutex_init(&queue->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    queue->a_us = queue->b_us = queue->c_us = 0;
    queue->busy_until_ns = 0;
    if (rc == 0)
        __atomic_store_n(&queue->magic, SHARED_MAGIC, __ATOMIC_RELEASE);
    return rc;
}

static int valid_name(const char *name) {
    size_t length = strlen(name);
    if (length == 0 || length > 64)
        return 0;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == length;
}

int st_delay_open(const char *name, st_delay_device **out) {
    char path[128];
    if (!valid_name(name))
        return -EINVAL;
    snprintf(path, sizeof path, "/slacktier-emulated-%u-%s", (unsigned)getuid(), name);
    int fd = shm_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = 0;
    shared_queue *queue = MAP_FAILED;
    if (flock(fd, LOCK_EX) < 0 || ftruncate(fd, sizeof(shared_queue)) < 0)
        rc = -errno;
    if (rc == 0)
        queue = mmap(NULL, sizeof *queue, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (rc == 0 && queue == MAP_FAILED)
        rc = -errno;
    if (rc == 0 && queue->magic != SHARED_MAGIC)
        rc = queue_init(queue);
    flock(fd, LOCK_UN); /* by hand: the mapping keeps the open file, and with it the lock, alive after close */
    close(fd);
    st_delay_device *device = rc == 0 ? malloc(sizeof *device) : NULL;
    if (rc == 0 && !device)
        rc = -ENOMEM;
    if (rc < 0) {
        if (queue != MAP_FAILED)
            munmap(queue, sizeof *queue);
        return rc;
    }
    device->queue = queue;
    strcpy(device->name, name); /* valid_name bounds it */
    *out = device;
    return 0;
}

void st_delay_close(st_delay_device *device) {
    if (!device)
        return;
    munmap(device->queue, sizeof *device->queue);
    free(device);
}

int st_delay_same(const st_delay_device *a, const st_delay_device *b) {
    return strcmp(a->name, b->name) == 0;
}

static int queue_lock(shared_queue *queue) {
    int rc = pthread_mutex_lock(&queue->lock);
    if (rc == EOWNERDEAD) /* what the lock guards is a time and three numbers: any state of them is usable */
        rc = pthread_mutex_consistent(&queue->lock);
    return -rc;
}

static int valid_us(double us) {
    return isfinite(us) && us >= 0 && us <= ST_DELAY_US_MAX;
}

int st_delay_set(const char *device_name, double a_us, double b_us, double c_us) {
    if (!valid_us(a_us) || !valid_us(b_us) || !valid_us(c_us))
        return -EINVAL;
    st_delay_device *device;
    int rc = st_delay_open(device_name, &device);
    if (rc < 0)
        return rc;
    if ((rc = queue_lock(device->queue)) == 0) {
        device->queue->a_us = a_us;
        device->queue->b_us = b_us;
        device->queue->c_us = c_us;
        device->queue->busy_until_ns = 0; /* what was owed was owed by the old model */
        pthread_mutex_unlock(&device->queue->lock);
    }
    st_delay_close(device);
    return rc;
}

/* A model times millions of pages can pass what a clock holds; a day is as good as never. */
static uint64_t to_ns(double us) {
    return us < 86400e6 ? (uint64_t)(us * 1e3) : 86400000000000u;
}

static void submit_locked(shared_queue *queue, uint64_t now_ns, const uint64_t *pages, uint32_t count,
                          uint64_t *release_ns) {
    uint64_t later_pages = 0;
    for (uint32_t k = 0; k < count; k++)
        later_pages += pages[k];
    uint64_t start_ns = queue->busy_until_ns > now_ns ? queue->busy_until_ns : now_ns;
    for (uint32_t k = 0; k < count; k++) {
        later_pages -= pages[k];
        double own_us = queue->b_us * (double)pages[k];
        double delay_us = queue->a_us + own_us + queue->c_us * (double)later_pages;
        release_ns[k] = pages[k] ? start_ns + to_ns(delay_us) : now_ns;
        start_ns += to_ns(own_us);
    }
    queue->busy_until_ns = start_ns;
}

int st_delay_submit(st_delay_device *device, uint64_t now_ns, const uint64_t *pages, uint32_t count,
                    uint64_t *release_ns) {
    int rc = queue_lock(device->queue);
    if (rc < 0)
        return rc;
    submit_locked(device->queue, now_ns, pages, count, release_ns);
    pthread_mutex_unlock(&device->queue->lock);
    return 0;
}

int st_delay_submit_early(st_delay_device *device, uint64_t now_ns, uint64_t pages, uint64_t *release_ns) {
    int rc = queue_lock(device->queue);
    if (rc < 0)
        return rc;
    int alone = device->queue->c_us == 0;
    if (alone)
        submit_locked(device->queue, now_ns, &pages, 1, release_ns);
    pthread_mutex_unlock(&device->queue->lock);
    return alone;
}
