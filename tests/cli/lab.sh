#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `pith lab`: links have the rate they should, and nothing is left afterwards, however it ends. And what crosses them.
# shellcheck disable=SC2016,SC2086
. "$(dirname "$0")/../shell.sh"
unset PITH_SECRET PITH_HOSTID PITH_IFNAME PITH_PORT PITH_TRANSPORT PITH_ALGO PITH_INSIDE
export temp

# Where a lab cannot run, the reason is the one that doctor gives.
need_lab() {
  reason=$("$pith" doctor --no-python | tr '\n' ' ' | sed -n 's/.*pith lab cannot run: \(.*\) kernels  *scalar.*/\1/p')
  [ -z "$reason" ] || lacks lab "pith lab cannot run here: $reason"
}

# What others can see of networks: interfaces, named namespaces.
look() {
  ip -o link | sed 's/ state .*//'
  ip netns list
}

waits() {
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "waited in vain for: $*" && return 1; }
    sleep 0.05
  done
}
is_gone() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }
has_text() { [ -s "$1" ]; }
is_free() { ! readlink /proc/[0-9]*/ns/net /proc/[0-9]*/ns/user /proc/[0-9]*/fd/* 2>/dev/null | grep -qxF "$1"; }
is_absent() { [ ! -e "$1" ]; }

each_host_is_a_network_of_its_own() {
  need_lab
  exits 0 "$pith" lab -n 5 --per-host 2 --rate 1gbit --mtu 9000 -- \
    sh -c 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $PITH_IFNAME"; echo "net $GROUP_RANK $(readlink /proc/self/ns/net)"; echo "id $PITH_HOSTID"; ip -o -4 addr show dev $PITH_IFNAME; ip -o link show'
  says err 'lab of 3 hosts, 2 ranks on each, behind links of 1gbit each way'
  says out '[0] 0/5 0/2 0 10.77.0.1 link0'
  says out '[3] 3/5 1/2 1 10.77.0.1 link0'
  says out '[4] 4/5 0/1 2 10.77.0.1 link0'
  grep -q '^\[3\].*inet 10\.77\.0\.2/16' "$temp/out"
  grep -q '^\[3\].*mtu 9000.*state UP' "$temp/out"
  grep -q '^\[3\].* lo: <LOOPBACK,UP' "$temp/out"
  [ "$(sed -n 's/.*\] net //p' "$temp/out" | sort -u | wc -l)" = 3 ]
  [ "$(sed -n 's/.*\] id //p' "$temp/out" | sort -u | wc -l)" = 3 ]
  ! grep -q "$(readlink /proc/self/ns/net)" "$temp/out"
}

# SIZE bytes from rank 1 to rank 0 and back, each timed by rank 0 and compared with RATE.
cat >"$temp/transfer.py" <<'END2'
import os, socket, time

SIZE, RATE = int(float(os.environ["SIZE"])), float(os.environ["RATE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def receive(peer, left):
    while left:
        left -= len(peer.recv(min(left, 1 << 16))) or exit("lost the peer")

def connect():
    while True:
        try:
            return socket.create_connection(where)
        except ConnectionRefusedError:
            time.sleep(0.02)

if os.environ["RANK"] == "0":
    peer = socket.create_server(where).accept()[0]
    start = time.perf_counter()
    peer.sendall(b"?")
    receive(peer, SIZE)
    middle = time.perf_counter()
    peer.sendall(bytes(SIZE))
    receive(peer, 1)
    for way, seconds in ("in", middle - start), ("out", time.perf_counter() - middle):
        part = SIZE * 8 / seconds / RATE
        print(f"{way}: {part:.3f} of the rate", flush=True)
        assert 0.7 < part < 1.1, part
else:
    peer = connect()
    receive(peer, 1)
    peer.sendall(bytes(SIZE))
    receive(peer, SIZE)
    peer.sendall(b"!")
END2

links_have_their_rate_in_both_directions() {
  need_lab
  need python3
  exits 0 "$pith" lab -n 2 --rate 100mbit --env SIZE=5e6 --env RATE=100e6 -- python3 "$temp/transfer.py"
  says out '[0] in: 0.'
  says out '[0] out: 0.'
}

# Rank 0 changes the links; all wait until theirs has changed, and transfers have the new rate.
links_change_when_told_to() {
  need_lab
  need python3
  exits 0 "$pith" lab -n 2 --rate 100mbit --control "$temp/control" -- sh -c '
    rate() { tc qdisc show dev "$PITH_IFNAME" | sed -n "s/.* rate \([^ ]*\) .*/\1/p"; }
    echo "before: $(rate)"
    SIZE=5e6 RATE=100e6 python3 "$temp/transfer.py"
    [ "$RANK" != 0 ] || { echo 1mbyte; echo 10mbit; } >"$temp/control"
    tries=0
    until [ "$(rate)" = 10Mbit ] || [ $tries = 100 ]; do tries=$((tries + 1)); sleep 0.05; done
    sleep 0.3
    echo "after: $(rate)"
    SIZE=1e6 RATE=10e6 python3 "$temp/transfer.py"'
  says out '[0] before: 100Mbit'
  says out '[1] before: 100Mbit'
  says out '[0] after: 10Mbit'
  says out '[1] after: 10Mbit'
  [ "$(grep -c 'of the rate' "$temp/out")" = 4 ]
  says err '"1mbyte" is not a rate'
  says err 'links of 10mbit each way from now on'
  [ ! -e "$temp/control" ]
}

