/* SPDX-License-Identifier: Apache-2.0 */
/* Which transports a rank uses: one within a host, one across the network, or both. */
#ifndef PITH_TRANSPORT_TRANSPORT_CHOICE_H
#define PITH_TRANSPORT_TRANSPORT_CHOICE_H

#include "transport/address_record.h"

/* Those of that name ("auto": shm and tcp) listen, and their addresses are in `mine` afterwards. After a failure some
 * of them may. An entry that is not used stays NULL. */
pith_status pith__transports_listen(const char *name, const pith_transport_config *config,
                                    pith_transport *transport[PITH_KINDS], pith_address_record *mine);

/* By which kind of them two ranks reach each other; -1: they cannot. */
int pith__transports_kind(const char *name, const pith_address_record *mine, const pith_address_record *theirs);

/* All that are not NULL. */
void pith__transports_close(pith_transport *transport[PITH_KINDS]);

#endif
