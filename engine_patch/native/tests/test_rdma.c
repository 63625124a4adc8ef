/* SPDX-License-Identifier: Apache-2.0 */
/* READs over a device made of functions: every way in which a completion can be wrong ends in an error or in right rows. */
#include <stdio.h>

#ifdef ST_HAVE_VERBS
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>

#include "core.h"
#include "pattern_core.h"
#include "rdma.h"

enum { DEPTH = 64, READS_MAX = 16, COMPLETIONS = 1 << 14, BATCH = 5000 };

/* What happens to the n-th READ that is posted, counted over all queue pairs. */
typedef enum mishap {
    NONE,
    REFUSED,      /* a completion in error, then the queue pair flushes */
    WRONG_LENGTH, /* a success of other than the bytes asked for */
    UNWRITTEN,    /* a success that wrote nothing */
    SILENT,       /* no completion, ever */
    POST_FAILS,
} mishap;

typedef struct device {
    struct verbs_context verbs; /* holds the context that the code under test sees */
    mishap mishap;
    int at; /* from the READ of this number on; for REFUSED that one */
    enum ibv_wc_status status;
    int reads; /* atomic */
    int largest_chain, signalled, queue_pairs;
    int port_down, gid_zero;
    uint32_t max_qp_wr;
} device;

typedef struct fake_qp {
    struct ibv_qp qp;
    int dead;
} fake_qp;

/* One thread posts to a queue pair and polls its completion queue, as the verbs' own rule for it is. */
typedef struct fake_cq {
    struct ibv_cq cq;
    struct ibv_wc entries[COMPLETIONS];
    uint32_t first, end;
} fake_cq;

static device fake;
static struct ibv_device listed;
static uint32_t next_qp_number = 100;

static void complete(fake_cq *queue, const struct ibv_send_wr *request, enum ibv_wc_status status, uint32_t length) {
    queue->entries[queue->end++ % COMPLETIONS] =
        (struct ibv_wc){.wr_id = request->wr_id, .status = status, .byte_len = length};
    CHECK(queue->end - queue->first < COMPLETIONS);
}

static void perform(fake_qp *pair, const struct ibv_send_wr *request) {
    fake_cq *queue = (fake_cq *)pair->qp.send_cq;
    int number = __atomic_add_fetch(&fake.reads, 1, __ATOMIC_RELAXED);
    mishap now = fake.at && number >= fake.at ? fake.mishap : NONE;
    uint32_t length = request->sg_list->length;
    CHECK(request->opcode == IBV_WR_RDMA_READ && request->num_sge == 1 && request->wr.rdma.rkey == 77);
    if (pair->dead || (now == REFUSED && number == fake.at)) {
        complete(queue, request, pair->dead ? IBV_WC_WR_FLUSH_ERR : fake.status, 0);
        pair->dead = 1;
        return;
    }
    if (now == SILENT)
        return;
    if (now != UNWRITTEN)
        memcpy((void *)request->sg_list->addr, (const void *)request->wr.rdma.remote_addr, length);
    if (request->send_flags & IBV_SEND_SIGNALED) {
        __atomic_add_fetch(&fake.signalled, 1, __ATOMIC_RELAXED);
        complete(queue, request, IBV_WC_SUCCESS, now == WRONG_LENGTH ? length - 1 : length);
    }
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **refused) {
    int chain = 0;
    if (fake.mishap == POST_FAILS && fake.at && __atomic_load_n(&fake.reads, __ATOMIC_RELAXED) >= fake.at) {
        *refused = request;
        return ENOMEM;
    }
    for (; request; request = request->next, chain++)
        perform((fake_qp *)qp, request);
    if (chain > __atomic_load_n(&fake.largest_chain, __ATOMIC_RELAXED))
        __atomic_store_n(&fake.largest_chain, chain, __ATOMIC_RELAXED);
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *entries) {
    fake_cq *queue = (fake_cq *)cq;
    int count = 0;
    while (count < most && queue->first != queue->end)
        entries[count++] = queue->entries[queue->first++ % COMPLETIONS];
    return count;
}

static struct ibv_device **get_device_list(int *count) {
    static struct ibv_device *list[2] = {&listed, NULL};
    *count = 1;
    return list;
}

static void free_device_list(struct ibv_device **list) {
}

static const char *get_device_name(struct ibv_device *found) {
    return "fake0";
}

static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *port, size_t length) {
    *port = (struct ibv_port_attr){.state = fake.port_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
                                   .active_mtu = IBV_MTU_4096,
                                   .link_layer = IBV_LINK_LAYER_ETHERNET};
    return 0;
}

