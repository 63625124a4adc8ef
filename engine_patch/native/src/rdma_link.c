/* SPDX-License-Identifier: Apache-2.0 */
/* An RDMA client's set-up: device, protection domain, landing buffers and queue pairs, and their way to the node's. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "rdma.h"
#include "st_rdma.h"

#ifdef ST_HAVE_VERBS
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include "core.h"
#include "remote.h"

enum { LINE_BYTES = 64, ROWS_MAX = 8192, DRAIN_NS = 100000000, DRAIN_ENTRIES = 16 };

static int fail(char *why, int error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, ST_RDMA_WHY_CHARS, format, arguments);
    va_end(arguments);
    return error < 0 ? error : error > 0 ? -error : -EIO; /* a provider that fails without an errno has still failed */
}

static struct ibv_context *open_device(const st_verbs *verbs, const char *wanted) {
    int count = 0;
    struct ibv_device **list = verbs->get_device_list(&count);
    struct ibv_context *context = NULL;
    errno = list ? ENODEV : errno;
    for (int i = 0; list && i < count; i++)
        if (strcmp(verbs->get_device_name(list[i]), wanted) == 0)
            context = verbs->open_device(list[i]);
    int error = errno;
    if (list)
        verbs->free_device_list(list);
    errno = error;
    return context;
}

