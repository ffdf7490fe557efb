/* SPDX-License-Identifier: Apache-2.0 */
/* inproc: ranks as threads. */
#include "transport/inproc.h"

#include "directory.h"
#include "transport_laws.h"

static const transport_world threads = {&pith__transport_inproc, 0};

TEST(bytes_arrive_in_order) { law_bytes_arrive_in_order(&threads, 300000); }

TEST(bytes_arrive_in_order_through_narrow_rings) {
  pith__inproc_ring_size = 7;
  law_bytes_arrive_in_order(&threads, 2000);
}

TEST(no_wakeup_is_lost) { law_no_wakeup_is_lost(&threads, 3000); }
TEST(one_silent_reader_blocks_no_other) { law_one_silent_reader_blocks_no_other(&threads); }
TEST(last_bytes_of_a_closed_peer_arrive) { law_last_bytes_of_a_closed_peer_arrive(&threads); }
TEST(groups_do_not_mix) { law_groups_do_not_mix(&threads); }
TEST(one_rank_alone_works) { law_one_rank_alone_works(&threads); }
TEST(a_missing_rank_is_named) { law_a_missing_rank_is_named(&threads); }
TEST(another_job_is_not_met) { law_another_job_is_not_met(&threads); }
TEST(nothing_leaks) { law_nothing_leaks(&threads); }

TEST(an_address_from_elsewhere_is_refused) {
  pith_transport *transport;
  pith_address address[2];
  pith_transport_config config = {.rank = 0, .ranks = 2, .timeout = 1};
  CHECK_OK(pith__transport_inproc.listen(&config, &transport, &address[0]));
  memset(&address[1], 0xff, sizeof address[1]);
  pith_directory directory = directory_of(address);
  CHECK_STATUS(pith__transport_inproc.connect(transport, &directory, (const uint8_t[]){0, 1}, &(pith_link_key){0}),
               PITH_ERR_PEER);
  CHECK_ERROR_SAYS("rank 1");
  pith__transport_inproc.close(transport);
}
