//! Futures of an array's `…_async` methods. A poll never blocks its thread.
//!
//! The futures work with any executor, because they use only [`std::future`] and the wakers of devices. Each
//! has its own named type.

/// Implements `Debug` for futures: shows one field, which says where the future is.
macro_rules! debug {
    ($($Future:ident: $($field:ident).+),*) => { $(
        impl<T: Element, D: Device> std::fmt::Debug for $Future<'_, T, D> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Future)).field("of", &self.$($field).+).finish_non_exhaustive()
            }
        }
    )* };
}

#[forbid(unsafe_code)]
mod acquire;
#[forbid(unsafe_code)]
mod element;
#[forbid(unsafe_code)]
mod guard;
#[forbid(unsafe_code)]
mod range;

use std::task::Waker;

use backend_api::{Device, Ticket};

use crate::engine::page::OutsideLocks;

/// The waker and ticket that a future has registered with a device, so that later polls do not repeat this.
#[derive(Debug, Default)]
pub(crate) struct Asked(Option<(Ticket, Waker)>);

impl Asked {
    /// Makes the device wake `waker` when a pending ticket completes.
    pub(crate) fn wake(&mut self, device: &dyn Device, ticket: Ticket, waker: &Waker) {
        if !self.0.as_ref().is_some_and(|(known, by)| *known == ticket && by.will_wake(waker)) {
            self.0 = Some((ticket, waker.clone()));
            device.wake(ticket, OutsideLocks::waker(waker));
        }
    }
}

pub(crate) use acquire::{Acquire, AcquireRefusal, Got, Want};
pub use element::{GetAsync, SetAsync};
pub(crate) use element::{read_of, value_of};
pub use guard::{PageAsync, PageMutAsync};
pub use range::{FlushAsync, PrefetchAsync, ReadAsync};
