#!/bin/sh
# Submit an order and print its receipt: sh order.sh RUN_ID KEY INPUT
# KEYRUN_SOCKET is the path of a socket. Without it, KEYRUN_ADDRESS and KEYRUN_TOKEN are used.
set -eu
umask 077
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# In a file, because other users can see the arguments of a command.
if [ -n "${KEYRUN_SOCKET:-}" ]; then
    printf 'unix-socket = "%s"\n' "$KEYRUN_SOCKET" >"$folder/options"
else
    printf 'header = "Authorization: Bearer %s"\n' "$KEYRUN_TOKEN" >"$folder/options"
fi

call() {
    path=$1
    shift
    curl --config "$folder/options" --silent --show-error --fail-with-body \
        --retry 9 --retry-connrefused "${KEYRUN_ADDRESS:-http://localhost}/v1$path" "$@"
}

# The id makes it safe to send the request again.
call /runs --output "$folder/answer" --header 'Content-Type: application/json' \
    --data "{\"workflow\": \"checkout\", \"run_id\": \"$1\", \"key\": \"$2\", \"input\": $3}" ||
    { cat "$folder/answer" >&2; exit 1; }
until call "/runs/$1?wait=30" | grep -Eo '"state":"[a-z]+"' | head -n 1 |
    grep -Eq 'succeeded|failed|cancelled|quarantined'; do :; done
call "/runs/$1/result"
echo
