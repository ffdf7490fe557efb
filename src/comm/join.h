/* How the ranks of a comm become linked: each transport listens, addresses are exchanged, links are made. */
#ifndef PITH_COMM_JOIN_H
#define PITH_COMM_JOIN_H

#include "comm/comm.h"
#include "transport/transport_choice.h"

/* How the address records of all ranks are exchanged: at the rendezvous, or over the parent of a split. */
typedef pith_status (*pith_exchange_fn)(void *how, const pith_address_record *mine, pith_address_record *all,
                                        pith_link_key *key);

/* Links the comm with all its peers, and lays out its hosts. If that fails, the peers that are linked already are told
 * why. */
pith_status pith__comm_join(pith_comm *comm, pith_exchange_fn exchange, void *how);

#endif
