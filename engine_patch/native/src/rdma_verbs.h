/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, loaded when it is first wanted: the native library must load on machines that have no RDMA. */
#ifndef ST_RDMA_VERBS_H
#define ST_RDMA_VERBS_H

#ifdef ST_HAVE_VERBS
#include <infiniband/verbs.h>

/* The functions that are symbols of the library. Posting and polling go through the device's own table. */
typedef struct st_verbs {
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attributes);
    int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*register_memory)(struct ibv_pd *pd, void *address, size_t length, int access);
    int (*deregister_memory)(struct ibv_mr *mr);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
} st_verbs;

/* The table, or NULL with why. */
const st_verbs *st_verbs_load(char *why);

/* For tests, before anything is opened: a device that is made of functions of theirs. */
void st_verbs_replace(const st_verbs *other);
#endif

#endif
