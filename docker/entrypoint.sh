#!/bin/sh
# The image listens on every interface, so it has a key: the one given, else one made here and shown once.
# What is written for vLLM's images works too: `vllm serve MODEL ...`, or flags alone, which serve.
set -eu

case "${1:-}" in
    vllm) shift && set -- armillary "$@" ;;
    advise | check | generate | serve | tiny | verify) set -- armillary "$@" ;;
    -*) set -- armillary serve "$@" ;;
esac

serves=no open=no
for word in "$@"; do
    case "$word" in
        serve) serves=yes ;;
        --api-key | --api-key=* | --no-auth) open=decided ;;
    esac
done

if [ "$serves" = yes ] && [ "$open" = no ] && [ -z "${ARMILLARY_API_KEY:-}" ]; then
    ARMILLARY_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')
    export ARMILLARY_API_KEY
    echo "no API key was given; this one is for this run: $ARMILLARY_API_KEY" >&2
fi

exec "$@"