static struct ibv_context *open_device(struct ibv_device *found) {
    struct ibv_context *context = &fake.verbs.context;
    fake.verbs.sz = sizeof fake.verbs;
    fake.verbs.query_port = query_port;
    context->abi_compat = __VERBS_ABI_IS_EXTENDED;
    context->ops.post_send = post_send;
    context->ops.poll_cq = poll_cq;
    return context;
}

static int close_device(struct ibv_context *context) {
    return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
    *attributes = (struct ibv_device_attr){.max_qp_wr = (int)fake.max_qp_wr, .max_qp_init_rd_atom = READS_MAX};
    return 0;
}

static int query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    memset(gid, fake.gid_zero ? 0 : 0xFE, sizeof *gid);
    return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *context) {
    return calloc(1, sizeof(struct ibv_pd));
}

static int dealloc_pd(struct ibv_pd *pd) {
    free(pd);
    return 0;
}

static struct ibv_mr *register_memory(struct ibv_pd *pd, void *address, size_t length, int access) {
    CHECK(access == IBV_ACCESS_LOCAL_WRITE); /* nobody else writes to landing buffers */
    return calloc(1, sizeof(struct ibv_mr));
}

static int deregister_memory(struct ibv_mr *mr) {
    free(mr);
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector) {
    fake_cq *queue = calloc(1, sizeof *queue);
    queue->cq.context = context;
    return &queue->cq;
}

static int destroy_cq(struct ibv_cq *cq) {
    free(cq);
    return 0;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    fake_qp *pair = calloc(1, sizeof *pair);
    CHECK(!attributes->sq_sig_all && attributes->qp_type == IBV_QPT_RC);
    pair->qp.context = attributes->send_cq->context;
    pair->qp.send_cq = attributes->send_cq;
    pair->qp.qp_num = next_qp_number++;
    fake.queue_pairs++;
    return &pair->qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    if (attributes->qp_state == IBV_QPS_INIT)
        CHECK(attributes->qp_access_flags == 0);
    if (attributes->qp_state == IBV_QPS_RTS)
        CHECK(attributes->max_rd_atomic == 4); /* the node's limit, below the device's own */
    return 0;
}

static int destroy_qp(struct ibv_qp *qp) {
    free(qp);
    fake.queue_pairs--;
    return 0;
}

static const st_verbs verbs = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_gid = query_gid,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .register_memory = register_memory,
    .deregister_memory = deregister_memory,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .destroy_qp = destroy_qp,
};

/* ---- rows over it ---- */

typedef struct rig {
    st_layout layout;
    uint8_t *pages;
    st_rdma *rdma;
    int sockets[2];
    char why[ST_RDMA_WHY_CHARS];
} rig;

typedef struct result {
    const st_layout *layout;
    const uint32_t *row_ids;
    uint8_t times[BATCH]; /* atomic: how often each row was handed over */
    int bad;              /* atomic: records that are not the row asked for */
} result;

static void arrived(void *sink, uint32_t index, const uint8_t *record) {
    result *found = sink;
    __atomic_add_fetch(&found->times[index], 1, __ATOMIC_RELAXED);
    if (st_record_check(found->layout, record, found->row_ids[index]) != ST_FAULT_NONE)
        __atomic_add_fetch(&found->bad, 1, __ATOMIC_RELAXED);
}

static st_rdma_settings settings_of(uint32_t threads, uint32_t queue_pairs, st_rdma_unit unit) {
    return (st_rdma_settings){.device = "fake0",
                              .port = 1,
                              .threads = threads,
                              .queue_pairs = queue_pairs,
                              .depth = DEPTH,
                              .unit = unit,
                              .ack_timeout = 12,
                              .retry_count = 3,
                              .timeout_ns = second_ns};
}

static int join_node(rig *self) {
    st_rdma_end ends[ST_RDMA_ENDS_MAX];
    st_rdma_port port;
    st_rdma_region region = {(uint64_t)self->pages, self->layout.page_count * ST_PAGE_BYTES, 77, 0};
    int rc = st_rdma_prepare(self->rdma, ends, &port, self->why);
    if (rc < 0)
        return rc;
    CHECK(port.reads_max == READS_MAX && port.ethernet == 1);
    port.reads_max = 4;
    return st_rdma_connect(self->rdma, ends, &port, &region, self->sockets[0], self->why);
}

static rig open_rig(st_rdma_settings settings) {
    rig self = {.layout = layout_of(1, 1)};
    fake = (device){.max_qp_wr = 1 << 14};
    self.pages = make_pages(&self.layout, 5);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, self.sockets) == 0);
    CHECK(st_rdma_open(&settings, &self.layout, &self.rdma, self.why) == 0);
    CHECK(join_node(&self) == 0);
    return self;
}

static void close_rig(rig *self) {
    st_rdma_close(self->rdma);
    free(self->pages);
    close(self->sockets[0]);
    close(self->sockets[1]);
    CHECK(fake.queue_pairs == 0);
}

