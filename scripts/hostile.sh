#!/usr/bin/env bash
# Runs a command of this tree where everything that a runner may set is set to the worst: signals ignored, a foreign locale, time zone and
# terminal, a HOME that cannot be written, dead proxies, standard input closed, a copy of the tree under a path with a blank and an umlaut.
#
#   scripts/hostile.sh .venv/bin/pytest -q tests/unit
#
# Jars that the cache lacks are fetched before, because the proxies are dead.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD

export MM2PY_CACHE=${MM2PY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mm2py}
.venv/bin/python -c 'from tests.kit.kafka.jars import fetch_jars; fetch_jars("tools"); fetch_jars("compiler")'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree="$work/dürre Wüste"
mkdir "$tree"
{ git ls-files -z --cached --others --exclude-standard; find mm2py -name '_kernel*.so' -print0; } |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -xf - -C "$tree"
ln -s "$top/.venv" "$top/.git" "$tree/"

cd "$tree"
umask 077
dead=http://127.0.0.1:9
ulimit -Sn 256
trap '' HUP PIPE
code=0
env TZ=Asia/Kolkata LANG=C LC_ALL=C COLUMNS=40 LINES=5 TERM=dumb NO_COLOR=1 FORCE_COLOR=1 HOME=/dev/null/home \
    XDG_RUNTIME_DIR=/proc XDG_CONFIG_HOME=/dev/null XDG_CACHE_HOME=/dev/null http_proxy=$dead https_proxy=$dead HTTP_PROXY=$dead HTTPS_PROXY=$dead ALL_PROXY=$dead \
    PYTHONWARNINGS=default PYTHONHASHSEED=1 MM2PY_URL=$dead MM2PY_TOKEN=foreign MM2PY_FILE=/nowhere.properties GITHUB_ACTIONS=true \
    "$@" <&- || code=$?
exit "$code"
