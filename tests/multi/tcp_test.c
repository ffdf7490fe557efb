/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp: ranks as processes and as threads on loopback. Beside the laws of all transports: several connections to a peer,
 * interfaces, addresses that lie, and strangers at the port while links are made.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/forked.h"
#include "directory.h"
#include "transport_laws.h"

/* ---- tcp with settings that the laws know nothing of ------------------------------------------------------------- */

static int connections_of[WORLD_RANKS_MOST];
static const char *interface, *host = "127.0.0.1";

static void use_connections(int connections) {
  for (int i = 0; i < WORLD_RANKS_MOST; i++) {
    connections_of[i] = connections;
  }
}

static pith_status listen_with_settings(const pith_transport_config *config, pith_transport **transport,
                                        pith_address *address) {
  pith_transport_config changed = *config;
  changed.connections = connections_of[config->rank];
  changed.interface = interface;
  changed.rendezvous_host = host;
  return pith__transport_tcp.listen(&changed, transport, address);
}

static pith_transport_ops tcp;
static const transport_world processes = {&tcp, 1}, threads = {&tcp, 0};

__attribute__((constructor)) static void make_ops(void) {
  tcp = pith__transport_tcp;
  tcp.listen = listen_with_settings;
}

/* ---- The laws ---------------------------------------------------------------------------------------------------- */

TEST(it_can_run_here) { CHECK_OK(pith__transport_tcp.probe()); }
TEST(bytes_arrive_in_order) { law_bytes_arrive_in_order(&processes, 300000); }
TEST(bytes_arrive_in_order_among_threads) { law_bytes_arrive_in_order(&threads, 100000); }

TEST(bytes_arrive_in_order_over_several_connections) {
  for (int connections = 2; connections <= 4; connections++) {
    use_connections(connections);
    pith__tcp_block_size = connections == 3 ? 1 : test_below(5000) + 1;
    law_bytes_arrive_in_order(&processes, connections == 3 ? 5000 : 200000);
  }
}

TEST(bytes_arrive_in_order_in_the_usual_blocks) {
  use_connections(4);
  law_bytes_arrive_in_order(&processes, 2000000);
}

TEST(ranks_with_other_numbers_of_connections_take_the_smaller) {
  for (int i = 0; i < WORLD_RANKS_MOST; i++) {
    connections_of[i] = (i * 7 + 3) % 5 + 1;
  }
  pith__tcp_block_size = 1000;
  law_bytes_arrive_in_order(&processes, 50000);
}

TEST(bytes_arrive_in_order_on_ipv6) {
  host = "::1";
  pith_sockaddr at;
  int fd = pith__sockaddr_parse(host, 0, &at) ? pith__socket_listen(&at) : -1;
  if (fd < 0) {
    LACKS("ipv6", "no IPv6 here: %s", strerror(errno));
  }
  pith__fd_close(fd);
  law_bytes_arrive_in_order(&processes, 50000);
}

TEST(no_wakeup_is_lost) { law_no_wakeup_is_lost(&processes, 3000); }

TEST(no_wakeup_is_lost_over_several_connections) {
  use_connections(3);
  pith__tcp_block_size = 3;
  law_no_wakeup_is_lost(&processes, 2000);
}

TEST(one_silent_reader_blocks_no_other) { law_one_silent_reader_blocks_no_other(&processes); }
TEST(last_bytes_of_a_closed_peer_arrive) { law_last_bytes_of_a_closed_peer_arrive(&processes); }
TEST(last_bytes_of_a_killed_peer_arrive) { law_last_bytes_of_a_killed_peer_arrive(&processes); }

TEST(last_bytes_of_a_killed_peer_arrive_over_several_connections) {
  use_connections(4);
  pith__tcp_block_size = 100;
  law_last_bytes_of_a_killed_peer_arrive(&processes);
}

TEST(a_spinning_rank_notices_a_killed_peer) { law_a_spinning_rank_notices_a_killed_peer(&processes); }
TEST(a_stopped_peer_only_waits) { law_a_stopped_peer_only_waits(&processes); }
TEST(groups_do_not_mix) { law_groups_do_not_mix(&processes); }
TEST(one_rank_alone_works) { law_one_rank_alone_works(&processes); }
TEST(a_missing_rank_is_named) { law_a_missing_rank_is_named(&processes); }
TEST(another_job_is_not_met) { law_another_job_is_not_met(&processes); }
TEST(nothing_leaks) { law_nothing_leaks(&processes); }

/* ---- Where it listens -------------------------------------------------------------------------------------------- */

