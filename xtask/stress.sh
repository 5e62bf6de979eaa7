#!/usr/bin/env bash
# Runs the tests of snapshots, guards, growth, moves and losses again and again, several copies at once, by a
# test program that is built already: no cargo is needed.
#
#   cargo test -p vmarray-tests --all-features --no-run    # says where the program is
#   xtask/stress.sh target/debug/deps/it-0123456789abcdef      # 100 rounds, eight copies at once
#
# ROUNDS, COPIES, THREADS (of each copy), PATIENCE (seconds of a round) and FILTERS change that. The log of
# each run is kept in LOGS, in a folder for each program. A run that has passed by its log is not made again, so
# the same command resumes. A round that does not end is aborted, and its log has the stacks if gdb is installed.
set -u
program=$(realpath -- "${1:?the path of a built test program}")
rounds=${ROUNDS:-100} copies=${COPIES:-8} threads=${THREADS:-2} patience=${PATIENCE:-900}
filters=${FILTERS:-snapshots:: guards:: guarded_calls:: growth:: stored_growth:: homes:: losses::}
# Logs of another program prove nothing about this one.
logs=${LOGS:-$(dirname -- "$program")/../../stress}/$(sha256sum -- "$program" | cut -c1-16)
mkdir -p -- "$logs"
logs=$(realpath -- "$logs")

# One round of one copy, which others run next to.
run() {
    local log=$logs/$1-$2.log process watch status
    grep -qs '^passed$' "$log" && return 0
    "$program" $filters --test-threads "$threads" >"$log" 2>&1 &
    process=$!
    {
        sleep "$patience"
        if command -v gdb >/dev/null; then
            gdb -p "$process" -batch -ex 'thread apply all backtrace' >>"$log" 2>&1
        fi
        kill -ABRT "$process"
    } 2>/dev/null &
    watch=$!
    wait "$process"
    status=$?
    pkill -P "$watch" 2>/dev/null
    kill "$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    if [ "$status" -eq 0 ]; then
        echo passed >>"$log"
        return 0
    fi
    echo "round $1, copy $2: status $status, see $log" >&2
    grep -E '^test .*(FAILED|has been running)|panicked at' "$log" | head -20 >&2
    return 1
}

copy() {
    local round failures=0
    for round in $(seq "$rounds"); do
        run "$round" "$1" || failures=$((failures + 1))
    done
    return "$((failures > 0))"
}

cd -- "$(dirname -- "$0")/../vmarray" || exit 2
started=$SECONDS jobs=()
for number in $(seq "$copies"); do
    copy "$number" &
    jobs+=($!)
done
failed=0
for job in "${jobs[@]}"; do
    wait "$job" || failed=1
done
passed=$(grep -ls '^passed$' "$logs"/*.log | wc -l)
echo "$passed runs of $((rounds * copies)) have passed; $((SECONDS - started)) s"
exit "$failed"
