#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything about CUDA from an installed wheel, on a machine with a GPU and no network:
#
#   tests/cuda/wheel.sh WHEEL [train|torch|fault|jax|frameworks|programs]…        all of them by default
#
# The wheel (pip wheel . where nvcc is) goes into a virtual environment that sees the system's torch, and everything runs outside
# the source tree, on ranks that share the GPU: `train` trains a small model over NCCL, `torch` compares GPU and CPU bit for bit
# (torch_test.py), `fault` lets a rank die (torch_fault.py), `jax` compares GPU and CPU in JAX and lets a rank die (jax_test.py), `frameworks` trains with transformers and Lightning, and `programs` builds the C tests, which open the wheel's
# module. PYTHON names another Python than python3. Ends with 1 if anything failed.
set -eu
[ -f "${1:-}" ] || { sed -n '3,10s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
[ $# -gt 0 ] || set -- train torch fault jax frameworks programs
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
unset PYTHONPATH PITH_LIBRARY PITH_MODULE_PATH

# The package, as a user installs it. Where Python has no pip to put into an environment, or is in an environment itself, it is helped.
install="install --quiet --no-deps --no-index --force-reinstall"
if "$python" -m venv --system-site-packages "$work/venv" >/dev/null 2>&1; then
  # shellcheck disable=SC2086
  "$work/venv/bin/python" -m pip $install "$wheel"
else
  "$python" -m venv --system-site-packages --without-pip "$work/venv"
  # shellcheck disable=SC2086
  "$python" -m pip --python "$work/venv/bin/python" $install "$wheel"
fi
cd "$work"
installed=$(venv/bin/python -c 'import os, pith; print(os.path.dirname(pith.__file__))')
case $installed in
  "$work"/venv/*) echo "installed: $(basename "$wheel") in $installed" ;;
  *) echo "pith is imported from $installed, not from the wheel" && exit 1 ;;
esac
[ -f "$installed/_native/libpith_cuda.so" ] || { echo "the wheel has no CUDA module" && exit 1; }
venv/bin/python -c 'import torch' 2>/dev/null ||
  "$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' >"$(dirname "$installed")/torch.pth"
venv/bin/pith doctor || true
venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "the torch of $python finds no GPU" && exit 1; }

on_two_ranks() { # script: without namespaces, over the loopback device; it is copied, so that nothing of the source tree lies beside it
  cp "$root/tests/cuda/$1" "$work" &&
    PITH=$work/venv/bin/pith PYTHON=$work/venv/bin/python timeout 500 "$root/bench/gpu_lab.sh" 2 none "$work/$1"
}

for what in "$@"; do
  echo "== $what"
  case $what in
    train) on_two_ranks wheel_training.py || failed=1 ;;
    torch) on_two_ranks torch_test.py || failed=1 ;;
    fault) on_two_ranks torch_fault.py | tee fault.log && grep -q "^ok " fault.log || failed=1 ;;
    jax) on_two_ranks jax_test.py | tee jax.log && grep -q "^ok   a killed rank" jax.log && ! grep -q "^FAIL" jax.log || failed=1 ;;
    frameworks) cp "$root/tests/cuda/frameworks.py" "$work" && "$work/venv/bin/python" "$work/frameworks.py" || failed=1 ;;
    programs) PITH_MODULE_PATH=$installed/_native RANKS=2 "$root/tests/cuda/run.sh" "$work/build" test nccl device || failed=1 ;;
    *) echo "there is no \"$what\": train, torch, fault, jax, frameworks or programs" && failed=1 ;;
  esac
done
[ $failed = 0 ] && echo "all passed, from the installed wheel" || echo "something failed: see above"
exit $failed
