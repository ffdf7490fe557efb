#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual page and shell completion: they have every command, option and method, and shells and man take them.
# shellcheck disable=SC2016
. "$(dirname "$0")/../shell.sh"

# The names that a help page lists.
listed() { "$@" | sed -n 's/^  \([a-z][a-z_]*\)  *.*/\1/p'; }

# Every command, one on a line; those with parts, each with its part.
commands() {
  for command in $(listed "$pith" help); do
    if "$pith" "$command" --help | grep -q "^usage: pith $command PART"; then
      for part in $(listed "$pith" "$command" --help); do
        echo "$command $part"
      done
    else
      echo "$command"
    fi
  done
}

# The options on the help page of a command.
options_of() { "$pith" "$@" --help | sed -n 's/^  \(--*[a-z][a-z-]*\).*/\1/p'; }

# section COMMAND: the lines of the manual page about it; of one whose options are another's, of that one too.
section() {
  awk -v title=".SS \"pith $1 [options]" 'index($0, title) == 1 { on = 1; next } /^\.S[SH]/ { on = 0 } on' "$temp/pith.1"
}

the_manual_page_has_every_option_of_every_command() {
  "$pith" man >"$temp/pith.1"
  commands >"$temp/commands"
  [ "$(wc -l <"$temp/commands")" -gt 20 ]
  while read -r command; do
    section "$command" >"$temp/section"
    [ -s "$temp/section" ] || { echo "no section for $command" && return 1; }
    other=$(sed -n 's/^The options are those of \\fBpith \(.*\)\\fR\.$/\1/p' "$temp/section")
    [ -z "$other" ] || section "$other" >>"$temp/section"
    # shellcheck disable=SC2086
    for option in $(options_of $command); do
      [ "$option" = --help ] && continue
      grep -qF "\\fB$(printf '%s\n' "$option" | sed 's/-/\\-/g')\\fR" "$temp/section" || { echo "$command: no $option" && return 1; }
    done
  done <"$temp/commands"
}

the_manual_page_has_every_method_and_variable() {
  "$pith" man | sed 's/\\-/-/g' >"$temp/pith.1"
  for name in $("$pith" codecs | sed -n 's/^\([a-z][a-z0-9]*\)  *\(codec\|preset\|memory\|transform\|adaptive\) .*/\1/p'); do
    grep -qF "\\fB$name\\fR" "$temp/pith.1" || { echo "no method $name" && return 1; }
  done
  for name in $("$pith" doctor --no-python --variables | sed -n 's/^  \(PITH_[A-Z_]*\) .*/\1/p'); do
    grep -qF "\\fB$name\\fR" "$temp/pith.1" || { echo "no variable $name" && return 1; }
  done
}

man_can_show_it() {
  need groff
  exits 0 "$pith" man
  groff -k -man -Tutf8 -ww "$temp/out" >"$temp/shown" 2>"$temp/warnings"
  [ ! -s "$temp/warnings" ] || { cat "$temp/warnings" && return 1; }
  grep -q 'compressed communication' "$temp/shown"
}

# What is installed is what the command says now.
the_build_has_them() {
  [ -f "$build/manual/pith.1" ]
  "$pith" man | cmp - "$build/manual/pith.1"
  "$pith" completion bash | cmp - "$build/manual/pith"
  "$pith" completion zsh | cmp - "$build/manual/_pith"
  "$pith" completion fish | cmp - "$build/manual/pith.fish"
}

they_are_installed() {
  need cmake
  cmake --install "$build" --prefix "$temp/prefix" >/dev/null
  for file in man/man1/pith.1 bash-completion/completions/pith zsh/site-functions/_pith fish/vendor_completions.d/pith.fish; do
    [ -s "$temp/prefix/share/$file" ] || { echo "no share/$file" && return 1; }
  done
}

# ---- bash ------------------------------------------------------------------------------------------------------------

# completes WORD…: what bash offers for the last word, one on a line, in $temp/offers.
completes() {
  need bash
  "$pith" completion bash >"$temp/completion"
  bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pith; printf "%s\n" "${COMPREPLY[@]}"' "$temp/completion" "$@" >"$temp/offers"
}

# offers WORD…: those, and nothing else.
offers() {
  printf '%s\n' "$@" | sort >"$temp/wanted"
  sort "$temp/offers" | cmp -s - "$temp/wanted" || { echo "offered:" && cat "$temp/offers" && return 1; }
}

bash_completes_commands_and_parts() {
  completes pith d
  offers doctor
  completes pith bench all
  offers allreduce all_gather all_to_all
  completes pith plan sh
  offers show
  completes pith help co
  offers codecs completion
  completes pith completion z
  offers zsh
}

bash_completes_every_option() {
  commands >"$temp/commands"
  while read -r command; do
    [ "$command" = help ] && continue
    # shellcheck disable=SC2086
    completes pith $command -
    # shellcheck disable=SC2046,SC2086
    offers $(options_of $command) || { echo "$command" && return 1; }
  done <"$temp/commands"
}

bash_completes_values() {
  completes pith bench codec --codec pow
  offers powersgd
  completes pith bench codec --codec = pow # as bash cuts --codec=pow
  offers powersgd
  completes pith bench allreduce --transport t
  offers tcp
  completes pith bench codec --dtype ''
  offers f32 f16 bf16
  completes pith codecs lg
  offers lgreco
  cd "$temp" || return 1
  : >statistics.json
  completes pith plan make statis
  offers statistics.json
  completes pith lab -n 2 -- pri
  grep -qx printf "$temp/offers"
}

# ---- zsh and fish ----------------------------------------------------------------------------------------------------

zsh_takes_its_script() {
  need zsh
  "$pith" completion zsh >"$temp/_pith"
  zsh -n "$temp/_pith"
  head -n 1 "$temp/_pith" | grep -qx '#compdef pith'
  # _arguments is asked as by the shell; the words it would be given are written down
  zsh -f -c '
    _arguments() { print -l -- "$@" }
    _describe() { print -l -- ${(P)2} }
    words=(pith bench allreduce --) CURRENT=4
    . "$1"' zsh "$temp/_pith" >"$temp/asked"
  for option in $(options_of bench allreduce); do
    grep -qF -e "$option" "$temp/asked" || { echo "zsh is not told of $option:" && cat "$temp/asked" && return 1; }
  done
  zsh -f -c '_describe() { print -l -- ${(P)2} }; words=(pith ""); CURRENT=2; . "$1"' zsh "$temp/_pith" >"$temp/asked"
  grep -q '^doctor:' "$temp/asked"
}

fish_completes() {
  need fish
  export HOME="$temp"
  offer() { fish -c "$pith completion fish | source; complete -C '$1'" | cut -f 1 | sort | tr '\n' ' '; }
  [ "$(offer 'pith do')" = 'doctor ' ]
  [ "$(offer 'pith bench all')" = 'all_gather all_to_all allreduce ' ]
  [ "$(offer 'pith bench codec --codec pow')" = 'powersgd ' ]
  [ "$(offer 'pith bench codec --dt')" = '--dtype ' ]
  [ "$(offer 'pith codecs lg')" = 'lgreco ' ]
}

an_unknown_shell_is_wrong_usage() {
  exits 2 "$pith" completion
  exits 2 "$pith" completion tcsh
  says err 'bash, zsh or fish'
}

run_tests the_manual_page_has_every_option_of_every_command the_manual_page_has_every_method_and_variable man_can_show_it \
  the_build_has_them they_are_installed bash_completes_commands_and_parts bash_completes_every_option bash_completes_values \
  zsh_takes_its_script fish_completes an_unknown_shell_is_wrong_usage
