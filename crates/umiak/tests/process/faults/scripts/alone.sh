#!/bin/sh
# Ranks that do not communicate: `alone.sh FAULT RANK`. The culprit fails, the others wait until they are stopped.
[ "$PADDLE_TRAINER_ID" = "$2" ] || exec sleep 90
sleep 0.1
case $1 in
exit-3) exit 3 ;;
exit-255) exit 255 ;;
not-found) shard-reader --shard 17 ;;
missing-file) set -e; cat /data/shard-00017.bin ;;
unset) set -u; echo "$BATCH_SIZE_OF_THIS_RUN" ;;
segv) kill -SEGV $$ ;;
kill) kill -KILL $$ ;;
term) kill -TERM $$ ;;
limit) ulimit -t 1; while :; do :; done ;;
outside) echo $$ > victim.part; mv victim.part victim; exec sleep 90 ;;
child-killed) sleep 90 & kill -KILL $!; wait $! ;;
esac
