#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What encryption costs: q:4 allreduce of 16 MiB on 4 hosts of pith lab, in clear and with TLS in turns, behind links of each rate.
#
#   bench/tls_lab.sh [BUILD]
#   RATES="1gbit 5gbit" RANKS=4 SPEC=q:4 MIB=16 ROUNDS=30
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
cmake --build "$build" --target pith_cli pith_tls tls_allreduce >/dev/null
PITH_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
PITH_MODULE_PATH=$(cd "$build" && pwd)
export PITH_SECRET PITH_MODULE_PATH
if command -v openssl >/dev/null; then
  openssl speed -seconds 1 -bytes 16384 -evp aes-128-gcm 2>/dev/null |
    awk '/^AES|^aes/ { printf "# one core encrypts %.1f GB/s by AES-128-GCM, in pieces of 16 KiB\n", $2 / 1e6 }'
fi
for rate in ${RATES:-1gbit 5gbit}; do
  echo "# ${RANKS:-4} hosts behind $rate, ${SPEC:-q:4}, ${MIB:-16} MiB, ${ROUNDS:-30} rounds"
  "$build/pith" lab --no-prefix -n "${RANKS:-4}" --rate "$rate" -- "$build/bench/tls_allreduce" "${SPEC:-q:4}" "${MIB:-16}" "${ROUNDS:-30}"
done
