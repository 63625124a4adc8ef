/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ST_POLLED_H
#define ST_POLLED_H

/* Does a read of this file complete without an interrupt, for who polls? Block devices with poll queues do it (NVMe with
 * nvme.poll_queues). fd is open with O_DIRECT; a page is read to find out, since a device-mapper device may say that
 * it can and then refuse. */
int st_file_is_polled(int fd);

#endif