static int open_worker(st_rdma *rdma, st_rdma_worker *worker, char *why) {
    const st_rdma_settings *settings = &rdma->settings;
    uint32_t slots = settings->depth * settings->queue_pairs;
    worker->rdma = rdma;
    worker->buffer_bytes = (size_t)slots * rdma->unit_bytes;
    worker->buffer =
        mmap(NULL, worker->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (worker->buffer == MAP_FAILED) {
        worker->buffer = NULL;
        return fail(why, errno, "landing buffer of %zu bytes", worker->buffer_bytes);
    }
    for (uint32_t i = 0; i < settings->queue_pairs; i++) {
        st_rdma_queue *queue = &worker->queues[i];
        queue->landing = worker->buffer + (size_t)i * settings->depth * rdma->unit_bytes;
        if (!(queue->reads = calloc(settings->depth, sizeof *queue->reads)))
            return fail(why, ENOMEM, "queue of %u READs", settings->depth);
    }
    worker->mr = rdma->verbs->register_memory(rdma->pd, worker->buffer, worker->buffer_bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!worker->mr)
        return fail(why, errno, "registering a landing buffer of %zu bytes", worker->buffer_bytes);
    /* Every READ can end in a completion of its own: those that are flushed do, signalled or not. */
    worker->cq = rdma->verbs->create_cq(rdma->context, (int)slots, NULL, NULL, 0);
    return worker->cq ? 0 : fail(why, errno, "completion queue of %u entries", slots);
}

static void close_worker(st_rdma *rdma, st_rdma_worker *worker) {
    if (worker->cq)
        rdma->verbs->destroy_cq(worker->cq);
    if (worker->mr)
        rdma->verbs->deregister_memory(worker->mr);
    if (worker->buffer)
        munmap(worker->buffer, worker->buffer_bytes);
    for (uint32_t i = 0; i < rdma->settings.queue_pairs; i++)
        free(worker->queues[i].reads);
}

/* READs that are still out may land until their queue pair is gone. Those that are flushed are counted. */
static void drain(st_rdma_worker *worker, uint32_t queue_pairs) {
    struct ibv_wc entries[DRAIN_ENTRIES];
    uint64_t until_ns = st_now_ns() + DRAIN_NS, outstanding = 0, flushed = 0;
    for (uint32_t i = 0; i < queue_pairs; i++)
        outstanding += worker->queues[i].posted - worker->queues[i].done;
    while (flushed < outstanding && st_now_ns() < until_ns) {
        int count = ibv_poll_cq(worker->cq, DRAIN_ENTRIES, entries);
        for (int i = 0; i < count; i++)
            flushed += entries[i].status == IBV_WC_WR_FLUSH_ERR;
    }
    __atomic_add_fetch(&worker->counters.flushed, flushed, __ATOMIC_RELAXED);
    while (ibv_poll_cq(worker->cq, DRAIN_ENTRIES, entries) > 0)
        ;
}

static void disconnect(st_rdma *rdma) {
    rdma->control_fd = -1;
    for (uint32_t w = 0; w < rdma->settings.threads; w++) {
        st_rdma_worker *worker = &rdma->workers[w];
        struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
        for (uint32_t i = 0; i < rdma->settings.queue_pairs; i++)
            if (worker->queues[i].qp)
                rdma->verbs->modify_qp(worker->queues[i].qp, &attributes, IBV_QP_STATE);
        if (worker->cq)
            drain(worker, rdma->settings.queue_pairs);
        for (uint32_t i = 0; i < rdma->settings.queue_pairs; i++) {
            st_rdma_queue *queue = &worker->queues[i];
            if (queue->qp)
                rdma->verbs->destroy_qp(queue->qp);
            queue->qp = NULL;
            queue->posted = queue->done = 0;
        }
    }
}

void st_rdma_close(st_rdma *rdma) {
    if (!rdma)
        return;
    st_rdma_stop_helpers(rdma);
    disconnect(rdma);
    for (uint32_t w = 0; w < rdma->settings.threads; w++)
        close_worker(rdma, &rdma->workers[w]);
    if (rdma->pd)
        rdma->verbs->dealloc_pd(rdma->pd);
    if (rdma->context)
        rdma->verbs->close_device(rdma->context);
    free(rdma);
}

static int settings_valid(const st_rdma_settings *settings) {
    return settings->threads >= 1 && settings->threads <= ST_RDMA_THREADS_MAX && settings->queue_pairs >= 1 &&
           settings->queue_pairs <= ST_RDMA_QUEUE_PAIRS_MAX && settings->depth >= ST_RDMA_CHAIN &&
           settings->depth % ST_RDMA_CHAIN == 0 && settings->unit <= ST_RDMA_PAGES && settings->port >= 1 &&
           settings->port <= 255 && settings->gid_index <= 255 && settings->ack_timeout <= 31 &&
           settings->retry_count <= 7 && settings->service_level <= 15 && settings->traffic_class <= 255 &&
           settings->timeout_ns > 0;
}

/* Device, domain, buffers, threads; what was made before a failure is closed by the caller. */
static int open_all(st_rdma *rdma, char *why) {
    struct ibv_device_attr device;
    const char *name = rdma->settings.device;
    if (!(rdma->verbs = st_verbs_load(why)))
        return -ENOSYS;
    if (!(rdma->context = open_device(rdma->verbs, name)))
        return fail(why, errno, "opening RDMA device %s", name);
    int rc = rdma->verbs->query_device(rdma->context, &device);
    if (rc)
        return fail(why, rc, "querying RDMA device %s", name);
    rdma->device_reads_max = device.max_qp_init_rd_atom > 0 ? (uint32_t)device.max_qp_init_rd_atom : 1;
    uint32_t depth_max = (uint32_t)device.max_qp_wr / ST_RDMA_CHAIN * ST_RDMA_CHAIN;
    if (rdma->settings.depth > depth_max)
        rdma->settings.depth = depth_max;
    if (depth_max == 0)
        return fail(why, EINVAL, "RDMA device %s takes %d requests per queue pair, expected at least %d", name,
                    device.max_qp_wr, ST_RDMA_CHAIN);
    if (!(rdma->pd = rdma->verbs->alloc_pd(rdma->context)))
        return fail(why, errno, "protection domain on RDMA device %s", name);
    for (uint32_t w = 0; w < rdma->settings.threads; w++)
        if ((rc = open_worker(rdma, &rdma->workers[w], why)))
            return rc;
    rc = st_rdma_start_helpers(rdma);
    return rc ? fail(why, rc, "starting %u RDMA threads", rdma->settings.threads) : 0;
}

int st_rdma_open(const st_rdma_settings *settings, const st_layout *layout, st_rdma **out, char *why) {
    why[0] = 0;
    if (!settings_valid(settings))
        return fail(why, EINVAL, "RDMA settings out of range");
    st_rdma *rdma = aligned_alloc(LINE_BYTES, (sizeof *rdma + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
    if (!rdma)
        return -ENOMEM;
    memset(rdma, 0, sizeof *rdma);
    rdma->settings = *settings;
    rdma->settings.device[ST_RDMA_DEVICE_CHARS - 1] = 0;
    rdma->layout = *layout;
    rdma->control_fd = -1;
    rdma->unit_bytes = settings->unit == ST_RDMA_PAGES
                           ? ST_PAGE_BYTES
                           : (layout->record_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    int rc = open_all(rdma, why);
    if (rc < 0) {
        st_rdma_close(rdma);
        return rc;
    }
    *out = rdma;
    return 0;
}

/* Through the device's table: the library's symbol of that name has an older struct. */
static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *port) {
    struct verbs_context *verbs = verbs_get_ctx_op(context, query_port);
    memset(port, 0, sizeof *port);
    return verbs ? verbs->query_port(context, number, port, sizeof *port) : ENOSYS;
}

static int own_port(const st_rdma *rdma, st_rdma_port *out, char *why) {
    const st_rdma_settings *settings = &rdma->settings;
    static const uint8_t zero[16];
    struct ibv_port_attr port;
    union ibv_gid gid;
    int rc = query_port(rdma->context, (uint8_t)settings->port, &port);
    if (rc)
        return fail(why, rc, "querying port %u of RDMA device %s", settings->port, settings->device);
    if (port.state != IBV_PORT_ACTIVE)
        return fail(why, ENETDOWN, "port %u of RDMA device %s is not active", settings->port, settings->device);
    if (rdma->verbs->query_gid(rdma->context, (uint8_t)settings->port, (int)settings->gid_index, &gid))
        return fail(why, errno, "GID %u of port %u of RDMA device %s", settings->gid_index, settings->port,
                    settings->device);
    if (memcmp(gid.raw, zero, sizeof zero) == 0)
        return fail(why, EADDRNOTAVAIL, "GID %u of port %u of RDMA device %s is zero", settings->gid_index,
                    settings->port, settings->device);
    memcpy(out->gid, gid.raw, sizeof out->gid);
    out->lid = port.lid;
    out->mtu = port.active_mtu;
    out->ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    out->reads_max = rdma->device_reads_max;
    return 0;
}

static int make_queue_pair(st_rdma *rdma, st_rdma_worker *worker, st_rdma_queue *queue, char *why) {
    struct ibv_qp_init_attr init = {
        .send_cq = worker->cq,
        .recv_cq = worker->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = rdma->settings.depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    queue->qp = rdma->verbs->create_qp(rdma->pd, &init);
    if (!queue->qp)
        return fail(why, errno, "queue pair of %u READs on RDMA device %s", rdma->settings.depth,
                    rdma->settings.device);
    /* No access flags: the node may do nothing to this side's memory. */
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)rdma->settings.port};
    int rc = rdma->verbs->modify_qp(queue->qp, &attributes,
                                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return rc ? fail(why, rc, "queue pair to INIT on port %u", rdma->settings.port) : 0;
}

int st_rdma_prepare(st_rdma *rdma, st_rdma_end *ends, st_rdma_port *port, char *why) {
    why[0] = 0;
    disconnect(rdma);
    int rc = own_port(rdma, port, why);
    for (uint32_t w = 0; rc == 0 && w < rdma->settings.threads; w++) {
        for (uint32_t i = 0; rc == 0 && i < rdma->settings.queue_pairs; i++, ends++) {
            st_rdma_queue *queue = &rdma->workers[w].queues[i];
            rc = make_queue_pair(rdma, &rdma->workers[w], queue, why);
            if (rc == 0 && getrandom(&ends->first_psn, sizeof ends->first_psn, 0) < 0)
                rc = fail(why, errno, "random packet number");
            ends->first_psn &= 0xFFFFFF;
            ends->number = queue->qp ? queue->qp->qp_num : 0;
            queue->first_psn = ends->first_psn;
        }
    }
    return rc;
}

static struct ibv_ah_attr way_to(const st_rdma *rdma, const st_rdma_port *peer) {
    const st_rdma_settings *settings = &rdma->settings;
    struct ibv_ah_attr way = {.port_num = (uint8_t)settings->port, .sl = (uint8_t)settings->service_level};
    if (peer->ethernet) {
        way.is_global = 1;
        way.grh.sgid_index = (uint8_t)settings->gid_index;
        way.grh.hop_limit = 64;
        way.grh.traffic_class = (uint8_t)settings->traffic_class;
        memcpy(way.grh.dgid.raw, peer->gid, sizeof peer->gid);
    } else {
        way.dlid = (uint16_t)peer->lid;
    }
    return way;
}

static int connect_queue_pair(st_rdma *rdma, const st_rdma_queue *queue, const st_rdma_end *end,
                              const st_rdma_port *peer, uint32_t mtu, char *why) {
    struct ibv_qp_attr receive = {.qp_state = IBV_QPS_RTR,
                                  .path_mtu = (enum ibv_mtu)mtu,
                                  .dest_qp_num = end->number,
                                  .rq_psn = end->first_psn,
                                  .max_dest_rd_atomic = 0,
                                  .min_rnr_timer = 12,
                                  .ah_attr = way_to(rdma, peer)};
    int rc = rdma->verbs->modify_qp(queue->qp, &receive,
                                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (rc)
        return fail(why, rc, "queue pair to RTR: no way to the node from GID %u?", rdma->settings.gid_index);
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .sq_psn = queue->first_psn,
                               .timeout = (uint8_t)rdma->settings.ack_timeout,
                               .retry_cnt = (uint8_t)rdma->settings.retry_count,
                               .rnr_retry = 7,
                               .max_rd_atomic = (uint8_t)rdma->reads_max};
    rc = rdma->verbs->modify_qp(queue->qp, &send,
                                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                    IBV_QP_MAX_QP_RD_ATOMIC);
    return rc ? fail(why, rc, "queue pair to RTS with %u READs on the wire", rdma->reads_max) : 0;
}

int st_rdma_connect(st_rdma *rdma, const st_rdma_end *ends, const st_rdma_port *port, const st_rdma_region *region,
                    int control_fd, char *why) {
    st_rdma_port own;
    why[0] = 0;
    uint64_t wanted = rdma->layout.page_count * ST_PAGE_BYTES;
    if (region->byte_count < wanted)
        return fail(why, ERANGE, "the node's region has %llu bytes, expected %llu",
                    (unsigned long long)region->byte_count, (unsigned long long)wanted);
    int rc = own_port(rdma, &own, why);
    if (rc < 0)
        return rc;
    if (own.ethernet != port->ethernet)
        return fail(why, EPROTO, "one end is on Ethernet, the other on InfiniBand");
    rdma->reads_max = port->reads_max < own.reads_max ? port->reads_max : own.reads_max;
    if (rdma->reads_max == 0)
        return fail(why, EPROTO, "the node's device answers no READs");
    uint32_t mtu = port->mtu < own.mtu ? port->mtu : own.mtu;
    for (uint32_t w = 0; w < rdma->settings.threads; w++)
        for (uint32_t i = 0; i < rdma->settings.queue_pairs; i++, ends++)
            if ((rc = connect_queue_pair(rdma, &rdma->workers[w].queues[i], ends, port, mtu, why)))
                return rc;
    rdma->region = *region;
    rdma->control_fd = control_fd;
    __atomic_add_fetch(&rdma->connections, 1, __ATOMIC_RELAXED);
    return 0;
}

typedef struct trial {
    const st_layout *layout;
    int arrived;
    st_fault fault;
} trial;

static void judge(void *sink, uint32_t index, const uint8_t *record) {
    trial *row = sink;
    row->arrived = 1;
    row->fault = st_record_check(row->layout, record, 0);
}

int st_rdma_try(st_rdma *rdma, char *why) {
    static const uint32_t row_ids[1] = {0};
    trial row = {.layout = &rdma->layout};
    why[0] = 0;
    int rc = st_rdma_fetch(rdma, row_ids, 1, judge, &row, st_now_ns() + rdma->settings.timeout_ns);
    if (rc < 0)
        return fail(why, rc, "row 0");
    if (!row.arrived || row.fault != ST_FAULT_NONE)
        return fail(why, EBADMSG, "row 0 is not what it says, or damaged");
    return 0;
}

/* The node closes its end when it withdraws the region or dies; keep-alive finds a host that is gone. */
static int probe(void *context) {
    const st_rdma *rdma = context;
    char byte;
    ssize_t got = recv(rdma->control_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0)
        return -ECONNRESET;
    return got > 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
}

static void close_context(void *context) {
    st_rdma_close(context);
}

int st_rdma_source(st_rdma *rdma, st_source **out) {
    st_remote remote = {.rows_max = ROWS_MAX,
                        .timeout_ns = rdma->settings.timeout_ns,
                        .fetch = st_rdma_fetch,
                        .probe = probe,
                        .close = close_context};
    return st_source_open_remote(&remote, rdma, &rdma->layout, rdma->control_fd >= 0, out);
}

int st_rdma_use_layout(st_rdma *rdma, const st_layout *layout) {
    if (layout->record_bytes != rdma->layout.record_bytes || layout->row_count != rdma->layout.row_count)
        return -EINVAL;
    rdma->layout = *layout;
    return 0;
}

void st_rdma_source_attach(st_source *source) {
    const st_rdma *rdma = st_link_context(source->link);
    source->layout = rdma->layout; /* nobody looks at it while the link is down */
    st_remote_set_up(source);
}

void st_rdma_limits(const st_rdma *rdma, uint32_t *depth, uint32_t *reads_max) {
    *depth = rdma->settings.depth;
    *reads_max = rdma->reads_max;
}

void st_rdma_read_counters(const st_rdma *rdma, st_rdma_counters *out) {
    memset(out, 0, sizeof *out);
    uint64_t *sums = (uint64_t *)out;
    for (uint32_t w = 0; w < rdma->settings.threads; w++) {
        const uint64_t *counts = (const uint64_t *)&rdma->workers[w].counters;
        for (size_t i = 0; i < sizeof *out / sizeof *sums; i++)
            sums[i] += __atomic_load_n(&counts[i], __ATOMIC_RELAXED);
    }
    out->connections = __atomic_load_n(&rdma->connections, __ATOMIC_RELAXED);
}

#else

static int without_verbs(char *why) {
    st_rdma_available(why);
    return -ENOSYS;
}

int st_rdma_open(const st_rdma_settings *settings, const st_layout *layout, st_rdma **out, char *why) {
    return without_verbs(why);
}

void st_rdma_close(st_rdma *rdma) {
}

int st_rdma_prepare(st_rdma *rdma, st_rdma_end *ends, st_rdma_port *port, char *why) {
    return without_verbs(why);
}

int st_rdma_connect(st_rdma *rdma, const st_rdma_end *ends, const st_rdma_port *port, const st_rdma_region *region,
                    int control_fd, char *why) {
    return without_verbs(why);
}

int st_rdma_source(st_rdma *rdma, st_source **out) {
    return -ENOSYS;
}

int st_rdma_use_layout(st_rdma *rdma, const st_layout *layout) {
    return -ENOSYS;
}

void st_rdma_source_attach(st_source *source) {
}

int st_rdma_try(st_rdma *rdma, char *why) {
    return without_verbs(why);
}

void st_rdma_limits(const st_rdma *rdma, uint32_t *depth, uint32_t *reads_max) {
    *depth = *reads_max = 0;
}

void st_rdma_read_counters(const st_rdma *rdma, st_rdma_counters *out) {
    *out = (st_rdma_counters){0};
}
#endif