/* Rows in an order of their own, several of a page next to each other. */
static void draw(uint32_t *row_ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        row_ids[i] = (i / 3 * 7919 * 3 + i % 3) % ROWS;
}

static int fetch(rig *self, result *found, uint32_t count, uint64_t limit_ns) {
    static uint32_t row_ids[BATCH];
    draw(row_ids, count);
    *found = (result){.layout = &self->layout, .row_ids = row_ids};
    return st_rdma_fetch(self->rdma, row_ids, count, arrived, found, st_now_ns() + limit_ns);
}

static uint32_t delivered(const result *found, uint32_t count) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(found->times[i] <= 1);
        rows += found->times[i];
    }
    return rows;
}

static void test_each_row_is_handed_over_once(uint32_t threads, uint32_t queue_pairs, st_rdma_unit unit) {
    static result found;
    rig self = open_rig(settings_of(threads, queue_pairs, unit));
    st_rdma_counters counters;
    uint64_t rows = 0;
    for (uint32_t count = 1; count <= BATCH; count = count * 3 + 1) {
        CHECK(fetch(&self, &found, count, 10 * second_ns) == 0);
        CHECK(delivered(&found, count) == count && found.bad == 0);
        rows += count;
    }
    st_rdma_read_counters(self.rdma, &counters);
    CHECK(counters.rows == rows && counters.reads == (uint64_t)fake.reads && counters.connections == 1);
    CHECK(counters.signalled == (uint64_t)fake.signalled && fake.largest_chain <= ST_RDMA_CHAIN);
    if (unit == ST_RDMA_PAGES)
        CHECK(counters.reads < rows && counters.bytes == counters.reads * ST_PAGE_BYTES);
    else
        CHECK(counters.reads == rows && counters.bytes == rows * self.layout.record_bytes);
    close_rig(&self);
}

static void test_a_mishap(mishap kind, enum ibv_wc_status status, int error, uint32_t threads) {
    static result found;
    rig self = open_rig(settings_of(threads, 2, ST_RDMA_RECORDS));
    st_rdma_counters counters;
    CHECK(fetch(&self, &found, BATCH, 10 * second_ns) == 0); /* so that old records lie in every slot */
    fake.mishap = kind;
    fake.status = status;
    fake.at = fake.reads + 1000;
    CHECK(fetch(&self, &found, BATCH, kind == SILENT ? second_ns / 20 : 10 * second_ns) == error);
    CHECK(found.bad == 0 && delivered(&found, BATCH) < BATCH);
    fake.at = 0;
    CHECK(join_node(&self) == 0); /* anew: what was out is gone */
    CHECK(fetch(&self, &found, BATCH, 10 * second_ns) == 0);
    CHECK(delivered(&found, BATCH) == BATCH && found.bad == 0);
    st_rdma_read_counters(self.rdma, &counters);
    CHECK(counters.connections == 2);
    CHECK(counters.retry_exceeded == (status == IBV_WC_RETRY_EXC_ERR));
    CHECK(counters.remote_access == (status == IBV_WC_REM_ACCESS_ERR));
    CHECK((counters.flushed > 0) == (kind == REFUSED));
    CHECK(counters.late_batches == (kind == SILENT));
    CHECK((counters.wrong_length > 0) == (kind == WRONG_LENGTH));
    close_rig(&self);
}

/* What lay in the slot before would pass as the row of its own id: it must not be there any more. */
static void test_a_read_that_wrote_nothing_leaves_no_row(st_rdma_unit unit) {
    static result found;
    rig self = open_rig(settings_of(1, 1, unit));
    CHECK(fetch(&self, &found, 32, second_ns) == 0 && found.bad == 0);
    CHECK(fetch(&self, &found, 32, second_ns) == 0 && found.bad == 0); /* the same rows into the other slots */
    fake.mishap = UNWRITTEN;
    fake.at = 1;
    CHECK(fetch(&self, &found, 32, second_ns) == 0);
    CHECK(delivered(&found, 32) == 32 && found.bad == 32);
    close_rig(&self);
}

