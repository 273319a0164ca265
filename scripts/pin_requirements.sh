#!/usr/bin/env bash
# For maintainers: writes requirements/*.txt and docker/requirements.txt from pyproject.toml, pinned with hashes, valid on every platform.
# The files name neither a registry nor a path. Arguments go to uv, e.g. --upgrade or --upgrade-package ruff.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv || echo .venv/bin/uv)
common=(--quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
        --no-emit-index-url --no-emit-find-links)

pin() { # pin FILE INPUTS...
    local file=$1
    shift
    "$uv" pip compile "${common[@]}" "$@" --output-file "$file" >/dev/null
    printf '%s: %s packages\n' "$file" "$(grep -c '^[a-z]' "$file")"
}

build=$(mktemp)
trap 'rm -f "$build"' EXIT
echo 'hatchling>=1.27' >"$build" # installs the checkout without a build environment of its own

# The smaller sets take the pins of the largest, so that they can share one .venv.
pin requirements/dev.txt pyproject.toml --extra spark --group dev "$@"
pin requirements/demo.txt pyproject.toml "$build" --group demo --constraint requirements/dev.txt
pin docker/requirements.txt pyproject.toml "$build" --constraint requirements/dev.txt
pin requirements/jre.txt <(sed -n 's/^jre = \["\(.*\)"\].*/\1/p' pyproject.toml)
pin requirements/kerberos.txt <(sed -n 's/^kerberos = \["\(.*\)"\].*/\1/p' pyproject.toml) --constraint requirements/dev.txt