static tcp_place place_of(const char *on, const char *rendezvous_host) {
  pith_transport *transport;
  pith_address address;
  tcp_place place;
  pith_transport_config config = {.ranks = 1, .interface = on, .timeout = 1, .rendezvous_host = rendezvous_host};
  CHECK_OK(pith__transport_tcp.listen(&config, &transport, &address));
  CHECK_OK(pith__tcp_address_decode(&address, 0, &place));
  pith__transport_tcp.close(transport);
  return place;
}

TEST(an_interface_may_be_named_or_given_as_an_address) {
  const char *ways[] = {"lo", "127.0.0.1"};
  for (int i = 0; i < 2; i++) {
    tcp_place place = place_of(ways[i], NULL);
    CHECK_EQ(place.count, 1);
    CHECK(pith__sockaddr_is_loopback(&place.at[0]));
    CHECK(pith__sockaddr_port(&place.at[0]) != 0);
    interface = ways[i];
    law_bytes_arrive_in_order(&processes, 1000);
  }
}

TEST(the_address_told_is_the_one_that_reaches_rank_0) {
  tcp_place here = place_of(NULL, "127.0.0.1");
  CHECK(pith__sockaddr_is_loopback(&here.at[0]));
  CHECK_EQ(here.at[0].any.sa_family, AF_INET);
  for (int i = 1; i < here.count; i++) { /* in case a name misled us, the others too */
    char text[PITH_SOCKADDR_TEXT];
    CHECK(!pith__sockaddr_is_loopback(&here.at[i]));
    pith__sockaddr_text(&here.at[i], text);
    *strrchr(text, ':') = 0;
    if (here.at[i].any.sa_family == AF_INET) { /* and who is reached by that one is told that one */
      tcp_place other = place_of(NULL, text);
      CHECK_EQ(other.count, 1);
      CHECK_EQ(other.at[0].v4.sin_addr.s_addr, here.at[i].v4.sin_addr.s_addr);
    }
  }
}

