#!/usr/bin/env bash
# Starts the server on a new store and checks it against its own description, with requests that are made up.
#   schemathesis.sh WINDLASS SCHEMATHESIS [EXAMPLES]
# The seed is fixed and there is one worker, so that the same requests are made every time. (With two, Python 3.11 itself fails now and
# then: its parser counts how deep it is for all threads together.)
set -euo pipefail
windlass=$(realpath "$1") schemathesis=$(realpath -s "$2") examples=${3:-20}

work=$(mktemp -d)
key=$("$windlass" keys create --data "$work" --name schemathesis --scope admin | grep -oE 'wl_[A-Za-z0-9_]+' | head -n 1)
# A request may wait for a second at most: whoever makes requests up will ask for more.
WINDLASS_HTTP_WAIT_MAX=1s "$windlass" serve --bind 127.0.0.1:0 --data "$work" \
    >"$work/banner" 2>"$work/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 200); do
    url=$(grep -oE 'http://[0-9.]+:[0-9]+' "$work/banner" | head -n 1 || true)
    [ -n "$url" ] && break
    kill -0 "$server" || { cat "$work/log" >&2; exit 1; }
    sleep 0.05
done
[ -n "$url" ] || { echo "the server does not say where it listens" >&2; exit 1; }

cd "$work" # what the tester keeps goes with it
# The stream of events does not end. A job that is read again may have been changed by another request in between.
# `filter_too_much` is about the tester: it drops most of the names that it makes up for a path.
"$schemathesis" run "$url/openapi.json" \
    --exclude-path /api/v1/events \
    --phases examples,coverage,fuzzing --max-examples "$examples" --seed 20261115 \
    --suppress-health-check filter_too_much \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance \
    --header "Authorization: Bearer $key" --request-timeout 20 --workers 1
kill -0 "$server" || { echo "the server died" >&2; cat "$work/log" >&2; exit 1; }
if grep -q panicked "$work/log"; then
    cat "$work/log" >&2
    exit 1
fi
