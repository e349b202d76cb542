#!/usr/bin/env bash
# Makes .venv with torch and what the build needs; then installs what the driver and the tests need, which the build can run
# beside. Skips what is there already.
#
#   PYTHON=python3.12 tools/setup_env.sh base
#   tools/setup_env.sh packages
#   tools/setup_env.sh programs       all Debian packages that tests use (GEOCOMM_REQUIRE_ALL=1), the large ones too
#
# TORCH=2.13.0 installs that torch. Without it, one (2.11 or later) that $PYTHON can import is used as it is; else the newest
# of tools/tested_torch.txt is installed. Where there is no NVIDIA driver it is a CPU build, the newest that there is one of.
# Debian packages are installed only when missing, and only by root.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=.venv
TORCH=${TORCH-}
CPU_INDEX=https://download.pytorch.org/whl/cpu
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 PIP_DISABLE_PIP_VERSION_CHECK=1
# Modules of the user's PYTHONPATH are not the environment's.
unset PYTHONPATH

say() { echo "setup: $* (at $SECONDS s)"; }
fail() { echo "setup: $*" >&2; exit 1; }
# Nothing that is installed later may replace the torch that is there.
pip_install() { "$VENV/bin/python" -m pip install -qq --constraint "$VENV/constraints.txt" "$@"; }

# Prints the folder above a usable torch, or fails.
torch_folder() {
  "$1" - <<'END' 2>/dev/null
import os, torch
assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11) and torch.distributed.is_available()
print(os.path.dirname(os.path.dirname(torch.__file__)))
END
}

