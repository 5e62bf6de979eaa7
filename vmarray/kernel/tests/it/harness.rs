//! Random inputs, and comparison of both forms of a kernel.

use backend_api::wrap::SplitMix64;
use vmarray_kernel::{ElementMemory, Kernel, interpret, run_on_host};

/// Number of items in a comparison.
pub const ITEMS: usize = 2000;

/// Random numbers, the same in each run.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A special value, a small one, or any.
    fn bits(&mut self, special: &[u64]) -> u64 {
        let number = self.next();
        match number % 4 {
            0 => special[(number >> 8) as usize % special.len()],
            1 => (number >> 8) % 20,
            2 => ((number >> 8) % 20).wrapping_neg(),
            _ => self.next(),
        }
    }
}

/// Types with random values.
pub trait Arbitrary: ElementMemory {
    fn arbitrary(random: &mut Random) -> Self;

    /// The same value, with one bit pattern for NaNs.
    fn alike(self) -> Self {
        self
    }
}

macro_rules! integers {
    ($($T:ident)*) => { $(
        impl Arbitrary for $T {
            fn arbitrary(random: &mut Random) -> Self {
                random.bits(&[0, 1, $T::MAX as u64, $T::MIN as u64, $T::MAX as u64 / 2]) as $T
            }
        }
    )* };
}
integers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

macro_rules! floats {
    ($($T:ident)*) => { $(
        impl Arbitrary for $T {
            fn arbitrary(random: &mut Random) -> Self {
                let number = random.next();
                let special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, $T::MAX, $T::MIN_POSITIVE, $T::INFINITY,
                    $T::NEG_INFINITY, $T::NAN, 1e10, -1e-10, 255.5];
                match number % 4 {
                    0 => special[(number >> 8) as usize % special.len()],
                    1 => ((number >> 8) % 2000) as $T / 64.0 - 15.0,
                    2 => $T::from_bits(random.next() as _),
                    _ => (random.next() as i64 >> 33) as $T / 1024.0,
                }
            }

            fn alike(self) -> Self {
                if self.is_nan() { $T::NAN } else { self }
            }
        }
    )* };
}
floats!(f32 f64);

impl<T: Arbitrary, const N: usize> Arbitrary for [T; N]
where
    Self: ElementMemory,
{
    fn arbitrary(random: &mut Random) -> Self {
        std::array::from_fn(|_| T::arbitrary(random))
    }

    fn alike(self) -> Self {
        self.map(T::alike)
    }
}

/// Random values.
pub fn random<T: Arbitrary>(seed: u64, count: usize) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..count).map(|_| T::arbitrary(&mut random)).collect()
}

/// Compares elements bit by bit, except NaNs.
#[track_caller]
pub fn same<T: Arbitrary>(host: &[T], lowered: &[T]) {
    for (item, (host, lowered)) in host.iter().zip(lowered).enumerate() {
        let (host, lowered) = (host.alike(), lowered.alike());
        let bits = |value: T| {
            let mut values = Vec::new();
            value.values(&mut values);
            values
        };
        assert_eq!(bits(host), bits(lowered), "item {item}");
    }
}

/// Runs a kernel from one element to another in both forms, on random elements; returns the results.
#[track_caller]
pub fn map<K, A: Arbitrary, B: Arbitrary>() -> Vec<B>
where
    K: for<'s> Kernel<Sources<'s> = (&'s [A], &'s mut [B])>,
{
    let input: Vec<A> = random(7, ITEMS);
    let before: Vec<B> = random(8, ITEMS);
    let (mut host, mut lowered) = (before.clone(), before);
    let outside = run_on_host::<K>(0..ITEMS, (&input, &mut host));
    let report = interpret::<K>(0..ITEMS, (&input, &mut lowered)).unwrap();
    same(&host, &lowered);
    assert_eq!(outside.is_err(), report.failures > 0, "{outside:?}, {report:?}");
    host
}

/// Defines a kernel from `x` to a result, runs it in both forms, and returns the results.
macro_rules! both {
    (|$x:ident: $A:ty| -> $B:ty $body:block) => {{
        #[vmarray_kernel::kernel(crate = vmarray_kernel)]
        fn function($x: $A) -> $B $body

        #[vmarray_kernel::kernel(crate = vmarray_kernel)]
        fn launched(x: &vmarray_kernel::Own<$A>, out: &mut vmarray_kernel::Own<$B>) {
            out.set(function(x.get()));
        }
        crate::harness::map::<launched, $A, $B>()
    }};
}
pub(crate) use both;
