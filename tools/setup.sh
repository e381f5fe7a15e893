#!/usr/bin/env bash
# Installs what llmc is built with, on Debian 12 or Ubuntu 24.04: only what is missing, and silent when nothing is.
# Without a CUDA toolkit, NVIDIA's wheels go into third_party/cuda. LLMC_SKIP_SETUP=1 skips all of it.
set -euo pipefail
[[ ${LLMC_SKIP_SETUP:-0} == 1 ]] && exit 0
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build mold ccache git xz-utils clang-format-14 clang-tidy-14
  libabsl-dev libprotobuf-dev protobuf-compiler libonnx-dev nlohmann-json3-dev libcli11-dev
  libonig-dev libicu-dev libssl-dev libzip-dev libeigen3-dev libdlpack-dev libgtest-dev libgmock-dev
)
# Python may come from elsewhere than a package.
command -v python3 >/dev/null || packages+=(python3)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]; }

run_as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is neither Debian nor Ubuntu; install the like of: ${packages[*]}" >&2
    echo "setup: then set LLMC_SKIP_SETUP=1" >&2
    return 1
  fi
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  [[ ${#missing[@]} == 0 ]] && return
  echo "setup: installing ${missing[*]}"
  run_as_root apt-get update -qq
  run_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The GPU libraries are opened at run time and only when needed, so a failure here is no reason to stop.
install_cuda_wheels() {
  local root=third_party/cuda
  command -v nvcc >/dev/null && return
  [[ -d ${CUDA_HOME:-/usr/local/cuda} || -e $root/.complete || $(uname -m) != x86_64 ]] && return
  echo "setup: no CUDA toolkit here; installing NVIDIA's wheels into $root"
  if python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
      --target "$root" 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cublas==13.0.*' \
      'nvidia-nvtx==13.0.*'; then
    touch "$root/.complete"
  else
    echo "setup: could not install them; llmc builds and runs on the host without" >&2
  fi
}

install_packages
install_cuda_wheels
