//! Counts the instructions of accesses to an array and to a `Vec`, and compares them with known counts.

use anyhow::{Result, bail, ensure};
use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use vmarray::access::Iter;
use vmarray::prelude::*;

/// The number of accesses in the shorter of two measured loops, all to one page.
const STEPS: usize = 100;
/// The number of instructions by which a count may exceed the table.
const TOLERANCE: f64 = 0.5;
/// The known instructions of one access and its loop: name, count of the array, count of a `Vec`.
const KNOWN: [(&str, f64, f64); 12] = [
    ("get u8", 26.0, 8.0),
    ("get u32", 26.0, 8.0),
    ("get u64", 26.0, 8.0),
    ("get 44 bytes", 73.0, 13.0),
    ("set u8", 25.0, 8.0),
    ("set u32", 25.0, 8.0),
    ("set u64", 25.0, 8.0),
    ("set 44 bytes", 60.0, 14.0),
    ("cursor u32", 16.0, 8.0),
    ("cursor, 44 B", 22.0, 13.0),
    ("iter u32", 13.0, 8.0),
    ("iter, 44 B", 23.0, 13.0),
];

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Prints the table of instruction counts. Returns an error if a count exceeds its recorded value.
pub fn run() -> Result<()> {
    // SAFETY: the handler adds to an atomic number, which is allowed at any time.
    let before = unsafe { libc::signal(libc::SIGTRAP, on_trap as *const () as libc::sighandler_t) };
    ensure!(before != libc::SIG_ERR, "cannot set a handler for SIGTRAP");
    if instructions(|steps| (0..steps).for_each(|step| _ = black_box(step))) == 0.0 {
        println!("SKIPPED, NOT CHECKED: the trap flag has no effect on this machine");
        return Ok(());
    }
    let (bytes, words, longs, records) = (of(7_u8)?, of(7_u32)?, of(7_u64)?, of([7_u32; 11])?);
    let counts = [
        [bytes[0], words[0], longs[0], records[0]],
        [bytes[1], words[1], longs[1], records[1]],
        [words[2], records[2], words[3], records[3]],
    ];
    let mut risen = Vec::new();
    println!("instructions   array  (known)    Vec  (known)");
    for ((name, known, known_vec), (array, vec)) in KNOWN.into_iter().zip(counts.concat()) {
        println!("{name:13} {array:6.1}  {known:7.1} {vec:6.1}  {known_vec:7.1}");
        if array > known + TOLERANCE {
            risen.push(name);
        }
    }
    if !risen.is_empty() {
        bail!("more instructions than xtask/hits/src/counting.rs lists: {}", risen.join(", "));
    }
    Ok(())
}

/// Counts instructions of `get`, `set`, and a step of a cursor and an iterator, for an array and a `Vec`.
fn of<T: Element>(value: T) -> Result<[(f64, f64); 4]> {
    let array = VirtualArray::<T>::new(2 * STEPS)?;
    let mut vec = vec![value; 2 * STEPS];
    (0..array.len()).try_for_each(|index| array.set(index, value))?;
    let get = instructions(|steps| gets(&array, steps));
    let vec_get = instructions(|steps| vec_gets(&vec, steps));
    let set = instructions(|steps| sets(&array, steps, value));
    let vec_set = instructions(|steps| vec_sets(&mut vec, steps, value));
    let cursor = instructions(|steps| cursor_gets(&array, steps));
    let iter = instructions(|steps| steps_of_iter(array.section(..steps).expect("it is inside").iter()));
    Ok([(get, vec_get), (set, vec_set), (cursor, vec_get), (iter, vec_get)])
}

#[inline(never)]
fn cursor_gets<T: Element>(array: &VirtualArray<T>, steps: usize) {
    let mut cursor = array.cursor();
    for index in 0..steps {
        black_box(&cursor.get(index));
    }
}

#[inline(never)]
fn steps_of_iter<T: Element>(elements: Iter<'_, T>) {
    for element in elements {
        black_box(&element);
    }
}

#[inline(never)]
fn gets<T: Element>(array: &VirtualArray<T>, steps: usize) {
    for index in 0..steps {
        black_box(&array.get(index));
    }
}

#[inline(never)]
#[expect(clippy::needless_range_loop, reason = "the same loop as that of the array")]
fn vec_gets<T: Element>(vec: &[T], steps: usize) {
    for index in 0..steps {
        black_box(&{ vec[index] });
    }
}

#[inline(never)]
fn sets<T: Element>(array: &VirtualArray<T>, steps: usize, value: T) {
    for index in 0..steps {
        let _ = black_box(array.set(index, value));
    }
}

#[inline(never)]
fn vec_sets<T: Element>(vec: &mut [T], steps: usize, value: T) {
    for index in 0..steps {
        vec[index] = value;
        black_box(&mut *vec);
    }
}

/// Returns the instructions of one step of a loop: the difference between loops of twice and once [`STEPS`].
fn instructions(mut run: impl FnMut(usize)) -> f64 {
    run(STEPS);
    let [few, many] = [STEPS, 2 * STEPS].map(|steps| {
        COUNT.store(0, Ordering::Relaxed);
        // SAFETY: sets the trap flag on the stack, which the block may use; SIGTRAP has a handler.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        run(steps);
        // SAFETY: as above; clears the flag.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        COUNT.load(Ordering::Relaxed)
    });
    (many - few) as f64 / STEPS as f64
}

extern "C" fn on_trap(_: libc::c_int) {
    COUNT.fetch_add(1, Ordering::Relaxed);
}