# Ranks 0 and 1 send each other datagrams. When they hear each other, rank 0 has the fault done to host 1, and half a
# second later has it undone; both end half a second after that, and print the longest time in which they heard nothing.
cat >"$temp/beacon.py" <<'END2'
import os, socket, time

def order(text):
    if rank == 0:
        with open(os.environ["CONTROL"], "w") as control:
            control.write(text + " 1\n")

rank = int(os.environ["RANK"])
mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mine.bind((f"10.77.0.{rank + 1}", 7000))
mine.setblocking(False)
orders = [(0.2, os.environ["FAULT"]), (0.7, os.environ["UNDO"])]
first = last = None
gap = 0.0
while first is None or time.monotonic() - first < 1.4:
    try:
        mine.sendto(b"x", (f"10.77.0.{2 - rank}", 7000))
    except OSError:
        pass
    time.sleep(0.01)
    try:
        while mine.recv(10):
            now = time.monotonic()
            gap = max(gap, now - last) if last else 0.0
            first, last = first or now, now
    except OSError:
        pass
    if first and orders and time.monotonic() - first > orders[0][0]:
        order(orders.pop(0)[1])
print(f"silent for {gap:.3f} s, then for {time.monotonic() - last:.3f}", flush=True)
END2

# beacons FAULT UNDO: runs them.
beacons() {
  exits 0 "$pith" lab -n 2 --rate 100mbit --control "$temp/control" --env CONTROL="$temp/control" --env FAULT="$1" --env UNDO="$2" -- \
    sh -c 'python3 "$temp/beacon.py"; true' # a child of the rank
}
# is_cut RANK: it heard nothing for some time, and something afterwards. hears RANK: it always heard something.
is_silent() { awk -v rank="[$1]" -v least="$2" -v most="$3" '$1 == rank { good = $4 >= least && $4 < most } END { exit !good }' "$temp/out"; }
is_cut() { is_silent "$1" 0.35 1.2 || { cat "$temp/out" "$temp/err" && return 1; }; }
hears() { is_silent "$1" 0 0.35 || { cat "$temp/out" "$temp/err" && return 1; }; }

a_host_is_cut_off_and_comes_back() {
  need_lab
  need python3
  beacons cut restore
  says err 'host 1 is cut off'
  says err 'host 1 has its link back'
  is_cut 0
  is_cut 1
}

a_link_is_cut_in_one_direction() {
  need_lab
  need python3
  beacons cut-in restore
  says err 'host 1 receives nothing'
  hears 0
  is_cut 1
  beacons cut-out restore
  says err 'host 1 sends nothing'
  is_cut 0
  hears 1
}

a_host_is_paused_with_all_it_runs() {
  need_lab
  need python3
  beacons pause resume
  says err 'host 1 is paused'
  says err 'host 1 goes on'
  is_cut 0
}

