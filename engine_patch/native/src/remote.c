/* SPDX-License-Identifier: Apache-2.0 */
/* A remote source's link: one fetch at a time while it is up, and who waits for it to go down or come back. */
#include "remote.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "core.h"

enum { LINK_DOWN = 1, LINK_CANCELED = 2 };

struct st_link {
    st_remote remote;
    void *context;
    pthread_mutex_t fetching;
    uint32_t word; /* futex: LINK_ flags */
    int32_t error;
    uint64_t down_since_ns;
};

static uint32_t flags_of(const struct st_link *link) {
    return __atomic_load_n(&link->word, __ATOMIC_ACQUIRE);
}

static void wake_all(struct st_link *link) {
    st_futex_wake(&link->word, INT_MAX);
}

/* With `fetching` held. */
static void take_down(struct st_link *link, int error) {
    __atomic_store_n(&link->error, error, __ATOMIC_RELAXED);
    __atomic_store_n(&link->down_since_ns, st_now_ns(), __ATOMIC_RELAXED);
    __atomic_or_fetch(&link->word, LINK_DOWN, __ATOMIC_RELEASE);
    wake_all(link);
}

int st_source_open_remote(const st_remote *remote, void *context, const st_layout *layout, int up, st_source **out) {
    if (!remote->fetch || remote->rows_max == 0 || remote->timeout_ns == 0)
        return -EINVAL;
    struct st_link *link = calloc(1, sizeof *link);
    st_source *source = link ? st_source_new(ST_SOURCE_REMOTE, layout) : NULL;
    if (!source) {
        free(link);
        return -ENOMEM;
    }
    link->remote = *remote;
    link->context = context;
    pthread_mutex_init(&link->fetching, NULL);
    if (!up)
        take_down(link, -ENOTCONN);
    source->link = link;
    *out = source;
    return 0;
}

void st_link_close(struct st_link *link) {
    if (!link)
        return;
    if (link->remote.close)
        link->remote.close(link->context);
    pthread_mutex_destroy(&link->fetching);
    free(link);
}

void *st_link_context(const struct st_link *link) {
    return link->context;
}

uint32_t st_link_rows_max(const struct st_link *link) {
    return link->remote.rows_max;
}

uint64_t st_link_timeout_ns(const struct st_link *link) {
    return link->remote.timeout_ns;
}

int st_link_fetch(struct st_link *link, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                  uint64_t deadline_ns) {
    pthread_mutex_lock(&link->fetching);
    int rc = flags_of(link) & LINK_DOWN ? __atomic_load_n(&link->error, __ATOMIC_RELAXED) : 0;
    if (rc == 0) {
        rc = link->remote.fetch(link->context, row_ids, count, arrived, sink, deadline_ns);
        if (rc < 0)
            take_down(link, rc);
    }
    pthread_mutex_unlock(&link->fetching);
    return rc;
}

int st_link_await_up(struct st_link *link) {
    for (;;) {
        uint32_t flags = flags_of(link);
        uint64_t until_ns = __atomic_load_n(&link->down_since_ns, __ATOMIC_RELAXED) + link->remote.timeout_ns;
        uint64_t now_ns = st_now_ns();
        if (!(flags & LINK_DOWN))
            return 0;
        if ((flags & LINK_CANCELED) || now_ns >= until_ns)
            return __atomic_load_n(&link->error, __ATOMIC_RELAXED);
        st_futex_wait(&link->word, flags, until_ns - now_ns);
    }
}

/* Ask an idle link whether it is alive; one with a fetch under way will find out by itself. */
static void probe(struct st_link *link) {
    if (!link->remote.probe || pthread_mutex_trylock(&link->fetching))
        return;
    int rc = flags_of(link) & LINK_DOWN ? 0 : link->remote.probe(link->context);
    if (rc < 0)
        take_down(link, rc);
    pthread_mutex_unlock(&link->fetching);
}

int st_remote_wait_down(st_source *source, uint64_t timeout_ns) {
    struct st_link *link = source->link;
    uint64_t now_ns = st_now_ns(), until_ns = now_ns + timeout_ns;
    uint32_t flags;
    while ((flags = flags_of(link)) == 0 && now_ns < until_ns) {
        st_futex_wait(&link->word, flags, until_ns - now_ns);
        now_ns = st_now_ns();
    }
    if (flags == 0)
        probe(link);
    flags = flags_of(link);
    if (flags & LINK_CANCELED)
        return -ECANCELED;
    if (!(flags & LINK_DOWN))
        return 0;
    pthread_mutex_lock(&link->fetching); /* the fetch that took it down has returned */
    pthread_mutex_unlock(&link->fetching);
    return 1;
}

void st_remote_set_up(st_source *source) {
    struct st_link *link = source->link;
    __atomic_store_n(&link->error, 0, __ATOMIC_RELAXED);
    __atomic_and_fetch(&link->word, ~(uint32_t)LINK_DOWN, __ATOMIC_RELEASE);
    wake_all(link);
}

void st_remote_cancel(st_source *source) {
    __atomic_or_fetch(&source->link->word, LINK_CANCELED, __ATOMIC_RELEASE);
    wake_all(source->link);
}

int st_remote_state(const st_source *source) {
    return flags_of(source->link) & LINK_DOWN ? __atomic_load_n(&source->link->error, __ATOMIC_RELAXED) : 0;
}
