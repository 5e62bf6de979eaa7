//! Operations of an expression program on columns (one value per element), as loops that vectorise.

use backend_api::expr::{Binary, Integer, Number, Program, Type, Unary};
use backend_api::kernel::{Op, Reg, Report, TimeLimit};
use backend_api::{by_binary, by_integer, by_type, by_unary};

use crate::memory::Passage;

/// The name of the operation in errors.
pub(super) const OPERATION: &str = "compute";

/// The values of one operation for a block of elements; bools are bytes of 0 and 1.
#[derive(Debug, Default)]
pub(super) struct ValueColumn(Passage<u64>);

impl ValueColumn {
    pub fn new(of: Type, lanes: usize) -> Self {
        Self(Passage(vec![0; (lanes * of.bytes() as usize).div_ceil(8)]))
    }

    pub fn of<T: bytemuck::Pod>(&self, lanes: usize) -> &[T] {
        &bytemuck::cast_slice(&self.0.0)[..lanes]
    }

    pub fn of_mut<T: bytemuck::Pod>(&mut self, lanes: usize) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.0.0)[..lanes]
    }

    pub fn bytes(&self, of: Type, lanes: usize) -> &[u8] {
        self.of(lanes * of.bytes() as usize)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0.0)
    }

    /// Sets all values of the column (one per element) to the value of type `of` with these `bits`.
    pub fn fill(&mut self, of: Type, bits: u64) {
        macro_rules! fill {
            ($T:ty) => {
                bytemuck::cast_slice_mut::<u64, $T>(&mut self.0.0).fill(bits as $T)
            };
        }
        match of.bytes() {
            1 => fill!(u8),
            2 => fill!(u16),
            4 => fill!(u32),
            _ => fill!(u64),
        }
    }
}

/// Calls a function, inlined and compiled for AVX2 with FMA if the processor has both. The compiler fuses
/// only explicit fused operations.
macro_rules! wide {
    ($function:ident $($rest:tt)*) => { wide!(<> $function $($rest)*) };
    (<$($G:ident: $bound:path),*> $function:ident($($name:ident: $T:ty),*)) => {
        wide!(<$($G: $bound),*> $function($($name: $T),*) -> ())
    };
    (<$($G:ident: $bound:path),*> $function:ident($($name:ident: $T:ty),*) -> $R:ty) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($G: $bound),*>($($name: $T),*) -> $R {
                $function($($name),*)
            }
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                // SAFETY: the processor has AVX2 and FMA.
                return unsafe { avx2($($name),*) };
            }
        }
        $function($($name),*)
    }};
}
pub(super) use wide;

#[inline(always)]
fn one_here<A: Copy, R, F: Fn(A) -> R>(a: &[A], out: &mut [R], f: F) {
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(*a);
    }
}

#[inline(always)]
fn two_here<A: Copy, R, F: Fn(A, A) -> R>(a: &[A], b: &[A], out: &mut [R], f: F) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = f(*a, *b);
    }
}

/// Computes a column from another column. Each operation is a separate function, because the compiler takes
/// over a minute for all of them in one function.
#[inline(never)]
fn one<A: bytemuck::Pod, R: bytemuck::Pod>(
    a: &ValueColumn,
    out: &mut ValueColumn,
    lanes: usize,
    f: impl Fn(A) -> R,
) {
    let (a, out) = (a.of(lanes), out.of_mut(lanes));
    wide!(<A: Copy, R: Sized, F: Fn(A) -> R> one_here(a: &[A], out: &mut [R], f: F));
}

/// Computes a column from two others, like `one`.
#[inline(never)]
fn two<A: bytemuck::Pod, R: bytemuck::Pod>(
    (a, b): (&ValueColumn, &ValueColumn),
    out: &mut ValueColumn,
    lanes: usize,
    f: impl Fn(A, A) -> R,
) {
    let (a, b, out) = (a.of(lanes), b.of(lanes), out.of_mut(lanes));
    wide!(<A: Copy, R: Sized, F: Fn(A, A) -> R> two_here(a: &[A], b: &[A], out: &mut [R], f: F));
}

fn unary(op: Unary, of: Type, a: &ValueColumn, out: &mut ValueColumn, lanes: usize) {
    macro_rules! column {
        ($A:ty, $R:ty, $function:expr) => {
            one::<$A, $R>(a, out, lanes, $function)
        };
    }
    // Other types never reach these operations, because the program was checked.
    by_unary!(op, of, column, {})
}

fn binary(op: Binary, of: Type, pair: (&ValueColumn, &ValueColumn), out: &mut ValueColumn, lanes: usize) {
    macro_rules! number {
        ($method:ident) => {
            by_type!(of, T => two(pair, out, lanes, <T as Number>::$method))
        };
    }
    // Floats never reach these operations, because the program was checked.
    macro_rules! integer {
        ($method:ident) => {
            by_integer!(of, T => two(pair, out, lanes, <T as Integer>::$method), _ => {})
        };
    }
    macro_rules! comparison {
        ($operator:tt) => {
            by_type!(of, T => two(pair, out, lanes, |a: T, b: T| u8::from(a $operator b)))
        };
    }
    by_binary!(op, number, integer, comparison)
}

fn cast(from: Type, to: Type, a: &ValueColumn, out: &mut ValueColumn, lanes: usize) {
    if (from, to) == (Type::F32, Type::U32) {
        return one(a, out, lanes, f32_to_u32);
    }
    by_type!(from, A => by_type!(to, R => one(a, out, lanes, |a: A| a as R)));
}

