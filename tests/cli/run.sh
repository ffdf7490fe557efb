#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `pith run`: variables, output, exit codes, signals, and that nothing is left behind. Commands for ranks are in single
# quotes: $RANK is theirs.
# shellcheck disable=SC2016
. "$(dirname "$0")/../shell.sh"
unset PITH_SECRET RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PITH_PORT PITH_HOSTID
export temp

# is_alive PID: it runs; a zombie whose parent does not care is dead enough.
is_alive() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }

# waits COMMAND…: until it succeeds, for ten seconds.
waits() {
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "waited in vain for: $*" && return 1; }
    sleep 0.05
  done
}
is_gone() { ! is_alive "$1"; }
has_text() { [ -s "$1" ]; }
fresh() { rm -f "$temp"/rank.* "$temp"/child.* "$temp"/ready.*; }

# Ranks write their process numbers here, and that of a grandchild.
two_generations='sleep 1000 & echo $! >"$temp/child.$RANK"; echo $$ >"$temp/rank.$RANK"; wait'

all_gone() {
  looked=0
  for file in "$temp"/rank.* "$temp"/child.*; do
    [ -s "$file" ] || continue
    waits is_gone "$(cat "$file")"
    looked=$((looked + 1))
  done
  [ $looked -gt 1 ]
}

both_started() {
  for file in rank.0 rank.1 child.0 child.1; do
    waits has_text "$temp/$file"
  done
}

ranks_get_the_usual_variables() {
  exits 0 "$pith" run -n 3 --env 'A=b c' -- \
    sh -c 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $A"; echo "port $MASTER_PORT"'
  for rank in 0 1 2; do
    says out "[$rank] $rank/3 $rank/3 0 127.0.0.1 b c"
  done
  [ "$(sed -n 's/.*port //p' "$temp/out" | sort -u | wc -l)" = 1 ]
  exits 0 "$pith" run -n 1 --master-port 4711 --master-addr elsewhere -- sh -c 'echo $MASTER_ADDR:$MASTER_PORT'
  says out '[0] elsewhere:4711'
}

output_and_errors_stay_apart() {
  exits 0 "$pith" run -n 2 -- sh -c 'echo said $RANK; echo cried $RANK >&2'
  [ "$(sort "$temp/out")" = "$(printf '[0] said 0\n[1] said 1')" ]
  [ "$(sort "$temp/err")" = "$(printf '[0] cried 0\n[1] cried 1')" ]
}

lines_are_never_mixed() {
  exits 0 "$pith" run -n 8 -- awk 'BEGIN { for (i = 0; i < 2000; i++) { printf "%s", "abcdefgh"; printf "ijklmnop\n" } }'
  [ "$(wc -l <"$temp/out")" = 16000 ]
  [ "$(sed 's/^\[[0-7]\] //' "$temp/out" | sort -u)" = abcdefghijklmnop ]
}

the_last_line_needs_no_end() {
  exits 0 "$pith" run -n 2 -- sh -c 'printf "no end $RANK"'
  [ "$(sort "$temp/out")" = "$(printf '[0] no end 0\n[1] no end 1')" ]
}

any_bytes_pass() {
  need python3
  exits 0 "$pith" run -n 1 -- python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)'
  python3 - "$temp/out" <<'END2'
import sys
got = open(sys.argv[1], "rb").read()
wanted = b"".join(b"[0] " + line + b"\n" for line in (bytes(range(256)) * 3).split(b"\n"))
assert got == wanted, got
END2
  exits 0 "$pith" run -n 1 --no-prefix -- printf 'a\0b'
  [ "$(od -An -c "$temp/out" | tr -d ' \n')" = 'a\0b' ]
}

a_line_without_end_is_cut() {
  exits 0 "$pith" run -n 1 -- sh -c 'head -c 5000000 /dev/zero | tr "\0" x'
  [ "$(tr -cd x <"$temp/out" | wc -c)" = 5000000 ]
  [ "$(wc -l <"$temp/out")" -lt 10 ]
}

