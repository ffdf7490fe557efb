/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this rank can be reached, and how that is written down.
 *
 * Without an interface to listen on, peers are told the address from which this machine reaches rank 0's: on a cluster
 * that is the right network, and on one machine it is loopback. It is loopback, too, where a machine's own name means
 * 127.0.1.1; so then the other addresses follow it, and peers try one after another. A wrong machine does no harm: it
 * lacks our token.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/tcp.h"

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* The local end of a route, without sending anything. */
static int local_end(const pith_sockaddr *to, pith_sockaddr *here) {
  int fd = socket(to->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return 0;
  }
  int is_found = connect(fd, &to->any, pith__sockaddr_size(to)) == 0 && pith__socket_local(fd, here) == 0;
  close(fd);
  return is_found;
}

static int route_to(const char *host, pith_sockaddr *here) {
  pith_sockaddr found[TCP_ADDRESSES_MOST];
  const char *why;
  int count = pith__sockaddr_resolve(host, 9, found, TCP_ADDRESSES_MOST, &why); /* any port will do */
  for (int i = 0; i < count; i++) {
    if (local_end(&found[i], here)) {
      return 1;
    }
  }
  return 0;
}

/* Which addresses of an interface: link-local ones mean nothing without the interface of who reads them, so others come
 * first. */
typedef enum address_kind { KIND_V4, KIND_V6, KIND_LINK_LOCAL, KIND_NONE } address_kind;

static address_kind kind_of(const struct ifaddrs *entry) {
  if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) {
    return KIND_NONE;
  }
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)entry->ifa_addr;
  int family = entry->ifa_addr->sa_family;
  return family == AF_INET                       ? KIND_V4
         : family != AF_INET6                    ? KIND_NONE
         : IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? KIND_LINK_LOCAL
                                                 : KIND_V6;
}

static void add_address(tcp_place *place, const struct sockaddr *address) {
  if (place->count == TCP_ADDRESSES_MOST) {
    return;
  }
  pith_sockaddr *to = &place->at[place->count++];
  memset(to, 0, sizeof *to);
  memcpy(to, address, address->sa_family == AF_INET6 ? sizeof to->v6 : sizeof to->v4);
  pith__sockaddr_set_port(to, 0);
}

/* The addresses of one kind of an interface; of all but loopback ones if it is NULL. */
static void add_interface(tcp_place *place, const struct ifaddrs *list, const char *name, address_kind kind) {
  for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
    int is_meant = name ? strcmp(entry->ifa_name, name) == 0 : !(entry->ifa_flags & IFF_LOOPBACK);
    if (is_meant && kind_of(entry) == kind) {
      add_address(place, entry->ifa_addr);
    }
  }
}

static pith_status unknown_interface(const char *name, const struct ifaddrs *list) {
  char names[256] = "";
  for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
    size_t used = strlen(names);
    if (kind_of(entry) != KIND_NONE && !strstr(names, entry->ifa_name)) {
      snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", entry->ifa_name);
    }
  }
  return pith_fail(PITH_ERR_ARGUMENT, "no interface or address \"%s\" to listen on here; there are %s", name, names);
}

/* One address is bound and told: the first of the interface. */
static pith_status choose_interface(const char *name, const struct ifaddrs *list, pith_sockaddr *bind_to,
                                    tcp_place *place) {
  pith_sockaddr parsed;
  if (pith__sockaddr_parse(name, 0, &parsed)) {
    add_address(place, &parsed.any);
  } else {
    add_interface(place, list, name, KIND_V4);
    add_interface(place, list, name, KIND_V6);
    add_interface(place, list, name, KIND_LINK_LOCAL);
  }
  if (place->count == 0) {
    return unknown_interface(name, list);
  }
  place->count = 1;
  *bind_to = place->at[0];
  return PITH_OK;
}

static pith_status choose_route(const char *host, const struct ifaddrs *list, pith_sockaddr *bind_to,
                                tcp_place *place) {
  pith_sockaddr here;
  if (!route_to(host ? host : "127.0.0.1", &here)) {
    return pith_fail(PITH_ERR_SYSTEM, "no route to rank 0's machine %s", host ? host : "127.0.0.1");
  }
  add_address(place, &here.any);
  if (pith__sockaddr_is_loopback(&here)) {
    add_interface(place, list, NULL, KIND_V4);
    add_interface(place, list, NULL, KIND_V6);
  }
  *bind_to = pith__sockaddr_everywhere(0);
  return PITH_OK;
}

pith_status pith__tcp_choose(const pith_transport_config *config, pith_sockaddr *bind_to, tcp_place *place) {
  struct ifaddrs *list = NULL;
  PITH_REQUIRE(getifaddrs(&list) == 0, PITH_ERR_SYSTEM, "cannot list network interfaces: %s", strerror(errno));
  place->count = 0;
  int is_named = config->interface && *config->interface;
  pith_status status = is_named ? choose_interface(config->interface, list, bind_to, place)
                                : choose_route(config->rendezvous_host, list, bind_to, place);
  freeifaddrs(list);
  return status;
}