a_host_is_slowed_down_and_faults_come_from_the_pipe() {
  need_lab
  exits 0 "$pith" lab -n 2 --rate 100mbit --control "$temp/control" -- sh -c '
    rate() { tc qdisc show dev "$PITH_IFNAME" | sed -n "s/.* rate \([^ ]*\) .*/\1/p"; }
    becomes() {
      tries=0
      until [ "$(rate)" = "$1" ] || [ $tries = 100 ]; do tries=$((tries + 1)); sleep 0.02; done
      echo "$1: $(rate)"
    }
    [ $RANK = 1 ] || exit 0
    { echo slow 1 64kbit; echo cut 7; echo pauze 1; } >"$temp/control"
    becomes 64Kbit
    echo 1gbit >"$temp/control"
    echo restore 1 >"$temp/control"
    becomes 1Gbit'
  says out '[1] 64Kbit: 64Kbit'
  says out '[1] 1Gbit: 1Gbit'
  says err 'host 1 has a link of 64000 bit/s each way'
  says err 'there is no host 7: this lab has 2'
  says err 'there is no fault "pauze", did you mean "pause"?'
}

# A host that is paused when the lab is asked to end hears of it all the same.
a_paused_host_ends_with_the_lab() {
  need_lab
  "$pith" lab -n 2 --rate 1gbit --grace 20 --fault pause:0@0.1s,pause:1@0.1s -- sleep 1000 >"$temp/said" 2>&1 &
  launcher=$!
  waits grep -q 'host 1 is paused' "$temp/said"
  kill -TERM $launcher
  waits is_gone $launcher
}

# Ranks of a real job name the host that was cut off.
a_job_names_the_rank_that_was_cut_off() {
  need_lab
  exits 1 "$pith" lab -n 3 --rate 1gbit --env PITH_TIMEOUT=1 --fault cut:2@0.5s -- \
    "$pith" bench allreduce -b 4K -e 4K -n 100000 -w 0
  says err 'for rank 2 without a sign of life'
}

exit_codes_are_those_of_ranks() {
  need_lab
  exits 4 "$pith" lab -n 2 --rate 1gbit -- sh -c '[ $RANK = 0 ] || exit 4; sleep 1000'
  says err "rank 1 on lab"
  exits 127 "$pith" lab -n 2 --rate 1gbit -- /nowhere/at-all
}

several_labs_at_once() {
  need_lab
  for lab in 1 2 3; do
    "$pith" lab -n 3 --rate 2.5gbit -- sh -c 'sleep 0.3; echo $PITH_HOSTID' >"$temp/lab.$lab" 2>&1 &
  done
  wait
  [ "$(cat "$temp"/lab.? | grep -c '^\[')" = 9 ]
  [ "$(cat "$temp"/lab.? | sed -n 's/^\[.\] //p' | sort -u | wc -l)" = 9 ]
}

nothing_is_left() {
  need_lab
  look >"$temp/before"
  exits 0 "$pith" lab -n 3 --rate 1gbit -- sh -c 'ip -o link'
  look >"$temp/after"
  cmp "$temp/before" "$temp/after"
}

