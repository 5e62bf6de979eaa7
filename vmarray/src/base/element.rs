//! Element types, and racy or atomic accesses to an element's bytes while other threads access them.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, transmute_copy};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use backend_api::{Search, racy};
use bytemuck::{NoUninit, Pod};

/// A type of array elements: plain data without padding, valid for any bit pattern, and `Send + Sync`.
///
/// Numbers and fixed-length arrays of elements are elements: `u8`, `f64`, `[f32; 3]`, `[i32; 1000]`. For your
/// own structure, derive [`bytemuck::Pod`] and [`bytemuck::Zeroable`]; the derive macros check the
/// requirements. With the line `#[bytemuck(crate = …)]` the program need not depend on `bytemuck` itself:
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::bytemuck::{Pod, Zeroable};
/// #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
/// #[bytemuck(crate = "vmarray::bytemuck")]
/// #[repr(C)]
/// struct Point { x: f32, y: f32, z: f32 }
///
/// let points = vmarray::VirtualArray::<Point>::new(1000)?;
/// points.set(7, Point { x: 1.0, y: 2.0, z: 3.0 })?;
/// assert_eq!((points.get(7)?.z, points.get(8)?), (3.0, Point::zeroed()));
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// # Size
///
/// Operations on single elements pass them by value, so several copies must fit on the stack of the thread.
/// The standard library gives a thread 2 MiB. An element may have an eighth of this size (256 KiB) in
/// [`get`](crate::VirtualArray::get), [`set`](crate::VirtualArray::set),
/// [`replace`](crate::VirtualArray::replace), [`compare_exchange`](crate::VirtualArray::compare_exchange),
/// [`update`](crate::VirtualArray::update), [`swap`](crate::VirtualArray::swap) and their uncached forms,
/// also in a program that is built without optimisation. Longer elements need a thread with a larger stack.
/// Other operations that take or return single elements may need a larger stack for shorter elements.
/// Operations on slices and pages ([`read`](crate::views::View::read),
/// [`write`](crate::views::ViewMut::write), [`map`](crate::views::PagedView::map),
/// [`page`](crate::views::PagedView::page)) move no element over the stack. An operation that replaces an
/// element of more than 16 KiB keeps it on the heap meanwhile; if the system has no memory for that, the
/// error is [`NoMemory`](crate::ErrorKind::NoMemory).
///
/// Types of zero bytes do not compile:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<()>::new(10);
/// ```
///
/// Types with padding, pointers or invalid bit patterns do not compile either:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// let array = vmarray::VirtualArray::<Option<u32>>::new(10);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of an array",
    label = "is not plain data",
    note = "elements are numbers, arrays of elements, and structures of elements without padding",
    note = "derive it: `#[derive(Clone, Copy, vmarray::bytemuck::Pod, vmarray::bytemuck::Zeroable)]`, \
            `#[bytemuck(crate = \"vmarray::bytemuck\")]` and `#[repr(C)]`; `bool`, `char`, `Option`, enumerations and \
            references are none: use numbers for them"
)]
pub trait Element: Pod + Send + Sync {}

#[diagnostic::do_not_recommend]
impl<T: Pod + Send + Sync> Element for T {}

/// Compile-time properties of an element type; each use checks the type.
pub(crate) struct ElementLayout<T>(PhantomData<T>);

impl<T: Element> ElementLayout<T> {
    pub(crate) const BYTES: usize = {
        assert!(size_of::<T>() > 0, "elements must have at least one byte");
        assert!(align_of::<T>() <= 4096, "elements must have an alignment of at most 4096 bytes");
        size_of::<T>()
    };
    /// The element whose bytes are all zero, as a constant.
    // SAFETY: elements are plain data, whose bits may all be zero.
    pub(crate) const ZERO: T = unsafe { std::mem::zeroed() };
    /// True if a single machine instruction moves an element, so that no read sees half of a write.
    pub(crate) const SINGLE_WORD: bool = matches!(Self::BYTES, 1 | 2 | 4 | 8);
    /// True if an element is too long to pass by value on a thread's stack.
    pub(crate) const HUGE: bool = Self::BYTES > 16 << 10;
}

