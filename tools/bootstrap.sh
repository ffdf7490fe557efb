#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes sure that there is a CMake: the system's, or one in .venv, or one from the package manager. Says what it does.
#
# Nothing else is needed. The transports mpi and ucx and the encryption of tcp are built where their libraries are; for all of them, on
# Debian or Ubuntu:
#   apt-get install libucx-dev libopenmpi-dev openmpi-bin libmpich-dev mpich libssl-dev
set -u
cd "$(dirname "$0")/.."

usable() { command -v cmake >/dev/null 2>&1 && cmake --version >/dev/null 2>&1; }

from_pip() {
  command -v python3 >/dev/null 2>&1 || return 1
  echo "pith: there is no CMake; installing cmake and ninja into .venv" >&2
  python3 -m venv .venv >&2 && .venv/bin/pip install --quiet cmake ninja >&2 && .venv/bin/cmake --version >/dev/null
}

from_apt() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  echo "pith: there is no CMake; installing the packages cmake and ninja-build" >&2
  apt-get update -qq >&2 && apt-get install -y -qq cmake ninja-build >&2
}

command -v "${CC:-cc}" >/dev/null 2>&1 || {
  echo "pith: there is no C compiler; install gcc or clang (Debian, Ubuntu: apt-get install build-essential)" >&2
  exit 1
}
usable || from_pip || from_apt || {
  echo "pith: please install CMake 3.18 or later (Debian, Ubuntu: apt-get install cmake; anywhere: pip install cmake)" >&2
  exit 1
}
