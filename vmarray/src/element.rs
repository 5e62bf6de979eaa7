//! What can be an element, and how its bytes are reached while others may touch them.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, transmute_copy};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use backend_api::racy;
use bytemuck::{NoUninit, Pod};

/// What can be an element: plain data without padding, any bit pattern of which is valid, and which any thread may use.
///
/// Derive [`bytemuck::Pod`] and [`bytemuck::Zeroable`]; the derive checks the rest. Types of no bytes do not compile:
///
/// ```compile_fail
/// let array = vmarray::VirtualArray::<()>::new(10);
/// ```
///
/// Nor do types with padding, pointers or invalid bit patterns:
///
/// ```compile_fail
/// let array = vmarray::VirtualArray::<Option<u32>>::new(10);
/// ```
pub trait Element: Pod + Send + Sync {}

impl<T: Pod + Send + Sync> Element for T {}

/// Checked at compile time for every element type that is used.
pub(crate) struct Layout<T>(PhantomData<T>);

impl<T: Element> Layout<T> {
    pub(crate) const BYTES: usize = {
        assert!(size_of::<T>() > 0, "elements must have at least one byte");
        assert!(align_of::<T>() <= 4096, "elements cannot be aligned to more than a page of the system");
        size_of::<T>()
    };
    /// Whether an element is moved by a single machine instruction, so that it cannot be torn.
    pub(crate) const SINGLE_WORD: bool = matches!(Self::BYTES, 1 | 2 | 4 | 8);
}

/// Calls a macro with the atomic type and integer of a single-word element.
macro_rules! by_word {
    ($T:ty, $use:ident) => {
        match size_of::<$T>() {
            1 => $use!(AtomicU8, u8),
            2 => $use!(AtomicU16, u16),
            4 => $use!(AtomicU32, u32),
            8 => $use!(AtomicU64, u64),
            _ => unreachable!("not a single word"),
        }
    };
}

/// Loads a single-word element, with acquire semantics.
///
/// # Safety
/// `T` is a single word; `at` is readable, aligned to the size of `T`, and only touched atomically meanwhile.
#[inline(always)]
pub(crate) unsafe fn load<T: Element>(at: *const T) -> T {
    macro_rules! load {
        ($Atomic:ty, $word:ty) => {{
            // SAFETY: the caller vouches for size, alignment and access; all bit patterns of `T` are valid.
            unsafe {
                let word: $word = (*at.cast::<$Atomic>()).load(Ordering::Acquire);
                transmute_copy::<$word, T>(&word)
            }
        }};
    }
    by_word!(T, load)
}

/// Stores a single-word element, with release semantics.
///
/// # Safety
/// As [`load`], and writable.
#[inline(always)]
pub(crate) unsafe fn store<T: Element>(at: *mut T, value: T) {
    macro_rules! store {
        ($Atomic:ty, $word:ty) => {{
            // SAFETY: as in `load`; `T` has no padding.
            unsafe { (*at.cast::<$Atomic>()).store(transmute_copy::<T, $word>(&value), Ordering::Release) }
        }};
    }
    by_word!(T, store);
}

/// Replaces a single-word element.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub(crate) unsafe fn swap<T: Element>(at: *mut T, value: T) -> T {
    macro_rules! swap {
        ($Atomic:ty, $word:ty) => {{
            // SAFETY: as in `store`.
            unsafe {
                let old = (*at.cast::<$Atomic>()).swap(transmute_copy::<T, $word>(&value), Ordering::AcqRel);
                transmute_copy::<$word, T>(&old)
            }
        }};
    }
    by_word!(T, swap)
}

