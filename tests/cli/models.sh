#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The models of the shm ring and of the rendezvous hold, and their broken variants do not: tools/models.
. "$(dirname "$0")/../shell.sh"

the_models_hold_and_their_broken_variants_do_not() {
  need_plain_build
  need spin
  exits 0 "$root/tools/models"
  says out "rendezvous  is right"
  says out "shm_ring -DNO_BARRIER is wrong"
}

run_tests the_models_hold_and_their_broken_variants_do_not