ensure_debian_packages() {
  local version=$1 missing=()
  command -v g++ >/dev/null || missing+=(g++)
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$version-venv")
  "$PYTHON" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    missing+=("python$version-dev")
  echo '#include <gtest/gtest.h>' | g++ -x c++ -std=c++20 -fsyntax-only - 2>/dev/null || missing+=(libgtest-dev)
  echo '#include <openssl/ssl.h>' | g++ -x c++ -fsyntax-only - 2>/dev/null || missing+=(libssl-dev)
  # Without it the entropy stage zstd is left out: no reason to stop.
  if ! echo '#include <zstd.h>' | g++ -x c++ -fsyntax-only - 2>/dev/null; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then missing+=(libzstd-dev)
    else say "no libzstd-dev: codecs will lack the stage zstd"; fi
  fi
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null ||
    fail "missing: ${missing[*]} (names of Debian packages); install what your system calls them, then run make again"
  [ "$(id -u)" -eq 0 ] || fail "missing Debian packages; run: sudo apt-get install ${missing[*]}   then make again"
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# What tests alone need, and skip their work without: these programs, and the PROGRAM:PACKAGE or FILE:PACKAGE pairs of the
# arguments. Not where systemd runs: it would start these servers.
ensure_test_packages() {
  local pair missing=()
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -d /run/systemd/system ]; then return 0; fi
  for pair in nft:nftables etcd:etcd-server sshd:openssh-server ssh:openssh-client rsync:rsync ip:iproute2 "$@"; do
    command -v "${pair%%:*}" >/dev/null || [ -e "${pair%%:*}" ] || missing+=("${pair#*:}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing what tests need: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  } || say "not installed: some tests will be skipped"
}

make_venv() {
  local folder
  if [ -z "$TORCH" ] && folder=$(torch_folder "$PYTHON"); then
    say "making $VENV around the torch in $folder"
    "$PYTHON" -m venv --system-site-packages "$VENV"
    # Where $PYTHON is itself a virtual environment, "system" means the interpreter below it, which has no torch.
    if ! torch_folder "$VENV/bin/python" >/dev/null; then
      echo "$folder" >"$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/geocomm-torch.pth"
    fi
  else
    say "making $VENV"
    "$PYTHON" -m venv "$VENV"
  fi
}

# The versions of torch that pip knows CPU builds of; asks indexes for their lists alone. Arguments: pip's.
cpu_builds() {
  local told
  told=$("$VENV/bin/python" -m pip index versions torch --retries 0 --timeout 15 "$@" 2>/dev/null) || return 0
  sed -n 's/^Available versions: //p' <<<"$told" | tr -d ' ' | tr ',' '\n' | sed -n 's/+cpu$//p'
}

# The newest version of tools/tested_torch.txt among the lines of stdin; nothing where there is none.
newest_tested() {
  local known version newest=
  known=$(cat)
  for version in $(cat tools/tested_torch.txt); do  # the newest is the last one
    if grep -Fxq -- "$version" <<<"$known"; then newest=$version; fi
  done
  echo "$newest"
}

install_torch() {
  local wanted=$TORCH newest
  newest=$(tail -n 1 tools/tested_torch.txt)
  if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then
    say "installing torch ${wanted:=$newest} for CUDA (several GB)"
    pip_install "torch==$wanted"
    return
  fi
  [ -n "$wanted" ] || wanted=$(cpu_builds --index-url "$CPU_INDEX" | newest_tested)
  [ -n "$wanted" ] || wanted=$(cpu_builds | newest_tested)  # of the machine's own index or folder of wheels
  : "${wanted:=$newest}"
  say "installing torch $wanted for the CPU"
  pip_install --retries 0 --timeout 15 --index-url "$CPU_INDEX" "torch==$wanted+cpu" >/dev/null 2>&1 && return
  pip_install "torch==$wanted+cpu" >/dev/null 2>&1 && return
  say "there is no CPU build of torch $wanted; taking the default index instead (whose build may be the large one, for CUDA)"
  pip_install "torch==$wanted"
}

# Whether .venv has the torch that was asked for.
has_torch() {
  torch_folder "$VENV/bin/python" >/dev/null || return 1
  [ -z "$TORCH" ] || [ "$("$VENV/bin/python" -c 'from importlib.metadata import version; print(version("torch").split("+")[0])')" = "$TORCH" ]
}

# Requirements of pyproject.toml, one per line: `build` those of the build, `extras` what the driver and the tests need.
requirements() {
  "$VENV/bin/python" - "$1" <<'END'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
if sys.argv[1] == "build":
    print(*project["build-system"]["requires"], sep="\n")
else:
    extras = project["project"]["optional-dependencies"]
    print(*extras["train"], *extras["dev"], sep="\n")
END
}

make_base() {
  local version build_requirements
  command -v "$PYTHON" >/dev/null || fail "$PYTHON is not there; name a Python 3.11 to 3.14 with make PYTHON=..."
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$PYTHON is Python $version, geocomm needs 3.11 or later: make PYTHON=..."
  ensure_debian_packages "$version"
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$VENV"; make_venv; }
  touch "$VENV/constraints.txt"
  pip_install "pip>=24"
  has_torch || { : >"$VENV/constraints.txt"; install_torch; }
  torch_folder "$VENV/bin/python" >/dev/null ||
    fail "torch does not import in $VENV: $VENV/bin/python -c 'import torch' says why"
  "$VENV/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$VENV/constraints.txt"
  mapfile -t build_requirements < <(requirements build)
  pip_install "${build_requirements[@]}"
  call_by_name "cmake ninja" "${build_requirements[@]}"
}

install_packages() {
  local extra_requirements
  ensure_test_packages
  say "installing the packages of pyproject.toml"
  mapfile -t extra_requirements < <(requirements extras)
  # torch is there, so that DeepSpeed, which imports it to build, needs no isolated (second, CUDA) copy of it.
  pip_install --no-build-isolation "${extra_requirements[@]}"
  call_by_name "ruff clang-format" "${extra_requirements[@]}"
}

# What the interpreter below has already is not installed again, but these TOOLS are called by their names in .venv/bin.
call_by_name() {
  local tools=$1 tool
  shift
  for tool in $tools; do
    [ -x "$VENV/bin/$tool" ] ||
      pip_install --ignore-installed --no-deps "$(printf '%s\n' "$@" | grep -E "^$tool([=>]|$)" | head -n 1)"
  done
}

case ${1-} in
  base) make_base ;;
  packages) install_packages ;;
  programs)
    ensure_test_packages chromium:chromium promtool:prometheus prometheus-alertmanager:prometheus-alertmanager \
      sqlite3:sqlite3 openssl:openssl curl:curl /usr/include/ucp/api/ucp.h:libucx-dev
    ;;
  *) fail "usage: tools/setup_env.sh base|packages|programs" ;;
esac