there_is_no_colour_in_a_file() {
  exits 0 env TERM=xterm "$pith" run -n 2 -- echo plain
  ! grep -q "$(printf '\033')" "$temp/out"
}

input_goes_to_rank_0() {
  printf 'one\ntwo\n' >"$temp/in"
  exits 0 sh -c '"$0" run -n 3 -- cat <"$1"' "$pith" "$temp/in"
  [ "$(cat "$temp/out")" = "$(printf '[0] one\n[0] two')" ]
  exits 0 sh -c 'cat "$1" | "$0" run -n 3 -- cat' "$pith" "$temp/in"
  [ "$(cat "$temp/out")" = "$(printf '[0] one\n[0] two')" ]
}

a_terminal_is_read_for_rank_0() {
  need script
  printf 'typed\n' | exits 0 script -qec "$pith run -n 2 -- sh -c 'read line; echo got \$RANK \$line'" /dev/null
  says out 'got 0 typed'
  says out 'got 1'
}

the_exit_code_is_that_of_the_rank_that_failed() {
  exits 3 "$pith" run -n 3 -- sh -c '[ $RANK = 1 ] && exit 3; sleep 1000'
  says err 'pith: rank 1 ended with status 3; ending the others'
  exits 137 "$pith" run -n 2 -- sh -c '[ $RANK = 1 ] && kill -KILL $$; sleep 1000'
  says err 'rank 1 was killed by SIGKILL'
  exits 0 "$pith" run -n 2 -- true
  [ ! -s "$temp/err" ]
}

a_command_that_cannot_start_is_said_once() {
  exits 127 "$pith" run -n 4 -- /nowhere/at-all
  [ "$(grep -c 'cannot start /nowhere/at-all' "$temp/err")" = 1 ]
  [ "$(wc -l <"$temp/err")" = 1 ]
  exits 126 "$pith" run -n 2 -- /dev/null
}

who_does_not_end_is_killed() {
  fresh
  before=$(date +%s)
  exits 5 "$pith" run -n 2 --grace 1 -- \
    sh -c 'trap "" TERM; echo $$ >"$temp/rank.$RANK"; while [ $RANK = 1 ] || [ ! -s "$temp/rank.1" ]; do sleep 0.1; done; exit 5'
  says err 'killing ranks that do not end'
  [ $(($(date +%s) - before)) -lt 5 ]
  all_gone
}

what_a_rank_leaves_behind_is_killed() {
  fresh
  exits 0 "$pith" run -n 2 --grace 0 -- sh -c 'sleep 1000 & echo $! >"$temp/child.$RANK"'
  says err 'killing processes that ranks left behind'
  all_gone
}

signals_are_passed_on() {
  for signal in TERM HUP; do
    fresh
    env --default-signal=$signal "$pith" run -n 2 -- sh -c 'trap "echo heard; kill %1; exit 9" '$signal'; echo $$ >"$temp/rank.$RANK"; sleep 1000 & wait' \
      >"$temp/said" 2>&1 &
    launcher=$!
    waits has_text "$temp/rank.0"
    waits has_text "$temp/rank.1"
    sleep 0.1
    kill -$signal $launcher
    code=0
    wait $launcher || code=$?
    [ $code = 9 ] || { echo "$signal: $code" && cat "$temp/said" && return 1; }
    grep -q heard "$temp/said"
    all_gone
  done
}

killed_by_a_signal_passed_on_gives_its_code() {
  fresh
  "$pith" run -n 2 -- sh -c "$two_generations" >"$temp/said" 2>&1 &
  launcher=$!
  both_started
  kill -TERM $launcher
  code=0
  wait $launcher || code=$?
  [ $code = 143 ] || { echo $code && cat "$temp/said" && return 1; }
  [ ! -s "$temp/said" ] # they did as they were told
  all_gone
}

