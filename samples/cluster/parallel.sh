#!/bin/sh
# ./parallel.sh 64 diff a.lb b.lb
# One part a job of GNU parallel, as many at a time as there are cores (PARALLEL_OPTIONS=--sshloginfile=nodes: on other hosts, too).
workers=$1 command=$2
shift
parts=$(mktemp -d ./lastbit-parts.XXXXXX)
parallel --quote --retries 3 ${PARALLEL_OPTIONS:-} "${LASTBIT:-lastbit}" "$@" --part "{}/$workers" -o "$parts/{}" ::: $(seq "$workers") >&2 || exit
"${LASTBIT:-lastbit}" "$command" --merge "$parts"/*
code=$?
rm -r "$parts"
exit $code
