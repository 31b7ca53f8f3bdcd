#!/bin/sh
# ./mpirun.sh 64 diff a.lb b.lb
# One worker a rank. Where one dies, Open MPI lets the others go on if it is told so; MPICH ends all of them, and a second start goes on where
# they were.
workers=$1 command=$2
shift
case $(mpirun --version) in
*"Open MPI"*) exec mpirun --enable-recovery -n "$workers" ${MPIRUN_OPTIONS:-} "${LASTBIT:-lastbit}" "$@" ;;
esac
parts=$(mktemp -d ./lastbit-parts.XXXXXX)
for _ in 1 2 3; do
    mpirun -n "$workers" ${MPIRUN_OPTIONS:-} "${LASTBIT:-lastbit}" "$@" --parts "$parts" >&2
    [ -e "$parts/answer" ] && break
done
"${LASTBIT:-lastbit}" "$command" --merge "$parts"
code=$?
rm -r "$parts"
exit $code
