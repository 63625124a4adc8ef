/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: one thread per remote source that a core reads from, so that no reader's ring ever waits for a network. */
#ifndef ST_LANE_H
#define ST_LANE_H

#include "core.h"

/* Between steps: a lane for every remote source in the layers' lists, and layer->lanes as they are to be. */
int st_lanes_update(st_core *core);
void st_lanes_stop(st_core *core);

st_inbox *st_lane_inbox(st_lane *lane);

/* There is something to claim or in the inbox. */
void st_lane_notify(st_lane *lane);

#endif
