//! Atomics and locks for the page protocol: from `std` and `parking_lot`, or from loom under `cfg(loom)`.

#[cfg(loom)]
pub use locks::{Condvar, Mutex, RwLock};
#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(loom))]
pub use std::sync::Arc;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use locks::MutexGuard;

/// Loom's locks with the signatures of `parking_lot`.
#[cfg(loom)]
mod locks {
    use std::ops::{Deref, DerefMut};

    use loom::sync as inner;

    #[derive(Debug, Default)]
    pub struct Mutex<T>(inner::Mutex<T>);

    /// A guard of a [`Mutex`]. It is empty only while its thread waits for a [`Condvar`].
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<inner::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(inner::Mutex::new(value))
        }

        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }

        #[inline]
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    #[derive(Debug, Default)]
    pub struct Condvar(inner::Condvar);

    impl Condvar {
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let locked = guard.0.take().unwrap();
            guard.0 = Some(self.0.wait(locked).unwrap());
        }

        #[inline]
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Debug, Default)]
    pub struct RwLock<T>(inner::RwLock<T>);

    impl<T> RwLock<T> {
        #[inline]
        pub fn read(&self) -> inner::RwLockReadGuard<'_, T> {
            self.0.read().unwrap()
        }

        #[inline]
        pub fn write(&self) -> inner::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }
}