TEST(an_interface_that_is_not_there_is_an_error_that_lists_those_that_are) {
  pith_transport *transport;
  pith_address address;
  pith_transport_config config = {.ranks = 1, .interface = "nowhere7"};
  CHECK_STATUS(pith__transport_tcp.listen(&config, &transport, &address), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("nowhere7");
  CHECK_ERROR_SAYS("lo");
  config.interface = "203.0.113.7"; /* nobody's */
  CHECK_STATUS(pith__transport_tcp.listen(&config, &transport, &address), PITH_ERR_SYSTEM);
  config = (pith_transport_config){.ranks = 1, .connections = 99};
  CHECK_STATUS(pith__transport_tcp.listen(&config, &transport, &address), PITH_ERR_ARGUMENT);
}

/* ---- Addresses from the network ---------------------------------------------------------------------------------- */

TEST(addresses_are_read_as_written) {
  for (int round = 0; round < 500; round++) {
    tcp_place place = {.token = test_random(), .connections = (int)test_below(TCP_CONNECTIONS_MOST) + 1}, read;
    place.count = (int)test_below(TCP_ADDRESSES_MOST) + 1;
    for (int i = 0; i < place.count; i++) {
      CHECK(pith__sockaddr_parse(test_below(2) ? "10.1.2.3" : "fd00::1:2", 77, &place.at[i]));
    }
    place.tls = (pith_tls_mode)test_below(PITH_TLS_CERT + 1);
    if (place.tls) {
      snprintf(place.tls_trouble, sizeof place.tls_trouble, "%.*s", (int)test_below(20), "no module can be found");
    }
    pith_address address;
    pith__tcp_address_encode(&place, 77, &address);
    CHECK_OK(pith__tcp_address_decode(&address, 3, &read));
    CHECK_EQ(read.token, place.token);
    CHECK_EQ(read.connections, place.connections);
    CHECK_EQ(read.count, place.count);
    CHECK_EQ(read.tls, place.tls);
    CHECK_STR(read.tls_trouble, place.tls_trouble);
    CHECK_BYTES(read.at, place.at, sizeof *read.at * (size_t)read.count);
  }
}

TEST(link_local_addresses_keep_their_interface) {
  char text[PITH_SOCKADDR_TEXT];
  pith_sockaddr address;
  CHECK(pith__sockaddr_parse("fe80::1%lo", 80, &address));
  CHECK_EQ(address.v6.sin6_scope_id, if_nametoindex("lo"));
  CHECK_STR(pith__sockaddr_name(&address, text), "fe80::1%lo");
  CHECK_STR(pith__sockaddr_text(&address, text), "[fe80::1%lo]:80");
  CHECK(pith__sockaddr_parse("fe80::1%4000000000", 80, &address)); /* numbers, too; this interface has no name */
  CHECK_STR(pith__sockaddr_name(&address, text), "fe80::1%4000000000");
  const char *const wrong[] = {"fe80::1%", "fe80::1%nosuch", "fe80::1%0", "fd00::1%lo", "10.0.0.1%lo",
                               "%lo",      "fe80::1%1x"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    CHECK_MSG(!pith__sockaddr_parse(wrong[i], 80, &address), "%s was taken for an address", wrong[i]);
  }
}

TEST(peers_link_local_addresses_are_on_our_interface) {
  pith_transport_config config = {.interface = "lo"};
  pith_address address;
  tcp_place there = {.connections = 1, .count = 2}, here;
  CHECK(pith__sockaddr_parse("fe80::1%77", 0, &there.at[0])); /* the peer's number of its interface */
  CHECK(pith__sockaddr_parse("fd00::1", 0, &there.at[1]));
  pith__tcp_address_encode(&there, 80, &address);
  CHECK_OK(pith__tcp_address_decode(&address, 1, &here));
  pith__tcp_set_scope(&here, pith__tcp_scope(&config, &(tcp_place){.count = 0}));
  CHECK_EQ(here.at[0].v6.sin6_scope_id, if_nametoindex("lo"));
  CHECK_EQ(here.at[1].v6.sin6_scope_id, 0);
  CHECK_EQ(pith__tcp_scope(&config, &there), 77);
}

TEST(addresses_of_any_bytes_are_read_or_refused) {
  int refused = 0;
  for (int round = 0; round < 20000; round++) {
    pith_address address;
    tcp_place place;
    for (size_t i = 0; i < sizeof address.data; i++) {
      address.data[i] = (uint8_t)(test_below(3) ? test_below(8) : test_random());
    }
    address.size = (uint32_t)(test_below(10) ? test_below(PITH_ADDRESS_MAX + 1) : test_random());
    address.data[0] = 2;
    pith_status status = pith__tcp_address_decode(&address, 5, &place);
    CHECK(status == PITH_OK ? place.count >= 1 && place.count <= TCP_ADDRESSES_MOST : status == PITH_ERR_CORRUPT);
    CHECK(status != PITH_OK || (place.tls <= PITH_TLS_CERT && memchr(place.tls_trouble, 0, TCP_TROUBLE)));
    refused += status != PITH_OK;
  }
  CHECK(refused > 0 && refused < 20000);
  CHECK_ERROR_SAYS("rank 5");
}

/* ---- Strangers at the port --------------------------------------------------------------------------------------- */

static int connect_to(const pith_address *address) {
  tcp_place place;
  CHECK_OK(pith__tcp_address_decode(address, 0, &place));
  int fd = socket(place.at[0].any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(fd, &place.at[0].any, pith__sockaddr_size(&place.at[0])) == 0);
  return fd;
}

static void throw(int fd, const void *bytes, size_t size) {
  if (send(fd, bytes, size, MSG_NOSIGNAL) < 0) {
    CHECK(errno == EPIPE || errno == ECONNRESET);
  }
}

/* What this rank has to say to rank 0. */
static tcp_hello right_hello(world_rank *me, int index) {
  tcp_place place;
  CHECK_OK(pith__tcp_address_decode(world_address(me, 0), 0, &place));
  tcp_hello hello = {
      .version = TCP_HELLO_VERSION, .order = TCP_HELLO_ORDER, .ranks = (uint32_t)me->ranks, .rank = (uint32_t)me->rank};
  memcpy(hello.magic, TCP_HELLO_MAGIC, 8);
  hello.index = (uint32_t)index;
  hello.token = place.token;
  return hello;
}

static void say_nearly_right(int fd, world_rank *me, size_t wrong_byte) {
  tcp_hello hello = right_hello(me, 0);
  ((uint8_t *)&hello)[wrong_byte % sizeof hello] ^= (uint8_t)(1 + world_below(me, 255));
  throw(fd, &hello, sizeof hello);
  throw(fd, (uint8_t[PITH_SHA256_SIZE]){0}, PITH_SHA256_SIZE);
}

/* The last rank first harasses the others, silently, noisily and with forged hellos, then comes as it should. */
static void connect_among_strangers(world_rank *me) {
  int last = me->ranks - 1, fds[240];
  uint8_t wanted[WORLD_RANKS_MOST], noise[300];
  for (int p = 0; p < me->ranks; p++) {
    wanted[p] = p != me->rank;
  }
  world_listen(me, 10);
  world_barrier(me);
  for (int i = 0; me->rank == last && i < 240; i++) {
    for (size_t k = 0; k < sizeof noise; k++) {
      noise[k] = (uint8_t)world_below(me, 256);
    }
    fds[i] = connect_to(world_address(me, i % last));
    if (i % 3 == 1) {
      throw(fds[i], noise, 1 + world_below(me, sizeof noise));
    } else if (i % 3 == 2) {
      say_nearly_right(fds[i], me, (size_t)i / 3);
    }
    if (i % 5 == 0) {
      close(fds[i]);
      fds[i] = -1;
    }
  }
  CHECK_OK(world_connect(me, wanted));
  for (int p = 0; p < me->ranks; p++) {
    int from = -1;
    if (p != me->rank) {
      world_send(me, p, &me->rank, sizeof me->rank);
      world_receive(me, p, &from, sizeof from);
      CHECK_EQ(from, p);
    }
  }
  for (int i = 0; me->rank == last && i < 240; i++) {
    close(fds[i]);
  }
  world_barrier(me);
}

TEST(strangers_do_not_stop_the_job) {
  for (int round = 0; round < 3; round++) {
    world_run_unconnected(&processes, 4, 0, connect_among_strangers, NULL);
  }
}

/* An address with places that are wrong, or where nobody answers, before the right one. */
static void connect_at_the_second_address(world_rank *me) {
  pith_address address[2];
  tcp_place place;
  world_listen(me, 10);
  world_barrier(me);
  memcpy(address, world_address(me, 0), sizeof address);
  CHECK_OK(pith__tcp_address_decode(&address[0], 0, &place));
  uint16_t port = pith__sockaddr_port(&place.at[0]);
  place.at[1] = place.at[0];
  place.count = 2;
  CHECK(pith__sockaddr_parse(me->argument, 0, &place.at[0]));
  pith__tcp_address_encode(&place, port, &address[0]);
  pith_directory directory = directory_of(address);
  CHECK_OK(
      me->world->ops->connect(me->transport, &directory, (const uint8_t[]){me->rank != 0, me->rank != 1}, &me->key));
  world_barrier(me);
}

TEST(an_address_that_does_not_answer_is_passed_by) {
  world_run_unconnected(&processes, 2, 0, connect_at_the_second_address, "192.0.2.1"); /* for examples: nobody's */
}

TEST(an_address_that_refuses_is_passed_by) {
  interface = "127.0.0.1";
  world_run_unconnected(&processes, 2, 0, connect_at_the_second_address, "127.0.0.2");
}

/* Rank 1 says the right words and hangs up, as one does that tries its next address; then it comes to stay. */
static void call_twice(world_rank *me) {
  world_listen(me, 10);
  world_barrier(me);
  if (me->rank == 1) {
    for (int index = 0; index < 2; index++) {
      tcp_hello hello = right_hello(me, index);
      int fd = connect_to(world_address(me, 0));
      throw(fd, &hello, sizeof hello);
      usleep(50000); /* heard and answered */
      close(fd);
    }
  }
  CHECK_OK(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}));
  int from = -1;
  world_send(me, !me->rank, &me->rank, sizeof me->rank);
  world_receive(me, !me->rank, &from, sizeof from);
  CHECK_EQ(from, !me->rank);
  world_barrier(me);
}