# A shell's background processes ignore SIGINT; Python brings it back.
the_second_ctrl_c_kills() {
  fresh
  need python3
  python3 - "$pith" "$temp" <<'END2'
import os, pathlib, signal, subprocess, sys, time
rank = 'trap "echo heard" INT; touch "$temp/ready.$RANK"; while :; do sleep 0.05; done'
job = subprocess.Popen([sys.argv[1], "run", "-n", "2", "--", "sh", "-c", rank], stdout=subprocess.PIPE,
                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
while len(list(pathlib.Path(sys.argv[2]).glob("ready.*"))) < 2:
    time.sleep(0.02)
job.send_signal(signal.SIGINT)
heard = [job.stdout.readline(), job.stdout.readline()]
assert sorted(heard) == [b"[0] heard\n", b"[1] heard\n"], heard
assert job.poll() is None
job.send_signal(signal.SIGINT)
assert job.wait(10) == 137, job.returncode
END2
}

killing_the_launcher_leaves_no_process() {
  fresh
  "$pith" run -n 2 -- sh -c "$two_generations" &
  launcher=$!
  both_started
  kill -KILL $launcher
  wait $launcher || true
  all_gone
}

a_closed_pipe_ends_the_ranks() {
  exits 0 sh -c '"$0" run -n 2 -- yes 2>/dev/null | head -n 1' "$pith"
}

many_ranks() {
  exits 0 "$pith" run -n 64 -- sh -c 'echo $RANK of $WORLD_SIZE; echo e >&2'
  [ "$(sed 's/^\[\([0-9]*\)\] \1 of 64$/good/' "$temp/out" | sort | uniq -c | tr -s ' ')" = ' 64 good' ]
  [ "$(wc -l <"$temp/err")" = 64 ]
}

files_are_not_inherited() {
  exits 0 "$pith" run -n 4 -- sh -c 'ls /proc/self/fd | wc -l'
  [ "$(sed 's/.*\] *//' "$temp/out" | sort -u)" = "$(sh -c 'ls /proc/self/fd | wc -l' | tr -d ' ')" ]
}

# Each finds its own ranks, and no other's.
several_jobs_at_once() {
  jobs='1 2 3 4'
  for job in $jobs; do
    "$pith" run -n 2 -- "$pith" bench allreduce -b 64K -e 64K -n "$job" --codec q:4 >"$temp/job.$job" 2>&1 &
    eval "pid$job=\$!"
  done
  for job in $jobs; do
    eval "wait \$pid$job" || { cat "$temp/job.$job" && return 1; }
    grep -q "on 2 ranks .* $job repetitions" "$temp/job.$job"
    found=$(awk '/^.0. *[0-9]/ { print $3, $6 }' "$temp/job.$job" | tr '\n' ' ') # codecs and wrong values
    [ "$found" = '- 0 q:4 N/A ' ] || { cat "$temp/job.$job" && return 1; }
  done
}

mistakes_are_wrong_usage() {
  exits 2 "$pith" run -n 2
  says err 'which command?'
  exits 2 "$pith" run -- true
  says err 'how many ranks?'
  exits 2 "$pith" run -n 2 --env nothing -- true
  exits 2 "$pith" run -n 99999 -- true
  exits 2 "$pith" run -n 2 --master-port 70000 -- true
  exits 2 "$pith" run -n 4 --hosts a:1,b:2 --master-port 1 -- true
  says err 'the hosts have 3 slots'
  exits 2 "$pith" run --hosts a,a -- true
  exits 2 "$pith" run --hosts a:x -- true
  exits 2 "$pith" run --hosts -oProxyCommand=x -- true
  exits 0 "$pith" run -n 1 printf '%s\n' --help # the command's option, not ours
  says out '[0] --help'
}

# A stand-in for ssh that does what sshd does: a session of its own, the words joined, the user's shell.
make_ssh() {
  need setsid
  mkdir -p "$temp/bin"
  cat >"$temp/bin/ssh" <<'END2'
#!/bin/sh
echo "$*" >>"$temp/ssh.log"
while :; do
  case $1 in
    -o) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=$1 && shift
cd / && exec env -i PATH="$PATH" temp="$temp" WHERE="$host" setsid --wait sh -c "$*"
END2
  chmod +x "$temp/bin/ssh"
  PATH=$temp/bin:$PATH
}