/// Runs an operation on a one-word element as an atomic of its size.
macro_rules! on_word {
    ($T:ty, $at:ident, |$word:ident| $operation:expr) => {
        match size_of::<$T>() {
            1 => on_word!(AtomicU8, $at, $word, $operation),
            2 => on_word!(AtomicU16, $at, $word, $operation),
            4 => on_word!(AtomicU32, $at, $word, $operation),
            8 => on_word!(AtomicU64, $at, $word, $operation),
            _ => unreachable!("words have 1, 2, 4 or 8 bytes"),
        }
    };
    ($Atomic:ty, $at:ident, $word:ident, $operation:expr) => {{
        let $word = &*$at.cast::<$Atomic>();
        $operation
    }};
}

/// Converts between a one-word element and an integer of the same size.
///
/// # Safety
/// Both have the same size, and all bit patterns are valid for both.
#[inline(always)]
unsafe fn cast<A: Copy, B: Copy>(value: A) -> B {
    // SAFETY: guaranteed by the caller.
    unsafe { transmute_copy(&value) }
}

/// Loads a one-word element, with acquire semantics.
///
/// # Safety
/// `T` is a single word; `at` is readable, aligned to the size of `T`, and only accessed atomically
/// meanwhile.
#[inline(always)]
pub(crate) unsafe fn load<T: Element>(at: *const T) -> T {
    // SAFETY: the caller guarantees size, alignment and access; all bit patterns of `T` are valid.
    unsafe { on_word!(T, at, |word| cast(word.load(Ordering::Acquire))) }
}

/// Stores a one-word element, with release semantics.
///
/// # Safety
/// The requirements of [`load`]; `at` is also writable.
#[inline(always)]
pub(crate) unsafe fn store<T: Element>(at: *mut T, value: T) {
    // SAFETY: as in `load`.
    unsafe { on_word!(T, at, |word| word.store(cast(value), Ordering::Release)) }
}

/// Replaces a one-word element atomically.
///
/// # Safety
/// The requirements of [`store`].
#[inline(always)]
pub(crate) unsafe fn swap<T: Element>(at: *mut T, value: T) -> T {
    // SAFETY: as in `store`.
    unsafe { on_word!(T, at, |word| cast(word.swap(cast(value), Ordering::AcqRel))) }
}

/// Replaces a one-word element atomically, if its bytes equal `current`'s.
///
/// # Safety
/// The requirements of [`store`].
#[inline(always)]
pub(crate) unsafe fn compare_exchange<T: Element>(at: *mut T, current: T, new: T) -> Result<T, T> {
    // SAFETY: as in `store`.
    unsafe {
        on_word!(T, at, |word| {
            match word.compare_exchange(cast(current), cast(new), Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => Ok(cast(old)),
                Err(old) => Err(cast(old)),
            }
        })
    }
}

/// Selects the integer as whose words a type of this size and alignment is copied; bytes for all other types.
macro_rules! by_aligned_words {
    ($T:ty, $words:ident, $bytes:expr) => {
        match align_of::<$T>() {
            8.. if size_of::<$T>() <= 256 => $words!(AtomicU64, u64),
            4 if size_of::<$T>() <= 128 => $words!(AtomicU32, u32),
            _ => $bytes,
        }
    };
}

/// Copies an element of any size out, word by word if its alignment allows it. If other threads write
/// meanwhile, the result may be a mixture.
///
/// # Safety
/// `at` is readable, aligned for `T`, and only accessed atomically meanwhile.
#[inline(always)]
pub(crate) unsafe fn read_racy<T: Element>(at: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: guaranteed by the caller; the copy writes all bytes, and all bit patterns of `T` are valid, so
    // every mixture is a value.
    unsafe {
        copy_racy(at, value.as_mut_ptr());
        value.assume_init()
    }
}

/// Copies an element as [`read_racy`] to memory of the caller.
///
/// # Safety
/// The requirements of [`read_racy`]; `to` is writable, aligned for `T`, and no other code accesses it.
#[inline(always)]
pub(crate) unsafe fn copy_racy<T: Element>(at: *const T, to: *mut T) {
    macro_rules! words {
        ($Atomic:ty, $word:ty) => {
            for i in 0..size_of::<T>() / size_of::<$word>() {
                // SAFETY: the caller guarantees both sides; `i` words are inside of them, and aligned.
                unsafe {
                    to.cast::<$word>().add(i).write((*at.cast::<$Atomic>().add(i)).load(Ordering::Relaxed));
                }
            }
        };
    }
    // SAFETY: as above. In assembly: wide moves, which behave like atomic loads of aligned words.
    let by_bytes = || unsafe { racy::copy(at.cast(), to.cast(), size_of::<T>()) };
    if racy::IN_ASSEMBLY { by_bytes() } else { by_aligned_words!(T, words, by_bytes()) }
}

