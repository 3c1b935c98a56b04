#!/usr/bin/env bash
# Makes a root directory of aarch64 Linux for cmake/aarch64-linux.cmake, on a Debian 12 of another
# processor: glibc and Python 3.11 from Debian, PyTorch and what tests need from PyPI.
#
#   bash cmake/aarch64_root.sh DIRECTORY
#
# It downloads some 2.5 GB, and 4.6 GB stay: PyTorch's wheel there is built for CUDA and doesn't load without
# CUDA's libraries. Nothing is installed into the machine itself, which needs g++-aarch64-linux-gnu and
# qemu-user.
set -euo pipefail
root=$(realpath -m "${1:?say the directory to make}")
tree=$(realpath "$(dirname "$0")/..")
python=${PYTHON:-$tree/.venv/bin/python}
apt=$root/var/apt
packages=$root/usr/local/lib/python3.11/dist-packages
mkdir -p "$apt"/{lists/partial,cache/archives/partial,files} "$packages"

# Debian's packages, by a state of apt that knows one processor and this directory alone.
touch "$apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" \
  > "$apt/sources.list"
debian() {
  apt-get -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null "$@"
}
debian update
(cd "$apt/files" && debian download libc6 libc6-dev linux-libc-dev libcrypt1 libgcc-s1 libstdc++6 \
  libgomp1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev libexpat1 \
  zlib1g libssl3 libffi8 libsqlite3-0 liblzma5 libbz2-1.0 libncursesw6 libtinfo6 libreadline8 libuuid1 \
  libnsl2 libtirpc3 libdb5.3)
for file in "$apt"/files/*.deb; do dpkg-deb -x "$file" "$root"; done
rm -r "$apt"

# PyPI's, each without what its wheel asks for besides: triton, for one, is not needed.
tags=(--platform manylinux2014_aarch64)
for glibc in $(seq 17 28); do tags+=(--platform "manylinux_2_${glibc}_aarch64"); done
pypi() {
  "$python" -m pip install --disable-pip-version-check --only-binary=:all: --no-deps "${tags[@]}" \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none --target "$packages" "$@"
}
# The versions that are beside this Python.
here=$("$python" - <<'EOF'
from importlib.metadata import version

names = """numpy llvmlite ml_dtypes sympy mpmath typing_extensions filelock networkx jinja2 markupsafe fsspec setuptools
pytest pluggy iniconfig packaging pygments hypothesis sortedcontainers expecttest pytest_xdist execnet psutil pyyaml safetensors
tqdm requests prometheus_client protobuf jax jaxlib scipy opt_einsum"""
print(*(f"{name}=={version(name)}" for name in names.split()))
EOF
)
# shellcheck disable=SC2086 - words
pypi $here
pypi torch==2.13.0 nvidia-cublas==13.1.1.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88 \
  nvidia-cuda-runtime==13.0.96 nvidia-cudnn-cu13==9.20.0.48 nvidia-cufft==12.0.0.61 nvidia-cufile==1.15.1.6 \
  nvidia-curand==10.4.0.35 nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.1 \
  nvidia-nccl-cu13==2.29.7 nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5

# This tree, with the metadata by which PyTorch finds the device and a shell the commands.
echo "$tree" > "$packages/torchneuron.pth"
cp -r "$("$python" -c "import importlib.metadata as m; print(m.distribution('torchneuron')._path)")" "$packages/"
(echo "#!$root/usr/bin/python3.11"; echo "import sys"; echo "from neuronxcc.cli import main"; echo "sys.exit(main())") \
  > "$root/usr/bin/neuronx-cc"
chmod +x "$root/usr/bin/neuronx-cc"

# qemu shows programs what is in its root before what the machine has: two Neoverse N1, which PyTorch's
# cpuinfo must find (with the machine's own file PyTorch ends by a segmentation fault).
mkdir -p "$root/proc"
for core in 0 1; do
  cat >> "$root/proc/cpuinfo" <<EOF
processor	: $core
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0c
CPU revision	: 1

EOF
  identification=$root/sys/devices/system/cpu/cpu$core/regs/identification
  mkdir -p "$identification"
  echo 0x00000000413fd0c1 > "$identification/midr_el1"
done