# ended_by SIGNAL: while it runs, nothing is to be seen of it either.
ended_by() {
  need_lab
  rm -f "$temp"/rank.* "$temp"/child.*
  look >"$temp/before"
  "$pith" lab -n 2 --rate 1gbit --control "$temp/control" -- sh -c 'sleep 1000 & echo $! >"$temp/child.$RANK"; echo $$ >"$temp/rank.$RANK"; wait' \
    >"$temp/said" 2>&1 &
  launcher=$!
  for file in rank.0 rank.1 child.0 child.1; do
    waits has_text "$temp/$file"
  done
  networks=$(readlink "/proc/$(cat "$temp/rank.0")/ns/net" "/proc/$(cat "$temp/rank.1")/ns/net")
  [ "$(echo "$networks" | sort -u | wc -l)" = 2 ]
  look >"$temp/during"
  [ -p "$temp/control" ]
  kill "-$1" $launcher
  wait $launcher || true
  for file in rank.0 rank.1 child.0 child.1; do
    waits is_gone "$(cat "$temp/$file")"
  done
  waits is_absent "$temp/control"
  look >"$temp/after"
  cmp "$temp/before" "$temp/during"
  cmp "$temp/before" "$temp/after"
  for network in $networks; do
    if readlink /proc/[0-9]*/ns/net /proc/[0-9]*/fd/* 2>/dev/null | grep -qxF "$network"; then
      echo "$network is still held" && return 1
    fi
  done
}

nothing_is_left_after_sigterm() { ended_by TERM; }
nothing_is_left_after_sigkill() { ended_by KILL; }

# At any moment of setting up, too.
nothing_is_left_if_killed_halfway() {
  need_lab
  look >"$temp/before"
  for pause in 0.002 0.005 0.01 0.02 0.04; do
    "$pith" lab -n 8 --rate 1gbit -- sleep 1000 >"$temp/said" 2>&1 &
    launcher=$!
    sleep $pause
    kill -KILL $launcher
    wait $launcher || true
  done
  look >"$temp/after"
  cmp "$temp/before" "$temp/after"
}

# ---- As an ordinary user ---------------------------------------------------------------------------------------------

# A command behind $as_user runs as nobody, who has no rights at all. As somebody else than root, as oneself.
as_user=
[ "$(id -u)" != 0 ] || as_user='setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all'

# A copy of the command that nobody can read, and a folder that nobody can write to. Skips where the kernel refuses.
need_user_lab() {
  need setpriv
  need ip
  mkdir -p "$temp/user"
  cp "$pith" "$temp/user/pith"
  cp "$temp/transfer.py" "$temp/user/transfer.py"
  chmod 755 "$temp" "$temp/user/pith" && chmod 777 "$temp/user"
  refusal=$($as_user "$temp/user/pith" lab -n 1 --rate 1gbit -- true 2>&1) || lacks userns "$refusal"
}

a_user_makes_a_lab() {
  need_user_lab
  exits 0 $as_user "$temp/user/pith" lab -n 4 --per-host 2 --rate 1gbit -- \
    sh -c 'echo "id $(id -u):$(id -g) rights $(sed -n "s/^CapEff:[[:space:]]*//p" /proc/self/status)"; echo "net $(readlink /proc/self/ns/net)"; echo $RANK >"$0.$RANK"' "$temp/user/written"
  says err 'in a user namespace of its own'
  [ "$(sed -n 's/.*\] net //p' "$temp/out" | sort -u | wc -l)" = 2 ]
  user=$($as_user id -u):$($as_user id -g)
  [ "$(grep -c "id $user rights 0000000000000000" "$temp/out")" = 4 ] # ranks are the user, without rights
  [ "$(stat -c %u:%g "$temp/user/written.3")" = "$user" ]
}

links_of_a_user_have_their_rate() {
  need_user_lab
  need python3
  python=python3
  $as_user python3 -c '' 2>/dev/null || python=/usr/bin/python3
  $as_user $python -c '' 2>/dev/null || skip "this user cannot run python3"
  exits 0 $as_user "$temp/user/pith" lab -n 2 --rate 100mbit --control "$temp/user/control" --env SIZE=5e6 --env RATE=100e6 -- \
    $python "$temp/user/transfer.py"
  says out '[0] in: 0.'
  says out '[0] out: 0.'
}

a_user_cuts_and_pauses_hosts() {
  need_user_lab
  exits 0 $as_user "$temp/user/pith" lab -n 2 --rate 100mbit --fault cut:1@0.1s+0.1s,pause:1@0.3s+0.1s,slow:1:1mbit@0.4s -- sleep 0.6
  for text in 'is cut off' 'has its link back' 'is paused' 'goes on' 'has a link of 1000000 bit/s'; do
    says err "host 1 $text"
  done
  ! grep -q failed "$temp/err"
}

a_user_benchmarks_over_slow_links() {
  need_user_lab
  exits 0 $as_user "$temp/user/pith" lab --no-prefix -n 4 --per-host 2 --rate 100mbit -- \
    "$temp/user/pith" bench allreduce -b 1M -e 1M -n 2 -w 1 --codec q:4 --wide
  says out 'on 4 ranks over shm and tcp'
  awk '$4 == "q:4" { found = $12 > 2 } END { exit !found }' "$temp/out" || { cat "$temp/out" && return 1; }
}

