//! The lock under which a thread submits work to a device's queues. The thread calls no wakers of tasks
//! until it releases the lock.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};
use vmarray_support::contended;

use crate::engine::page::LockScope;

/// A mutex whose holder defers wake-ups of a device until it releases the lock.
#[derive(Debug, Default)]
pub(super) struct OrderLock<T>(Mutex<T>);

/// Releases the lock, and then runs deferred wakers.
#[derive(Debug)]
pub(super) struct OrderGuard<'a, T> {
    // Declared first, so that Rust releases the lock before the drop of `_scope`, which runs wakers.
    guard: MutexGuard<'a, T>,
    _scope: LockScope,
}

impl<T> OrderLock<T> {
    pub(super) fn lock(&self) -> OrderGuard<'_, T> {
        let scope = LockScope::begin();
        OrderGuard { guard: contended::lock(&self.0), _scope: scope }
    }
}

impl<T> Deref for OrderGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
