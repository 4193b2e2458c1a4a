# Sourced by quickstart.sh and test.sh: a virtual environment with everything the project needs.
#
#   set_up [EXTRA]    e.g. set_up tests; sets PYTHON to the environment's interpreter
#
# Variables: VENV, the environment's folder (default: .venv in the repository); TORCH, what pip installs as
# torch (default: torch). Running it again does nothing when nothing has changed.

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$REPO/.venv}
TORCH=${TORCH:-torch}

say() { printf '[set-up] %s\n' "$*" >&2; }

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; }

is_python312() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }

# Print an interpreter of Python 3.12: python3.12, then pyenv's, conda's, uv's.
find_python312() {
    local candidate
    for candidate in python3.12 python3; do
        if is_python312 "$candidate"; then echo "$candidate"; return; fi
    done
    if command -v pyenv >/dev/null 2>&1; then
        for candidate in "$(pyenv root)"/versions/3.12*/bin/python; do
            if is_python312 "$candidate"; then echo "$candidate"; return; fi
        done
    fi
    if command -v conda >/dev/null 2>&1; then
        candidate=$VENV-conda/bin/python
        [ -x "$candidate" ] || conda create --quiet --yes --prefix "$VENV-conda" python=3.12 >&2
        if is_python312 "$candidate"; then echo "$candidate"; return; fi
    fi
    if command -v uv >/dev/null 2>&1; then
        candidate=$(uv python find 3.12 2>/dev/null || { uv python install 3.12 >&2 && uv python find 3.12; })
        if is_python312 "$candidate"; then echo "$candidate"; return; fi
    fi
    say "Python 3.12 with venv was not found: not as python3.12, nor in pyenv, conda or uv."
    say "Install one of: your system's python3.12 and python3.12-venv packages; 'pyenv install 3.12'; uv."
    return 1
}

# Torch before the rest, so that a machine without a GPU gets the build without CUDA where that can be had.
install_torch() {
    if "$PYTHON" -c 'import torch' >/dev/null 2>&1; then
        say "torch is there already: $("$PYTHON" -c 'import torch; print(torch.__version__)' 2>/dev/null)"
    elif has_gpu; then
        say "installing $TORCH with CUDA"
        "$PYTHON" -m pip install --quiet "$TORCH"
    else
        say "no GPU: installing $TORCH without CUDA"
        "$PYTHON" -m pip install --quiet --retries 0 --timeout 15 \
            --index-url https://download.pytorch.org/whl/cpu "$TORCH" 2>/dev/null ||
            { say "the CPU build cannot be reached; installing the general one, which is larger (several GB)"
              "$PYTHON" -m pip install --quiet "$TORCH"; }
    fi
}

set_up() {
    local extra=${1:-} python stamp
    stamp=$VENV/.set-up-$extra-$(cksum <"$REPO/setup.py" | cut -d' ' -f1)
    PYTHON=$VENV/bin/python
    if [ -e "$stamp" ]; then say "environment $VENV is up to date"; return; fi
    if [ ! -x "$PYTHON" ]; then
        python=$(find_python312) || return 1
        say "making $VENV with $("$python" --version)"
        # NVIDIA's containers bring a torch built for their CUDA: keep it visible
        if [ -n "${NVIDIA_PYTORCH_VERSION:-}" ]; then
            "$python" -m venv --system-site-packages "$VENV"
        else
            "$python" -m venv "$VENV"
        fi
    fi
    install_torch || return 1
    say "installing megatron_rl${extra:+ with its $extra} and what it needs"
    "$PYTHON" -m pip install --quiet --editable "$REPO${extra:+[$extra]}" || return 1
    if has_gpu && ! "$PYTHON" -c 'import transformer_engine.pytorch' >/dev/null 2>&1; then
        say "installing TransformerEngine"
        "$PYTHON" -m pip install --quiet --no-build-isolation --editable "$REPO[gpu]" ||
            say "TransformerEngine could not be installed; layers in plain torch are used instead"
    fi
    touch "$stamp"
    say "done"
}