# ended_as_user SIGNAL: no process, no namespace and no interface is left.
ended_as_user() {
  need_user_lab
  rm -f "$temp"/user/pid.*
  look >"$temp/before"
  $as_user "$temp/user/pith" lab -n 2 --rate 1gbit -- \
    sh -c 'sleep 1000 & echo $! >"$0.child.$RANK"; echo $$ >"$0.$RANK"; wait' "$temp/user/pid" >"$temp/said" 2>&1 &
  launcher=$!
  for name in 0 1 child.0 child.1; do
    waits has_text "$temp/user/pid.$name"
  done
  networks=$(readlink "/proc/$(cat "$temp/user/pid.0")/ns/net" "/proc/$(cat "$temp/user/pid.1")/ns/net")
  users=$(readlink "/proc/$(cat "$temp/user/pid.0")/ns/user")
  [ "$(echo "$networks" | sort -u | wc -l)" = 2 ]
  [ "$users" != "$(readlink /proc/self/ns/user)" ]
  kill "-$1" $launcher
  wait $launcher || true
  for name in 0 1 child.0 child.1; do
    waits is_gone "$(cat "$temp/user/pid.$name")"
  done
  look >"$temp/after"
  cmp "$temp/before" "$temp/after"
  for space in $networks $users; do
    waits is_free "$space"
  done
}

# A job in the background of a script ignores SIGINT: TERM stands for Ctrl-C there, and KILL for all that cannot be caught.
nothing_of_a_user_is_left_after_sigterm() { ended_as_user TERM; }
nothing_of_a_user_is_left_after_sigkill() { ended_as_user KILL; }

doctor_tells_a_user_what_a_lab_takes() {
  need_user_lab
  exits 0 $as_user "$temp/user/pith" doctor --no-python
  says out 'namespaces and links can be made in a user namespace'
}

# refused SETTING: as a user of a system that has this setting, which is made inside a namespace.
refused_by() {
  need unshare
  unshare --user --map-root-user true 2>/dev/null || lacks userns "there are no user namespaces here: $(unshare --user --map-root-user true 2>&1)"
  got=0
  unshare --user --map-root-user --mount sh -c "$1"'; exec setpriv --inh-caps=-all --bounding-set=-all "$@"' sh \
    "$pith" lab -n 2 --rate 1gbit -- true >"$temp/out" 2>"$temp/err" || got=$?
  [ $got = 1 ] || { echo "exit code $got" && cat "$temp/out" "$temp/err" && return 1; }
}

a_limit_of_no_namespaces_is_named() {
  need setpriv
  refused_by 'echo 0 >/proc/sys/user/max_user_namespaces'
  says err 'network namespaces need root, or a user namespace'
  says err 'user.max_user_namespaces is 0'
  says err 'sysctl user.max_user_namespaces=10000'
}

mistakes_are_wrong_usage() {
  exits 2 "$pith" lab -n 2 -- true
  says err 'which rate?'
  exits 2 "$pith" lab --rate 1gbit -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit
  exits 2 "$pith" lab -n 2 --rate fast -- true
  exits 2 "$pith" lab -n 2 --rate 1gbyte -- true
  exits 2 "$pith" lab -n 2 --rate -1gbit -- true
  exits 2 "$pith" lab -n 2 --rate 0bit -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --per-host 0 -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --mtu 20 -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault cut:1 -- true
  says err 'expected FAULT:HOST@TIME or FAULT:HOST@TIME+DURATION, as in cut:2@5s+3s'
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault cut:2@1s -- true
  says err 'there is no host 2: this lab has 2, and the first is host 0'
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault cut:x@1s -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault drop:1@1s -- true
  says err 'there is no fault "drop"'
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault slow:1@1s -- true
  says err 'which rate?'
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault slow:1:fast@1s -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault cut:1:1gbit@1s -- true
  says err 'only slow takes a rate'
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault resume:1@1s+2s -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault cut:1@1s+x -- true
  exits 2 "$pith" lab -n 2 --rate 1gbit --fault cut:1@-1s -- true
}