static void test_what_a_connection_needs(void) {
    rig self = open_rig(settings_of(1, 1, ST_RDMA_RECORDS));
    st_rdma_end ends[ST_RDMA_ENDS_MAX];
    st_rdma_port port;
    fake.port_down = 1;
    CHECK(st_rdma_prepare(self.rdma, ends, &port, self.why) == -ENETDOWN && strstr(self.why, "not active"));
    fake.port_down = 0;
    fake.gid_zero = 1;
    CHECK(st_rdma_prepare(self.rdma, ends, &port, self.why) == -EADDRNOTAVAIL && strstr(self.why, "is zero"));
    fake.gid_zero = 0;
    CHECK(st_rdma_prepare(self.rdma, ends, &port, self.why) == 0);
    st_rdma_region region = {(uint64_t)self.pages, self.layout.page_count * ST_PAGE_BYTES - 1, 77, 0};
    CHECK(st_rdma_connect(self.rdma, ends, &port, &region, self.sockets[0], self.why) == -ERANGE);
    region.byte_count++;
    port.ethernet = 0;
    CHECK(st_rdma_connect(self.rdma, ends, &port, &region, self.sockets[0], self.why) == -EPROTO);
    result *none = NULL;
    const uint32_t row_id = 0;
    CHECK(st_rdma_fetch(self.rdma, &row_id, 1, arrived, none, UINT64_MAX) == -ENOTCONN);
    close_rig(&self);
}

static void test_the_first_read_is_checked(void) {
    rig self = open_rig(settings_of(1, 1, ST_RDMA_RECORDS));
    CHECK(st_rdma_try(self.rdma, self.why) == 0);
    self.pages[ST_PAGE_HEADER_BYTES] ^= 1;
    CHECK(st_rdma_try(self.rdma, self.why) == -EBADMSG && strstr(self.why, "row 0"));
    close_rig(&self);
}

static void test_depth_follows_the_device(void) {
    st_rdma_settings settings = settings_of(1, 1, ST_RDMA_RECORDS);
    rig self = open_rig(settings);
    uint32_t depth, reads_max;
    st_rdma_limits(self.rdma, &depth, &reads_max);
    CHECK(depth == DEPTH && reads_max == 4);
    st_rdma *other = NULL;
    fake.max_qp_wr = 40;
    CHECK(st_rdma_open(&settings, &self.layout, &other, self.why) == 0);
    st_rdma_limits(other, &depth, &reads_max);
    CHECK(depth == ST_RDMA_CHAIN);
    st_rdma_close(other);
    fake.max_qp_wr = 8;
    CHECK(st_rdma_open(&settings, &self.layout, &other, self.why) == -EINVAL && strstr(self.why, "8 requests"));
    snprintf(settings.device, sizeof settings.device, "fake1");
    CHECK(st_rdma_open(&settings, &self.layout, &other, self.why) == -ENODEV && strstr(self.why, "fake1"));
    settings.depth = 33;
    CHECK(st_rdma_open(&settings, &self.layout, &other, self.why) == -EINVAL);
    close_rig(&self);
}

static void test_a_node_that_hangs_up_takes_the_link_down(void) {
    rig self = open_rig(settings_of(1, 1, ST_RDMA_RECORDS));
    st_source *source = NULL;
    CHECK(st_rdma_source(self.rdma, &source) == 0 && st_remote_state(source) == 0);
    CHECK(st_remote_wait_down(source, 1000) == 0);
    shutdown(self.sockets[1], SHUT_RDWR);
    CHECK(st_remote_wait_down(source, 1000) == 1 && st_remote_state(source) == -ECONNRESET);
    st_source_close(source); /* closes the client, too */
    free(self.pages);
    close(self.sockets[0]);
    close(self.sockets[1]);
}

int main(void) {
    st_verbs_replace(&verbs);
    for (int unit = ST_RDMA_RECORDS; unit <= ST_RDMA_PAGES; unit++) {
        test_each_row_is_handed_over_once(1, 1, unit);
        test_each_row_is_handed_over_once(1, 8, unit);
        test_each_row_is_handed_over_once(4, 2, unit);
        test_each_row_is_handed_over_once(16, 1, unit);
        test_a_read_that_wrote_nothing_leaves_no_row(unit);
    }
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        test_a_mishap(REFUSED, IBV_WC_RETRY_EXC_ERR, -EHOSTDOWN, threads);
        test_a_mishap(REFUSED, IBV_WC_REM_ACCESS_ERR, -EACCES, threads);
        test_a_mishap(REFUSED, IBV_WC_LOC_QP_OP_ERR, -EREMOTEIO, threads);
        test_a_mishap(WRONG_LENGTH, IBV_WC_SUCCESS, -ENODATA, threads);
        test_a_mishap(SILENT, IBV_WC_SUCCESS, -ETIMEDOUT, threads);
        test_a_mishap(POST_FAILS, IBV_WC_SUCCESS, -ENOMEM, threads);
    }
    test_what_a_connection_needs();
    test_the_first_read_is_checked();
    test_depth_follows_the_device();
    test_a_node_that_hangs_up_takes_the_link_down();
    puts("test_rdma: ok");
    return 0;
}

#else

int main(void) {
    puts("test_rdma: not run: needs infiniband/verbs.h of libibverbs-dev");
    return 0;
}
#endif