/// Copies an element of any size in. A thread in [`read_racy`] detects the race by a version, which the
/// caller changes before and after.
///
/// # Safety
/// The requirements of [`read_racy`]; `at` is also writable.
#[inline(always)]
pub(crate) unsafe fn write_racy<T: Element>(at: *mut T, value: &T) {
    fence(Ordering::Release);
    let from = std::ptr::from_ref(value);
    macro_rules! words {
        ($Atomic:ty, $word:ty) => {
            for i in 0..size_of::<T>() / size_of::<$word>() {
                // SAFETY: the caller guarantees the target; `i` words are inside of both sides, and
                // aligned. The source is read plainly: atomic accesses through a shared reference to plain
                // data are not allowed.
                unsafe {
                    (*at.cast::<$Atomic>().add(i)).store(*from.cast::<$word>().add(i), Ordering::Relaxed);
                }
            }
        };
    }
    // SAFETY: as above.
    by_aligned_words!(T, words, unsafe { racy::write(at.cast(), bytemuck::bytes_of(value)) });
}

/// Returns a slice of numbers as atomics, so that several threads can write at once.
pub(crate) fn as_atomics(numbers: &mut [u64]) -> &[AtomicU64] {
    const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
    // SAFETY: atomic numbers have the same layout, and the borrow is exclusive.
    unsafe { &*(std::ptr::from_mut(numbers) as *const [AtomicU64]) }
}

/// Checks the size of a field type at compile time.
const fn assert_searchable(bytes: usize) {
    assert!(bytes > 0, "a field must have at least one byte");
    assert!(bytes <= Search::VALUE_MAX_BYTES, "a field must have at most 4096 bytes");
}

/// A field of an element type. The macro [`field!`](crate::field) creates it from the field's name, and
/// checks the types.
///
/// The methods of a field create [expressions](crate::expr). A field has 1 to 4096 bytes, because devices can
/// search for values of these lengths only.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<i32>::new(10)?;
/// array.set(4, -3)?;
/// let value = Field::<i32, i32>::whole();
/// let conditions = [value.eq(0), value.ne(-3), value.lt(1) & value.ge(0), value.gt(-1) & value.le(9)];
/// for condition in conditions {
///     assert_eq!(array.count_where(.., condition)?, 9);
/// }
/// assert_eq!(array.sum(.., value.abs().max(1).min(2))?, 9 * 1 + 2);
/// assert_eq!(array.max(.., value.only_where(value.ne(0)))?, Some(-3));
/// // The longest field.
/// assert_eq!(Field::<[u8; 4096], _>::whole().offset(), 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Other lengths do not compile:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// let too_long = vmarray::Field::<[u8; 8192], _>::whole();
/// ```
///
/// The [methods](Self::eq) `eq`, `lt` and others compare fields, and return conditions on elements. The
/// operators `==` and `<` would return a `bool` at once, so they do not compile:
///
/// ```compile_fail,E0277
/// use vmarray::prelude::*;
/// let [a, b] = [0, 1].map(|_| vmarray::Field::<u32, u32>::whole());
/// let is_equal = a == b;
/// ```
///
/// ```compile_fail,E0277
/// use vmarray::prelude::*;
/// let is_less = vmarray::Field::<u32, u32>::whole() < 7;
/// ```
///
#[doc = include_str!("../ops/expr/functions.md")]
#[derive(Clone, Copy, Debug)]
pub struct Field<T, F> {
    offset: usize,
    marker: PhantomData<fn(&T) -> F>,
}

impl<T: Element> Field<T, T> {
    /// Returns the whole element as a field, for arrays of plain numbers.
    #[must_use]
    pub const fn whole() -> Self {
        const { assert_searchable(size_of::<T>()) };
        Self { offset: 0, marker: PhantomData }
    }
}

impl<T, F> Field<T, F> {
    /// Returns the part of the field that begins at `offset` bytes from its start and must be inside of it.
    pub(crate) const fn part<P>(self, offset: usize) -> Field<T, P> {
        Field { offset: self.offset + offset, marker: PhantomData }
    }
}

