#!/bin/sh
# A wrapper as users write them: `wrapper.sh FAULT RANK`. It prepares, runs the program, and passes on its code.
export OMP_NUM_THREADS=1
python3 "$(dirname "$0")/ring.py" "$@"
code=$?
echo "program ended with $code"
exit $code
