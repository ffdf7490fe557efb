/*
 * Lanes: where payloads pass between device and comm, in pinned memory. A lane serves the groups of one slot, one after
 * another; several are under way at a time.
 */
#ifndef PITH_DEVICE_DEVICE_LANE_H
#define PITH_DEVICE_DEVICE_LANE_H

#include "device/device.h"

typedef struct pith_device_lane {
  uint8_t *out, *in; /* pinned, as the next */
  uint64_t *sizes;   /* of payloads: all of a rank, rank after rank */
  void *event;       /* all of `out` is there */
  pith_request *request;
  size_t group, stage;
  int busy;
} pith_device_lane;

typedef struct pith_device_port {
  pith_comm *comm;
  pith_device_lane *lanes;
  size_t count;
  void *pinned;
  size_t pinned_size;
  size_t *counts; /* of values, for all ranks, in one call */
  size_t varying; /* bytes that left this rank of payloads whose size varies */
  uint64_t step;  /* which all ranks must have in common */
} pith_device_port;

/* As many lanes as there are slots in use, each with room for the largest group. */
pith_status pith__device_port_open(pith_device_port *port, const pith_device_core *core, pith_comm *comm);
void pith__device_port_close(pith_device_port *port, const pith_device_core *core);

/* What an exchange takes: a copy to the host is enqueued; the host waits for it, and the exchange begins; its end is
 * waited for, and a copy to the device is enqueued. */
pith_status pith__device_lane_leave(pith_device_port *port, pith_device_lane *lane, const pith_device_core *core,
                                    void *stream);
pith_status pith__device_lane_post(pith_device_port *port, pith_device_lane *lane, const pith_device_core *core);
pith_status pith__device_lane_arrive(pith_device_lane *lane, const pith_device_core *core, void *stream);

#endif