impl<T: Element, F: NoUninit> Field<T, F> {
    /// Creates a field from its offset. Use the macro [`field!`](crate::field) instead.
    #[doc(hidden)]
    pub const fn at(offset: usize, _: fn(&T) -> *const F) -> Self {
        const { assert_searchable(size_of::<F>()) };
        assert!(offset + size_of::<F>() <= size_of::<T>(), "a field must end within its element");
        Self { offset, marker: PhantomData }
    }

    /// Returns the offset of the field from the start of the element, in bytes.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }
}

/// Names a field of an element type: `field!(Type, name)`, also `field!(Type, outer.inner)`, for example for
/// [`find`](crate::views::View::find). A name that does not exist does not compile. Fields of packed types
/// are allowed.
///
/// ```
/// use vmarray::prelude::*;
/// use bytemuck::{Pod, Zeroable};
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Particle { position: [f32; 3], kind: u32 }
///
/// let array = VirtualArray::<Particle>::new(1000)?;
/// array.set(77, Particle { position: [0.0; 3], kind: 9 })?;
/// assert_eq!(array.find(field!(Particle, kind), &9)?, [77]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[macro_export]
macro_rules! field {
    ($T:ty, $($name:tt).+) => {
        $crate::Field::at(::core::mem::offset_of!($T, $($name).+), |element: &$T| &raw const element.$($name).+)
    };
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    fn there_and_back<T: Element + PartialEq + std::fmt::Debug>(value: T) {
        let mut place = [T::zeroed(); 3];
        let at = &raw mut place[1];
        // SAFETY: `at` points into a local array, which no other thread can access.
        let back = unsafe {
            write_racy(at, &value);
            read_racy(at)
        };
        assert_eq!(back, value);
        assert_eq!(place, [T::zeroed(), value, T::zeroed()]);
    }

    #[test]
    fn elements_of_all_sizes_and_alignments_are_copied_whole() {
        there_and_back(0x1234_u16);
        there_and_back([1_u8, 2, 3]);
        there_and_back([1_u32, 2, 3]);
        there_and_back([1_u64, 2, 3]);
        there_and_back([1_u128, u128::MAX]);
        // These elements are too long for copies word by word.
        there_and_back(std::array::from_fn::<u32, 64, _>(|i| i as u32));
        there_and_back(std::array::from_fn::<u64, 64, _>(|i| i as u64));
        there_and_back(std::array::from_fn::<u8, 1024, _>(|i| i as u8));
    }

    /// The test needs an interpreter or a sanitizer to find errors.
    #[test]
    fn elements_may_be_read_while_they_are_written() {
        fn race<T: Element>(value: T) {
            struct Place<T>(UnsafeCell<T>);
            // SAFETY: the threads below access it by the functions of this module only.
            unsafe impl<T> Sync for Place<T> {}
            // Test values at places with other alignments.
            let (place, values) = (Place(UnsafeCell::new(T::zeroed())), [value; 3]);
            let (place, values) = (&place, &values);
            std::thread::scope(|threads| {
                for value in values {
                    // SAFETY: the place outlives the threads.
                    threads.spawn(move || unsafe { write_racy(place.0.get(), value) });
                    // SAFETY: as above.
                    threads.spawn(move || unsafe { read_racy(place.0.get()) });
                }
            });
        }
        race([1_u8; 3]);
        race([1_u8; 17]);
        race([1_u16; 9]);
        race([1_u32; 3]);
        race([1_u64; 3]);
    }

    #[test]
    fn several_threads_write_to_numbers() {
        let mut numbers = vec![0; 100];
        let atomics = as_atomics(&mut numbers);
        crate::base::scoped_threads::each(3, 100, |at| {
            atomics[at].fetch_add(at as u64, Ordering::Relaxed);
        });
        assert!(numbers.into_iter().eq(0..100));
    }

    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, packed)]
    struct Packed {
        tag: u8,
        key: u64,
        inner: Inner,
    }

    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, packed(2))]
    struct Inner {
        half: u16,
        word: u32,
    }

    #[test]
    fn fields_of_packed_types_are_named() {
        const KEY: Field<Packed, u64> = crate::field!(Packed, key);
        assert_eq!(KEY.offset(), 1);
        assert_eq!(crate::field!(Packed, tag).offset(), 0);
        assert_eq!(crate::field!(Packed, inner.half).offset(), 9);
        let word: Field<Packed, u32> = crate::field!(Packed, inner.word);
        assert_eq!(word.offset(), 11);
    }
}