ranks_on_other_hosts() {
  make_ssh
  mkdir -p "$temp/a folder's"
  cd "$temp/a folder's"
  exits 0 env PITH_DEBUG=WARN "$pith" run -n 4 --hosts 'me@far,near:1' --env "Q=it's \"\$HOME\" " -- \
    sh -c 'echo "$WHERE $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $PITH_HOSTID $MASTER_ADDR $PITH_DEBUG $Q|$1|$(pwd)"' x 'two  words'
  says out "[2] me@far 2 2/3 0 far far WARN it's \"\$HOME\" |two  words|$temp/a folder's"
  says out "[3] near 3 0/1 1 near far WARN"
  grep -q 'BatchMode=yes' "$temp/ssh.log"
}

other_hosts_share_ranks_evenly() {
  make_ssh
  exits 0 "$pith" run -n 5 --hosts a,b --master-port 1 -- sh -c 'echo $WHERE'
  [ "$(sort "$temp/out" | tr '\n' ' ')" = '[0] a [1] a [2] a [3] b [4] b ' ]
  exits 0 "$pith" run --hosts localhost:2,b --master-port 1 -- sh -c 'echo ${WHERE:-here} $MASTER_ADDR'
  [ "$(sort "$temp/out" | cut -d' ' -f1,2 | tr '\n' ' ')" = '[0] here [1] here [2] b ' ]
  ! grep -q localhost "$temp/out"
}

secrets_are_not_in_command_lines() {
  make_ssh
  exits 0 env PITH_SECRET=hush "$pith" run --hosts a,b --master-port 1 -- sh -c 'echo $PITH_SECRET'
  [ "$(sort "$temp/out" | tr '\n' ' ')" = '[0] hush [1] hush ' ]
  ! grep -q hush "$temp/ssh.log"
}

other_hosts_end_with_the_first_that_fails() {
  fresh
  make_ssh
  exits 6 "$pith" run --hosts a:2,b:2 --master-port 1 -- \
    sh -c 'sleep 1000 & echo $! >"$temp/child.$RANK"; echo $$ >"$temp/rank.$RANK"; [ $RANK = 2 ] && exit 6; wait'
  says err 'rank 2 on b ended with status 6'
  all_gone
}

killing_the_launcher_ends_other_hosts() {
  fresh
  make_ssh
  "$pith" run --hosts a,b --master-port 1 -- sh -c "$two_generations" &
  launcher=$!
  both_started
  kill -KILL $launcher
  wait $launcher || true
  all_gone
}

run_tests ranks_get_the_usual_variables output_and_errors_stay_apart lines_are_never_mixed the_last_line_needs_no_end \
  any_bytes_pass a_line_without_end_is_cut there_is_no_colour_in_a_file input_goes_to_rank_0 \
  a_terminal_is_read_for_rank_0 the_exit_code_is_that_of_the_rank_that_failed \
  a_command_that_cannot_start_is_said_once who_does_not_end_is_killed what_a_rank_leaves_behind_is_killed \
  signals_are_passed_on killed_by_a_signal_passed_on_gives_its_code the_second_ctrl_c_kills \
  killing_the_launcher_leaves_no_process a_closed_pipe_ends_the_ranks many_ranks files_are_not_inherited several_jobs_at_once \
  mistakes_are_wrong_usage ranks_on_other_hosts other_hosts_share_ranks_evenly secrets_are_not_in_command_lines \
  other_hosts_end_with_the_first_that_fails killing_the_launcher_ends_other_hosts
