#!/usr/bin/env bash
# Sets up what building and testing needs, on a bare Debian or Ubuntu. Does nothing where everything is there.
#
#   setup.sh system    compiler, build tools and libraries, by apt when root or sudo allows it
#   setup.sh python    build/venv with the versions pinned in samples/requirements.txt
#   setup.sh engines   what tests start programs with besides: MPI and its compilers, Slurm, GNU parallel, Ray; never fails where one is not to be had
#   setup.sh published DIR    folders of releases that others published, for tests/bisect/faults/bench_released.py
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

say() { printf '%s\n' "$*" >&2; }

# msgpack-c's C library changed its package name between releases.
msgpack_package() {
    if apt-cache show libmsgpack-c-dev >/dev/null 2>&1; then echo libmsgpack-c-dev; else echo libmsgpack-dev; fi
}

have_system() {
    command -v cmake >/dev/null && command -v ninja >/dev/null && command -v cc >/dev/null &&
        command -v c++ >/dev/null && command -v pkg-config >/dev/null && command -v python3 >/dev/null &&
        pkg-config --exists libarchive libpcre2-8 libxxhash libzstd zlib jansson openblas popt &&
        [ -e /usr/include/msgpack.h ] && [ -e /usr/include/cmocka.h ] && [ -e /usr/share/javascript/chart.js ] && python3 -c 'import ensurepip, venv' 2>/dev/null
}

setup_system() {
    if have_system; then return 0; fi
    local packages="build-essential cmake ninja-build pkg-config libarchive-dev libpcre2-dev libxxhash-dev libzstd-dev zlib1g-dev
        libopenblas-dev libjansson-dev libpopt-dev libjs-chart.js libcmocka-dev python3 python3-venv"
    local sudo=""
    if ! command -v apt-get >/dev/null; then
        say "setup: no apt-get here. Install the equivalents of: $(echo $packages) libmsgpack-dev"
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            sudo=sudo
        else
            say "setup: as root, run: apt-get install $(echo $packages) $(msgpack_package)"
            exit 1
        fi
    fi
    say "setup: installing build tools and libraries with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq >&2
    # shellcheck disable=SC2086
    $sudo apt-get install -y -qq --no-install-recommends $packages "$(msgpack_package)" >/dev/null
}

# Beside what building needs: their tests skip where these are missing. A name a line, and the command that comes with it.
engines="openmpi-bin mpirun.openmpi
libopenmpi-dev mpicc.openmpi
mpich mpirun.mpich
libmpich-dev mpicc.mpich
gfortran gfortran
slurmctld slurmctld
slurmd slurmd
slurm-client srun
parallel parallel"
ray="ray==2.58.0"

setup_engines() {
    local missing="" sudo="" package program
    PATH=$PATH:/usr/sbin # where daemons lie, and a user's own may not look
    setup_ray
    while read -r package program; do
        command -v "$program" >/dev/null || missing="$missing $package"
    done <<<"$engines"
    if [ -z "$missing" ]; then return 0; fi
    if [ "$(id -u)" != 0 ]; then sudo="sudo -n"; fi
    if command -v apt-get >/dev/null && $sudo true 2>/dev/null; then
        say "setup: installing with apt-get:$missing"
        export DEBIAN_FRONTEND=noninteractive
        $sudo apt-get update -qq >&2 || true
        for package in $missing; do # one that is not to be had keeps none of the others away
            $sudo apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 || say "setup: no $package here; its tests skip"
        done
    else
        say "setup: tests of these skip:$missing"
    fi
}

# In a folder of its own: it brings libraries that nothing else here needs.
setup_ray() {
    local to=build/engines/ray
    if [ -e "$to/.complete" ] || [ ! -x build/venv/bin/pip ]; then return 0; fi
    rm -rf "$to"
    if build/venv/bin/pip install -q --disable-pip-version-check --target "$to" "$ray" 2>/dev/null; then
        touch "$to/.complete"
    else
        say "setup: no $ray here; its test skips"
    fi
}

# The CPU build of torch; PyPI's own, with gigabytes of CUDA packages, only where that cannot be fetched.
install_torch() {
    local pin=$1 pip="build/venv/bin/pip install -q --disable-pip-version-check"
    $pip "$pin+cpu" 2>/dev/null && return
    $pip "$pin+cpu" --retries 1 --index-url https://download.pytorch.org/whl/cpu && return
    say "setup: no CPU build of $pin is to be had; PyPI's build comes with CUDA's libraries (3 GB)"
    $pip "$pin"
}

