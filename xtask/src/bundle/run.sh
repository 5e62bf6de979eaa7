#!/bin/sh
# Runs what `cargo xtask bundle` built, on a machine that needs no Rust.
#   run.sh test  [FILTER]   every test, the stress tests included
#   run.sh bench [FILTER]   every benchmark
#   run.sh demo  [OPTIONS]  the main job: a genome store and a picture
#   run.sh all              test, demo, bench
# Each program's output goes to a file in $OUT, or in ./logs if OUT is not set.
set -u
here=$(cd "$(dirname "$0")" && pwd)
what=${1:-}
[ $# -gt 0 ] && shift
case $what in
    test | bench | demo | all) ;;
    *)
        sed -n '2,7s/^# \{0,1\}//p' "$here/run.sh"
        exit 2
        ;;
esac
mkdir -p "${OUT:-logs}" || exit 1
out=$(cd "${OUT:-logs}" && pwd)
cd "$out" || exit 1
failed=""
count=0

# Containers often have NVIDIA's OpenCL driver but no note of it where OpenCL's loader looks; it gets one here.
nvidia=$(ldconfig -p 2>/dev/null | sed -n 's/.*=> *\(.*libnvidia-opencl\.so\.1\)$/\1/p' | head -1)
if [ -n "$nvidia" ] && [ -z "${OCL_ICD_VENDORS:-}" ] && ! grep -qs nvidia /etc/OpenCL/vendors/*.icd; then
    mkdir -p "$out/icd"
    cp /etc/OpenCL/vendors/*.icd "$out/icd/" 2>/dev/null
    echo "$nvidia" >"$out/icd/nvidia.icd"
    export OCL_ICD_VENDORS="$out/icd"
    echo "OpenCL: $nvidia is not registered; OCL_ICD_VENDORS=$OCL_ICD_VENDORS"
fi

# A driver that lists no device must not pass as nothing to test.
if [ -n "$nvidia" ]; then
    export VMARRAY_REQUIRE_DEVICE="${VMARRAY_REQUIRE_DEVICE:-1}"
fi

# run NAME PROGRAM ARGUMENTS…: one program, its output to NAME.log.
run() {
    name=$1
    shift
    count=$((count + 1))
    begin=$(date +%s)
    if "$@" >"$out/$name.log" 2>&1 </dev/null; then
        state=ok
    else
        state="FAILED ($?)"
        failed="$failed $name"
    fi
    echo "$name: $state, $(($(date +%s) - begin)) s"
    grep -E '^test result|^running [1-9]|panicked at|^error' "$out/$name.log" | sort | uniq -c | sort -rn | head -5
}

tests() {
    for program in "$here"/tests/*; do
        case $program in
            */backend-cuda.it) nvidia-smi -L || continue ;;
        esac
        if [ -x "$program" ]; then run "test.$(basename "$program")" "$program" --include-ignored "$@"; fi
    done
}

benches() {
    for program in "$here"/bench/*; do
        if [ -x "$program" ]; then run "bench.$(basename "$program")" "$program" --bench "$@"; fi
    done
}

demo() {
    run devices "$here/bin/demo" devices
    run demo "$here/bin/demo" demo --fasta "$here/data/NC_008253.fna.gz" --out "$out" "$@"
    cat "$out/demo.log"
}

case $what in
    test) tests "$@" ;;
    bench) benches "$@" ;;
    demo) demo "$@" ;;
    all)
        tests
        demo
        benches
        ;;
esac
if [ $count -eq 0 ]; then
    echo "there is nothing to run in $here"
    exit 1
fi
if [ -n "$failed" ]; then
    echo "failed:$failed; see $out"
    exit 1
fi
echo "$count programs ran; logs in $out"