a_pipe_that_cannot_be_made_is_an_error() {
  need_lab
  echo kept >"$temp/file"
  exits 1 "$pith" lab -n 2 --rate 1gbit --control "$temp/file" -- true
  says err 'cannot make a named pipe'
  grep -q kept "$temp/file"
}

# Two hosts of two ranks, and what each algorithm puts on their links.
lab_of_pairs() { "$pith" lab --no-prefix -n 4 --per-host 2 --rate 1gbit -- "$@"; }

# finds LINES: so many lines with a column for the algorithm; uncompressed ones have no wrong value, compressed ones are near.
finds() {
  awk -v wanted="$1" '/^ *[0-9]/ { lines++; if ($4 == "-" ? $9 != "0" : !($10 < 0.2)) bad++ }
       END { exit !(lines == wanted && !bad) }' "$temp/out" || { echo "not $1 lines, or some are wrong:" && cat "$temp/out" && return 1; }
}

algorithms_are_right_across_links() {
  need_lab
  exits 0 lab_of_pairs "$pith" bench allreduce --wide -b 4M -e 4M -n 3 -w 1 --algo sra --algo hierarchical --codec q:4
  says out 'on 4 ranks over shm and tcp'
  finds 4
}

inside_hosts_and_across_links_specs_may_differ() {
  need_lab
  exits 0 lab_of_pairs "$pith" bench allreduce --wide -b 4M -e 4M -n 3 -w 1 --algo hierarchical --inside q:8 --codec q:4
  says out 'inside hosts q:8'
  finds 2
}

# Sets $sent: bytes that left both hosts, as their links counted them.
count_bytes() { # algorithm, option…
  algorithm=$1 && shift
  exits 0 lab_of_pairs sh -c '"$@" && { [ $LOCAL_RANK != 0 ] || sed -n "s/.*$PITH_IFNAME:/link /p" /proc/net/dev; }' sh \
    "$pith" bench allreduce -b 4M -e 4M -n 4 -w 0 --algo "$algorithm" "$@"
  sent=$(awk '$1 == "link" { links++; bytes += $10 } END { if (links == 2) print bytes }' "$temp/out")
  [ -n "$sent" ] || { cat "$temp/out" && return 1; }
}

# A host sends 2c(H-1)/H bytes instead of 2c(N-2)/N for each of its two ranks, H = 2 and N = 4. Less than half would be bytes
# that were not counted.
is_half() { # of, what
  echo "$1 bytes by sra, $2 by hierarchical"
  [ $(($2 * 100)) -lt $(($1 * 57)) ] && [ $(($2 * 100)) -gt $(($1 * 45)) ]
}

hierarchical_sends_half_as_much_across_links() {
  need_lab
  count_bytes sra
  flat=$sent
  count_bytes hierarchical
  tall=$sent
  [ "$flat" -gt 80000000 ] # five operations, two hosts
  is_half "$flat" "$tall"
  count_bytes sra --codec q:4
  flat=$((sent - flat)) # of the compressed line alone
  count_bytes hierarchical --codec q:4 --inside q:8
  is_half "$flat" $((sent - tall))
}

run_tests each_host_is_a_network_of_its_own links_have_their_rate_in_both_directions links_change_when_told_to a_host_is_cut_off_and_comes_back a_link_is_cut_in_one_direction \
  a_host_is_paused_with_all_it_runs a_host_is_slowed_down_and_faults_come_from_the_pipe a_paused_host_ends_with_the_lab a_job_names_the_rank_that_was_cut_off exit_codes_are_those_of_ranks \
  several_labs_at_once nothing_is_left nothing_is_left_after_sigterm nothing_is_left_after_sigkill \
  nothing_is_left_if_killed_halfway a_user_makes_a_lab links_of_a_user_have_their_rate a_user_cuts_and_pauses_hosts a_user_benchmarks_over_slow_links \
  nothing_of_a_user_is_left_after_sigterm nothing_of_a_user_is_left_after_sigkill doctor_tells_a_user_what_a_lab_takes \
  a_limit_of_no_namespaces_is_named mistakes_are_wrong_usage a_pipe_that_cannot_be_made_is_an_error \
  algorithms_are_right_across_links inside_hosts_and_across_links_specs_may_differ hierarchical_sends_half_as_much_across_links