setup_python() {
    local wanted=samples/requirements.txt stamp=build/venv/.requirements
    if [ -e "$stamp" ] && cmp -s "$wanted" "$stamp"; then return 0; fi
    say "setup: making build/venv (PyTorch for the CPU, transformers; about 1 GB)"
    mkdir -p build
    [ -x build/venv/bin/python ] || python3 -m venv build/venv
    install_torch "$(grep -m1 '^torch==' "$wanted")"
    grep -v -e '^torch==' -e ' # no-deps$' "$wanted" >build/requirements-rest.txt
    build/venv/bin/pip install -q --disable-pip-version-check -r build/requirements-rest.txt
    grep ' # no-deps$' "$wanted" | sed 's/ #.*//' >build/requirements-alone.txt
    build/venv/bin/pip install -q --disable-pip-version-check --no-deps -r build/requirements-alone.txt
    cp "$wanted" "$stamp"
}

# Each folder of these goes first on PYTHONPATH; build/venv itself stays as it is.
setup_published() {
    local to=${1:-build/published}
    release() {
        local folder=$to/$1
        shift
        [ -e "$folder/.complete" ] && return
        rm -rf "$folder"
        build/venv/bin/pip install -q --disable-pip-version-check --no-deps --target "$folder" "$@"
        touch "$folder/.complete"
    }
    release tf436 transformers==4.36.2 huggingface_hub==0.23.4 tokenizers==0.15.2
    release tf438 transformers==4.38.0 huggingface_hub==0.23.4 tokenizers==0.15.2
    release tf445 transformers==4.45.2 huggingface_hub==0.26.5 tokenizers==0.20.3
    release tf463 transformers==4.46.3 huggingface_hub==0.26.5 tokenizers==0.20.3
    release tf457 transformers==4.57.3 huggingface_hub==0.35.3 tokenizers==0.22.1
    release litgpt litgpt==0.5.8 lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 jsonargparse==4.53.0
    release timm timm==1.0.31
    release torchvision torchvision==0.28.0 pillow
    release torchtune torchtune==0.6.1
    release lens transformer-lens==2.15.4 jaxtyping==0.3.11 beartype==0.23.1 fancy_einsum==0.0.3 einops==0.8.2 \
        wadler_lindig==0.1.8 better_abc==0.0.3 typeguard==2.13.3
    release mambapy mambapy==1.2.0
    release whisper openai-whisper==20250625 more-itertools==11.2.1
    release openclip open_clip_torch==3.3.0 ftfy==6.3.1 wcwidth==0.9.4
    release curated curated-transformers==2.0.1 catalogue==2.0.10
    release bert2018 pytorch_pretrained_bert==0.6.2
    release bert2019 pytorch_transformers==1.2.0
    release efficientnet efficientnet_pytorch==0.7.1
    release geffnet geffnet==1.0.2
    release xtransformers x-transformers==2.31.10 torch-einops-utils==0.2.0 einops==0.8.2 einx==0.4.3 frozendict==2.5.1 loguru==0.7.3
    release megatron megatron-core==0.16.1
    release rwkv rwkv==0.8.32
    release fms ibm-fms==1.13.1
    release torchtext torchtext==0.18.0
    release torchaudio torchaudio==2.11.0
    release fairesm fair-esm==2.0.0
    release encodec encodec==0.1.1 einops==0.8.2
    release keras keras==3.15.1 keras-hub==0.32.0 optree==0.20.0 namex==0.1.0 absl-py==2.5.1 h5py==3.16.0
    release vitpytorch vit-pytorch==1.26.14 einops==0.8.2
    release perceiver perceiver-pytorch==0.11.0 einops==0.8.2
    release softmoe soft-moe-pytorch==0.1.9 einops==0.8.2
    release diffusers diffusers==0.42.1 importlib_metadata==10.2.0 zipp==4.1.2 pillow
    release sam segment-anything==1.0
    release hiera hiera-transformer==0.1.4
    release pytorchcv pytorchcv==0.0.74
    release pyg torch_geometric==2.8.1 xxhash==4.1.0 aiohttp==3.14.5 pyparsing==3.3.3
    release rtdl rtdl_revisiting_models==0.0.2 rtdl_num_embeddings==0.0.12
    release web requests urllib3 certifi idna charset_normalizer
}

case "${1:-}" in
system) setup_system ;;
engines) setup_engines ;;
python) setup_python ;;
published) setup_published "${2:-}" ;;
*) say "usage: tests/setup.sh system|engines|python|published [DIR]"; exit 2 ;;
esac