/// `number as u32` through the vector conversion to `i32`, because the compiler does not vectorise `as`.
#[inline(always)]
fn f32_to_u32(number: f32) -> u32 {
    const TOP: f32 = (1_u32 << 31) as f32;
    let number = if number > 0.0 { number } else { 0.0 };
    let has_top_bit = number >= TOP;
    let rest = if has_top_bit { number - TOP } else { number };
    let is_too_great = rest >= TOP;
    let rest = if is_too_great { 0.0 } else { rest };
    // SAFETY: from 0, which replaces NaN, to less than 2^31.
    let bits = unsafe { rest.to_int_unchecked::<i32>() } as u32 | u32::from(has_top_bit) << 31;
    if is_too_great { u32::MAX } else { bits }
}

#[inline(always)]
fn fma_here(of: Type, [a, b, c]: [&ValueColumn; 3], out: &mut ValueColumn, lanes: usize) {
    macro_rules! fma {
        ($T:ty) => {{
            let summands = b.of::<$T>(lanes).iter().zip(c.of::<$T>(lanes));
            let values = a.of::<$T>(lanes).iter().zip(summands);
            for (out, (a, (b, c))) in out.of_mut::<$T>(lanes).iter_mut().zip(values) {
                *out = a.mul_add(*b, *c);
            }
        }};
    }
    match of {
        Type::F32 => fma!(f32),
        _ => fma!(f64),
    }
}

#[inline(always)]
fn select_here(
    of: Type,
    condition: &ValueColumn,
    yes: &ValueColumn,
    no: &ValueColumn,
    out: &mut ValueColumn,
    lanes: usize,
) {
    macro_rules! select {
        ($T:ty) => {{
            let values = yes.of::<$T>(lanes).iter().zip(no.of::<$T>(lanes));
            let condition = condition.of::<u8>(lanes);
            for ((out, condition), (yes, no)) in out.of_mut::<$T>(lanes).iter_mut().zip(condition).zip(values)
            {
                *out = if *condition != 0 { *yes } else { *no };
            }
        }};
    }
    match of.bytes() {
        1 => select!(u8),
        2 => select!(u16),
        4 => select!(u32),
        _ => select!(u64),
    }
}

fn fma(of: Type, terms: [&ValueColumn; 3], out: &mut ValueColumn, lanes: usize) {
    wide!(fma_here(of: Type, terms: [&ValueColumn; 3], out: &mut ValueColumn, lanes: usize))
}

fn select(
    of: Type,
    condition: &ValueColumn,
    yes: &ValueColumn,
    no: &ValueColumn,
    out: &mut ValueColumn,
    lanes: usize,
) {
    wide!(select_here(
        of: Type, condition: &ValueColumn, yes: &ValueColumn, no: &ValueColumn, out: &mut ValueColumn,
        lanes: usize
    ))
}

/// The end of an evaluation because a function call exceeded its time limit.
#[derive(Debug)]
pub(super) struct Late {
    /// Index of the failed operation.
    pub at: usize,
    /// The report about the first function call that exceeded its time limit, if a call in this evaluation
    /// did. The report has the element and the loop.
    pub report: Report,
}

/// Evaluates the needed operations of a program, with the widest vectors that the processor has. The caller
/// has filled the columns of fields, literals and indices.
pub(super) fn evaluate(
    program: &Program,
    needed: &[bool],
    limits: &[Option<TimeLimit>],
    columns: &mut [ValueColumn],
    lanes: usize,
) -> Result<(), Late> {
    let types = program.types();
    let of = |value: Reg| types[value.at()];
    for (at, op) in program.ops().iter().enumerate().filter(|(at, _)| needed[*at]) {
        let (before, rest) = columns.split_at_mut(at);
        let (Some(out), get) = (rest.first_mut(), |value: Reg| &before[value.at()]) else { return Ok(()) };
        match *op {
            Op::Unary { op, of: a, .. } => unary(op, of(a), get(a), out, lanes),
            Op::Binary { op, left, right, .. } => {
                binary(op, of(left), (get(left), get(right)), out, lanes);
            }
            Op::Select { when, yes, no, .. } => {
                select(of(yes), get(when), get(yes), get(no), out, lanes);
            }
            Op::Cast { of: a, .. } => cast(of(a), types[at], get(a), out, lanes),
            Op::Fma { a, b, c, .. } => fma(of(a), [a, b, c].map(get), out, lanes),
            Op::Call { ref function, ref arguments, .. } => {
                let arguments: Vec<&[u8]> =
                    arguments.iter().map(|value| get(*value).bytes(of(*value), lanes)).collect();
                let bytes = lanes * function.gives().bytes() as usize;
                let limit = limits[at].as_ref();
                let report = function.call_all(&arguments, out.of_mut(bytes), limit);
                if limit.is_some_and(TimeLimit::is_exceeded) {
                    return Err(Late { at, report });
                }
            }
            // The caller handles all other operations: `Load`, `FieldEquals`, `Literal` and `Builtin`.
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::f32_to_u32;

    proptest! {
        #[test]
        fn floats_become_the_unsigned_numbers_that_a_cast_gives(bits in any::<u32>(), near in 0_u32..1 << 10) {
            let ends = [0.0, 1.0, (1_u32 << 31) as f32, u32::MAX as f32, f32::INFINITY, -1.0];
            let near = ends.into_iter().flat_map(|end| {
                [end.to_bits().wrapping_add(near), end.to_bits().wrapping_sub(near)]
            });
            for bits in near.chain([bits]) {
                let number = f32::from_bits(bits);
                prop_assert_eq!(f32_to_u32(number), number as u32, "{}", number);
            }
        }
    }
}