/// Replaces a single-word element if its bytes equal those of `current`.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub(crate) unsafe fn compare_exchange<T: Element>(at: *mut T, current: T, new: T) -> Result<T, T> {
    macro_rules! compare_exchange {
        ($Atomic:ty, $word:ty) => {{
            // SAFETY: as in `store`.
            unsafe {
                let (current, new) = (transmute_copy::<T, $word>(&current), transmute_copy::<T, $word>(&new));
                let result = (*at.cast::<$Atomic>()).compare_exchange(
                    current,
                    new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                match result {
                    Ok(old) => Ok(transmute_copy::<$word, T>(&old)),
                    Err(old) => Err(transmute_copy::<$word, T>(&old)),
                }
            }
        }};
    }
    by_word!(T, compare_exchange)
}

/// Copies an element of any size out, word by word if it can be aligned. What it holds may be a mixture if others
/// write.
///
/// # Safety
/// `at` is readable and only touched atomically meanwhile.
#[inline(always)]
pub(crate) unsafe fn read_racy<T: Element>(at: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: source vouched for by the caller; all bit patterns of `T` are valid, so every mixture is a value.
    unsafe {
        copy_small(at.cast(), value.as_mut_ptr().cast(), size_of::<T>(), align_of::<T>());
        value.assume_init()
    }
}

/// Copies an element of any size in, so that a racing [`read_racy`] finds out by the page's version.
///
/// # Safety
/// As [`read_racy`], and writable.
#[inline(always)]
pub(crate) unsafe fn write_racy<T: Element>(at: *mut T, value: &T) {
    fence(Ordering::Release);
    // SAFETY: vouched for by the caller.
    unsafe { copy_small(std::ptr::from_ref(value).cast(), at.cast(), size_of::<T>(), align_of::<T>()) }
}

/// # Safety
/// As [`racy::copy`]; both sides are aligned to `align`.
#[inline(always)]
unsafe fn copy_small(from: *const u8, to: *mut u8, bytes: usize, align: usize) {
    macro_rules! words {
        ($Atomic:ty) => {
            for i in 0..bytes / size_of::<$Atomic>() {
                // SAFETY: `i` words are inside, and aligned since `align` is a multiple of a word's.
                unsafe {
                    let word = (*from.cast::<$Atomic>().add(i)).load(Ordering::Relaxed);
                    (*to.cast::<$Atomic>().add(i)).store(word, Ordering::Relaxed);
                }
            }
        };
    }
    match align {
        8.. if bytes <= 256 => words!(AtomicU64),
        4 if bytes <= 128 => words!(AtomicU32),
        // SAFETY: passed on.
        _ => unsafe { racy::copy(from, to, bytes) },
    }
}

/// A field of an element, named in a type-checked way by [`field!`](crate::field).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<T, F> {
    offset: usize,
    marker: PhantomData<fn(&T) -> F>,
}

impl<T: Element> Field<T, T> {
    /// The whole element as its own field, for arrays of plain numbers.
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let array = VirtualArray::<u32>::new(100)?;
    /// array.set(7, 5)?;
    /// assert_eq!(array.find(Field::whole(), &5)?, [7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub const fn whole() -> Self {
        Self { offset: 0, marker: PhantomData }
    }
}

impl<T: Element, F: NoUninit> Field<T, F> {
    /// Used by [`field!`](crate::field), which finds offset and type.
    #[doc(hidden)]
    pub const fn at(offset: usize, _: fn(&T) -> &F) -> Self {
        assert!(size_of::<F>() > 0, "a field must have at least one byte");
        assert!(offset + size_of::<F>() <= size_of::<T>(), "a field must lie inside of its element");
        Self { offset, marker: PhantomData }
    }

    /// Bytes from the start of the element.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }
}

/// Names a field of an element type, for [`find`](crate::VirtualArray::find): `field!(Type, name)`, also
/// `field!(Type, outer.inner)`. A name that does not exist does not compile.
///
/// ```
/// use bytemuck::{Pod, Zeroable};
/// use vmarray::{VirtualArray, field};
///
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
        $crate::Field::at(::core::mem::offset_of!($T, $($name).+), |element: &$T| &element.$($name).+)
    };
}
