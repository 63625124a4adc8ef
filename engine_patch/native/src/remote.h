/* SPDX-License-Identifier: Apache-2.0 */
/* The core's side of a remote source's link; st_remote.h is the implementer's. */
#ifndef ST_REMOTE_LINK_H
#define ST_REMOTE_LINK_H

#include "source.h"
#include "st_remote.h"

void st_link_close(struct st_link *link);
void *st_link_context(const struct st_link *link);
uint32_t st_link_rows_max(const struct st_link *link);
uint64_t st_link_timeout_ns(const struct st_link *link);

/* One fetch; the -errno that the link is down with, without one, if it is down. */
int st_link_fetch(struct st_link *link, const uint32_t *row_ids, uint32_t count, st_remote_arrived arrived, void *sink,
                  uint64_t deadline_ns);

/* Wait for a link that has just gone down to come back, at most its timeout from then on: 0, or why it is down. */
int st_link_await_up(struct st_link *link);

#endif