TEST(no_link_is_made_of_calls_that_were_given_up) {
  use_connections(2);
  world_run_unconnected(&processes, 2, 0, call_twice, NULL);
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static void ignore(int signal_number) { (void)signal_number; }

static void exchange_under_signals(world_rank *me) {
  enum { TOTAL = 20 << 20 };
  struct sigaction action = {.sa_handler = ignore}; /* without SA_RESTART: every call may be interrupted */
  sigaction(SIGALRM, &action, NULL);
  uint8_t *bytes = calloc(1, TOTAL);
  CHECK(bytes);
  ualarm(300, 300);
  if (me->rank == 0) {
    for (size_t i = 0; i < TOTAL; i++) {
      bytes[i] = (uint8_t)(i * 7 + i / 256);
    }
  }
  for (size_t done = 0; done < TOTAL;) {
    size_t moved = 0;
    struct iovec piece = {bytes + done, TOTAL - done};
    CHECK_OK(me->rank == 0 ? me->world->ops->send(me->transport, 1, &piece, 1, &moved)
                           : me->world->ops->receive(me->transport, 0, bytes + done, TOTAL - done, &moved));
    done += moved;
  }
  for (size_t i = 0; i < TOTAL; i++) {
    if (bytes[i] != (uint8_t)(i * 7 + i / 256)) {
      CHECK_MSG(0, "byte %zu is wrong", i);
    }
  }
  ualarm(0, 0);
  world_barrier(me);
  free(bytes);
}

TEST(signals_do_not_disturb) { world_run(&processes, 2, 0, exchange_under_signals, NULL); }