/* ---- Scopes ------------------------------------------------------------------------------------------------------ */

uint32_t pith__tcp_scope(const pith_transport_config *config, const tcp_place *own) {
  for (int i = 0; i < own->count; i++) {
    if (pith__sockaddr_is_link_local(&own->at[i])) {
      return own->at[i].v6.sin6_scope_id;
    }
  }
  return config->interface ? if_nametoindex(config->interface) : 0;
}

void pith__tcp_set_scope(tcp_place *place, uint32_t scope) {
  for (int i = 0; i < place->count; i++) {
    if (pith__sockaddr_is_link_local(&place->at[i])) {
      place->at[i].v6.sin6_scope_id = scope;
    }
  }
}

/* ---- Writing down ------------------------------------------------------------------------------------------------ */

/* version 1, connections 1, port 2 (high byte first), token 8, mode of TLS 1, number of addresses 1; each address: its
 * family, 4 or 6, and its bytes; then, if this rank cannot encrypt though it should, the reason in words. */
enum { ADDRESS_VERSION = 2, ADDRESS_HEAD = 14 };
_Static_assert(ADDRESS_HEAD + TCP_ADDRESSES_MOST * 17 + TCP_TROUBLE <= PITH_ADDRESS_MAX, "an address must fit");

void pith__tcp_address_encode(const tcp_place *place, uint16_t port, pith_address *address) {
  uint8_t *to = address->data;
  size_t trouble = strlen(place->tls_trouble);
  memset(address, 0, sizeof *address);
  to[0] = ADDRESS_VERSION;
  to[1] = (uint8_t)place->connections;
  to[2] = (uint8_t)(port >> 8);
  to[3] = (uint8_t)port;
  memcpy(to + 4, &place->token, 8);
  to[12] = (uint8_t)place->tls;
  to[13] = (uint8_t)place->count;
  to += ADDRESS_HEAD;
  for (int i = 0; i < place->count; i++) {
    int is_v6 = place->at[i].any.sa_family == AF_INET6;
    size_t size = is_v6 ? 16 : 4;
    *to++ = is_v6 ? 6 : 4;
    memcpy(to, is_v6 ? (const void *)&place->at[i].v6.sin6_addr : &place->at[i].v4.sin_addr, size);
    to += size;
  }
  memcpy(to, place->tls_trouble, trouble);
  address->size = (uint32_t)(to - address->data + (ptrdiff_t)trouble);
}

/* Reads one address at `from`; returns the bytes it took, 0 if it is none. */
static size_t decode_one(const uint8_t *from, size_t left, uint16_t port, pith_sockaddr *at) {
  size_t size = left == 0 ? 0 : from[0] == 4 ? 4 : from[0] == 6 ? 16 : 0;
  if (size == 0 || left < 1 + size) {
    return 0;
  }
  memset(at, 0, sizeof *at);
  at->any.sa_family = size == 4 ? AF_INET : AF_INET6;
  memcpy(size == 4 ? (void *)&at->v4.sin_addr : &at->v6.sin6_addr, from + 1, size);
  pith__sockaddr_set_port(at, port);
  return 1 + size;
}

/* Text for people, from an address that anybody may have written. */
static void decode_text(const uint8_t *from, size_t size, char text[TCP_TROUBLE]) {
  for (size_t i = 0; i < size; i++) {
    text[i] = (char)(from[i] < 0x20 || from[i] >= 0x7f ? '?' : from[i]);
  }
  text[size] = 0;
}

static int is_head_plausible(const uint8_t *head, size_t size) {
  return size >= ADDRESS_HEAD && size <= PITH_ADDRESS_MAX && head[0] == ADDRESS_VERSION && head[1] >= 1 &&
         head[1] <= TCP_CONNECTIONS_MOST && head[12] <= PITH_TLS_CERT && head[13] >= 1 &&
         head[13] <= TCP_ADDRESSES_MOST;
}

pith_status pith__tcp_address_decode(const pith_address *address, int rank, tcp_place *place) {
  const uint8_t *from = address->data;
  size_t size = address->size, used = ADDRESS_HEAD;
  PITH_REQUIRE(is_head_plausible(from, size), PITH_ERR_CORRUPT, "rank %d's tcp address is malformed", rank);
  uint16_t port = (uint16_t)(from[2] << 8 | from[3]);
  place->connections = from[1];
  memcpy(&place->token, from + 4, 8);
  place->tls = (pith_tls_mode)from[12];
  place->count = 0;
  for (size_t step = 1; place->count < from[13] && step > 0; used += step) {
    step = decode_one(from + used, size - used, port, &place->at[place->count]);
    place->count += step > 0;
  }
  PITH_REQUIRE(place->count == from[13] && size - used < TCP_TROUBLE && (size == used || place->tls != PITH_TLS_OFF),
               PITH_ERR_CORRUPT, "rank %d's tcp address is malformed", rank);
  decode_text(from + used, size - used, place->tls_trouble);
  return PITH_OK;
}
