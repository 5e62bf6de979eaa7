//! Test of a program that installs a filter of system calls after its first use of arrays.

#![cfg(all(target_os = "linux", target_arch = "x86_64", feature = "host"))]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use vmarray::prelude::*;

use crate::common::{Numbers, Shape};

/// System calls that the child's filter refuses, as numbers separated by commas.
const REFUSED: &str = "VMARRAY_TEST_REFUSED";
const THREADS: u64 = 4;
const PAGES: usize = 16;
const PAGE_LEN: usize = 4;

/// Makes the system refuse these calls to all threads of this process.
fn refuse(calls: &[u32]) {
    const NR: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let statement =
        |code: u32, k, jump_true| libc::sock_filter { code: code as u16, jt: jump_true, jf: 0, k };
    // The filter supports only this architecture, because it is used in this test alone.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NR, 0)];
    for (i, call) in calls.iter().enumerate() {
        let to_the_end = (calls.len() - i) as u8;
        program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call, to_the_end));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the calls read the program, which lives until they return, and access no other memory.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let how = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, how.0, how.1, &raw const program), 0);
    }
}

/// Body of the child: uses an array, installs the filter, and continues with several threads.
#[test]
#[ignore = "run by the others, in a process of its own"]
fn child() {
    let refused = std::env::var(REFUSED).expect("calls to refuse");
    let calls: Vec<u32> = refused.split(',').map(|call| call.parse().expect("a number")).collect();
    let shape = Shape { page_len: PAGE_LEN, channels: vec![1], frames: 4, ..Shape::default() };
    let array = shape.build::<u64>(PAGES * PAGE_LEN);
    let add = &|turns: u64, seed| {
        let mut numbers = Numbers::new(seed);
        let mut sum = 0;
        for _ in 0..turns {
            let (index, more) = (numbers.below(array.len()), numbers.below(100) as u64);
            array.update(index, |value| value + more).unwrap();
            // Read a second time, because the second access opens the page.
            array.get(index).unwrap();
            sum += more;
        }
        sum
    };
    let together = |turns| -> u64 {
        std::thread::scope(|threads| {
            let threads: Vec<_> = (0..THREADS).map(|i| threads.spawn(move || add(turns, i + 1))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    };
    let before = together(500);
    array.reset_stats();
    refuse(&calls);
    let sum = before + together(backend_api::wrap::random_cases(2000).into());
    assert_eq!(array.to_vec(..).unwrap().iter().sum::<u64>(), sum);
    assert!(array.stats().total().barriers > 0);
}

fn run_child(refused: &[i64]) -> Output {
    let refused: Vec<String> = refused.iter().map(i64::to_string).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "late_filter::child", "--ignored", "--nocapture"])
        .env(REFUSED, refused.join(","))
        .output()
        .unwrap()
}

#[test]
fn a_barrier_that_is_refused_late_costs_time_only() {
    let output = run_child(&[libc::SYS_membarrier]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_process_that_can_have_no_barrier_any_more_says_why_it_ends() {
    let output = run_child(&[libc::SYS_membarrier, libc::SYS_sched_setaffinity]);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("membarrier failed"), "{output:?}");
}
