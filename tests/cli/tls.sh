#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Encryption of tcp links as a user turns it on: one variable, what is said where it cannot be had, and secrets that stay secret.
. "$(dirname "$0")/../shell.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PITH_PORT PITH_HOSTID PITH_TRANSPORT PITH_TRACE PITH_SECRET PITH_TLS PITH_TLS_CERT PITH_TLS_KEY \
  PITH_TLS_CA

[ -e "$build/pith_tls.so" ] || no_module=1
need_tls() { [ -z "${no_module:-}" ] || lacks tls "no $build/pith_tls.so: install libssl-dev and build again"; }

secret=a-secret-that-can-be-recognized-7c0ffee1

# bench TRANSPORT ARGUMENT…: two ranks
bench() {
  transport=$1 && shift
  "$pith" run --no-prefix -n 2 -- "$@" "$pith" bench allreduce --transport "$transport" -b 64K -e 64K -n 2 -w 1 --wide
}

one_variable_encrypts_tcp() {
  need_tls
  PITH_SECRET=$secret PITH_TLS=psk PITH_DEBUG=INFO PITH_DEBUG_FILE=$temp/log.%p
  export PITH_SECRET PITH_TLS PITH_DEBUG PITH_DEBUG_FILE
  exits 0 bench tcp env
  awk '/^ *65536/ { exit !($8 == "0") }' "$temp/out"
  [ "$(cat "$temp"/log.* | grep -c 'encrypted by TLS 1.3 (psk)')" = 2 ] || { cat "$temp"/log.* && return 1; }
  exits 0 env PITH_TLS=off "$pith" run --no-prefix -n 2 -- "$pith" bench barrier --transport tcp -n 1
  [ "$(cat "$temp"/log.* | grep -c 'encrypted by TLS 1.3')" = 2 ]
}

certificates_encrypt_tcp() {
  need_tls
  need openssl
  # the commands of docs/security.md
  (
    cd "$temp"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=job-ca -keyout ca.key -out ca.pem
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=rank -keyout rank.key -out rank.pem \
      -CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:false
  ) 2>/dev/null
  PITH_SECRET=$secret PITH_TLS=cert PITH_TLS_CERT=$temp/rank.pem PITH_TLS_KEY=$temp/rank.key PITH_TLS_CA=$temp/ca.pem
  export PITH_SECRET PITH_TLS PITH_TLS_CERT PITH_TLS_KEY PITH_TLS_CA
  exits 0 bench tcp env
  exits 0 "$pith" doctor --no-python
  exits 1 env PITH_TLS_KEY="$temp/ca.key" "$pith" doctor --no-python
  says out 'key values mismatch'
}

shared_memory_needs_no_module() {
  exits 0 env PITH_SECRET=$secret PITH_TLS=psk PITH_MODULE_PATH=/nowhere "$pith" run --no-prefix -n 2 -- "$pith" bench barrier -n 1
}

what_cannot_be_encrypted_is_refused() {
  exits 1 env PITH_TLS=psk "$pith" run --no-prefix -n 2 -- "$pith" bench barrier -n 1
  says err 'takes its key from PITH_SECRET, which is not set'
  exits 1 env PITH_TLS=cert "$pith" run --no-prefix -n 2 -- "$pith" bench barrier -n 1
  says err 'PITH_TLS_CERT is not set'
  exits 1 env PITH_TLS=psk PITH_SECRET=$secret "$pith" run --no-prefix -n 2 -- "$pith" bench barrier -n 1 --transport ucx
  says err 'the ucx transport sends in clear'
}

# One rank with, one without: both say so, and nothing is sent in clear.
a_rank_without_encryption_is_named() {
  need_tls
  # shellcheck disable=SC2016
  exits 1 env PITH_SECRET=$secret bash -c '"$0" run --no-prefix -n 2 -- sh -c '\''[ $RANK = 0 ] && export PITH_TLS=psk
    "$0" bench barrier -n 1 --transport tcp; sleep 0.3; exit 1'\'' "$0"' "$pith"
  says err 'rank 0 has PITH_TLS=psk and rank 1 has PITH_TLS=off'
  says err 'rank 1 has PITH_TLS=off and rank 0 has PITH_TLS=psk'
}

doctor_reports_encryption() {
  need_tls
  exits 0 env PITH_SECRET=$secret PITH_TLS=psk "$pith" doctor --no-python
  says out 'TLS 1.3 by OpenSSL'
  says out 'PITH_TLS'
  exits 0 "$pith" doctor --no-python --json
  says out '"tls"'
  exits 1 env PITH_TLS=psk "$pith" doctor --no-python
  says out 'PITH_SECRET, which is not set'
  exits 1 env PITH_TLS=yes "$pith" doctor --no-python
  says out 'expected psk|cert|off'
}

# All that a job says, with everything switched on that makes it talk, also where it fails.
the_secret_is_never_shown() {
  need_tls
  PITH_SECRET=$secret PITH_DEBUG=TRACE PITH_DEBUG_FILE=$temp/all.%p PITH_TRACE=$temp/trace.%r.%p
  export PITH_SECRET PITH_DEBUG PITH_DEBUG_FILE PITH_TRACE
  for tls in off psk; do
    exits 0 env PITH_TLS=$tls "$pith" run --no-prefix -n 2 -- "$pith" bench allreduce --transport tcp -b 64K -e 64K -n 2 -w 1 --codec q:4
    cat "$temp/out" "$temp/err" >>"$temp/all"
  done
  # shellcheck disable=SC2016
  exits 1 "$pith" run --no-prefix -n 2 -- sh -c '[ $RANK = 0 ] || PITH_SECRET=$PITH_SECRET-wrong; PITH_TIMEOUT=1 "$0" bench barrier -n 1' "$pith"
  cat "$temp/out" "$temp/err" >>"$temp/all"
  for form in '' --json; do
    # shellcheck disable=SC2086
    exits 0 env PITH_TLS=psk "$pith" doctor --no-python $form
    cat "$temp/out" "$temp/err" >>"$temp/all"
  done
  cat "$temp"/all.* "$temp"/trace.* >>"$temp/all"
  grep -q 'TLS 1.3 (psk)' "$temp/all" # logs are there
  grep -q '"ph":"X"' "$temp/all"      # and traces
  grep -q 'secret' "$temp/all"        # and the error about it
  if grep -F "$secret" "$temp/all"; then return 1; fi
}

run_tests one_variable_encrypts_tcp certificates_encrypt_tcp shared_memory_needs_no_module what_cannot_be_encrypted_is_refused \
  a_rank_without_encryption_is_named doctor_reports_encryption the_secret_is_never_shown
