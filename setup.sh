#!/usr/bin/env bash
# Makes .venv with Python 3.12 or 3.13 and installs this project with one of its extras (skyrl or dev).
# Does nothing when that was done before and pyproject.toml has not changed.
set -euo pipefail
cd "$(dirname "$0")"
extra=${1:-skyrl}

fits() { "$1" -c 'import sys; sys.exit(not ((3, 12) <= sys.version_info[:2] < (3, 14)))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.12 python3.13 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python \
        "$HOME"/.local/share/uv/python/cpython-3.1[23]*/bin/python "$HOME"/{miniconda3,anaconda3,miniforge3}/envs/*/bin/python; do
        [ -n "$candidate" ] || continue
        candidate=$(command -v "$candidate" || true)
        if [ -n "$candidate" ] && fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    if command -v uv >/dev/null && uv python find 3.12 2>/dev/null; then return; fi
    return 1
}

if ! [ -x .venv/bin/python ]; then
    if ! python=$(find_python); then
        echo "setup: no Python 3.12 or 3.13 found (python3 here is $(python3 -V 2>&1 || echo missing)). SkyRL needs one." >&2
        echo "setup: install it ('uv python install 3.12', 'pyenv install 3.12' or your distribution's package), or name it: PYTHON=/path/to/python3.12 make train" >&2
        exit 2
    fi
    echo "setup: creating .venv with $("$python" -V) ($python)"
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        echo "setup: $python cannot create virtual environments; on Debian or Ubuntu install python3.12-venv, or name another: PYTHON=… make train" >&2
        exit 2
    fi
fi

stamp=.venv/installed-$extra
if [ "$(cat "$stamp" 2>/dev/null)" != "$(sha256sum pyproject.toml)" ]; then
    echo "setup: installing minisandbox-ray[$extra] into .venv (PyTorch is the bulk: up to 5 GB on the disk, some minutes)"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --editable ".[$extra]"
    sha256sum pyproject.toml >"$stamp"
fi
