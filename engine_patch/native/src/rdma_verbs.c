/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma_verbs.h"

#include <errno.h>
#include <stdio.h>

#include "st_rdma.h"

#ifdef ST_HAVE_VERBS
#include <dlfcn.h>
#include <pthread.h>

static st_verbs table;
static const st_verbs *replaced;
static char load_error[ST_RDMA_WHY_CHARS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    const struct {
        const char *name;
        void *place;
    } symbols[] = {
        {"ibv_get_device_list", &table.get_device_list},
        {"ibv_free_device_list", &table.free_device_list},
        {"ibv_get_device_name", &table.get_device_name},
        {"ibv_open_device", &table.open_device},
        {"ibv_close_device", &table.close_device},
        {"ibv_query_device", &table.query_device},
        {"ibv_query_gid", &table.query_gid},
        {"ibv_alloc_pd", &table.alloc_pd},
        {"ibv_dealloc_pd", &table.dealloc_pd},
        {"ibv_reg_mr", &table.register_memory},
        {"ibv_dereg_mr", &table.deregister_memory},
        {"ibv_create_cq", &table.create_cq},
        {"ibv_destroy_cq", &table.destroy_cq},
        {"ibv_create_qp", &table.create_qp},
        {"ibv_modify_qp", &table.modify_qp},
        {"ibv_destroy_qp", &table.destroy_qp},
    };
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(load_error, sizeof load_error, "%s", dlerror());
        return;
    }
    for (unsigned i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol) {
            snprintf(load_error, sizeof load_error, "libibverbs.so.1 has no %s", symbols[i].name);
            return;
        }
        *(void **)symbols[i].place = symbol;
    }
}

void st_verbs_replace(const st_verbs *other) {
    replaced = other;
}

const st_verbs *st_verbs_load(char *why) {
    why[0] = 0;
    if (replaced)
        return replaced;
    pthread_once(&once, load);
    snprintf(why, ST_RDMA_WHY_CHARS, "%s", load_error);
    return load_error[0] ? NULL : &table;
}

int st_rdma_available(char *why) {
    return st_verbs_load(why) ? 0 : -ENOSYS;
}

#else

int st_rdma_available(char *why) {
    snprintf(why, ST_RDMA_WHY_CHARS, "the native library was compiled without libibverbs-dev");
    return -ENOSYS;
}
#endif
