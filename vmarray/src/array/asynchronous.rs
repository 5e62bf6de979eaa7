//! The array for tasks: futures that never block the thread that polls them.
//!
//! They need no particular executor: all they use is [`std::future`], and the wakers of devices. Each is a
//! type of its own and can be named.

/// Has futures printed with what they are for, which a field says.
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

/// What a future is to be woken for by a device, so that it does not ask for that again whenever it is polled
/// in vain.
#[derive(Debug, Default)]
pub(crate) struct Asked(Option<(Ticket, Waker)>);

impl Asked {
    /// Has `waker` woken once a ticket is done, which is pending.
    pub(crate) fn wake(&mut self, device: &dyn Device, ticket: Ticket, waker: &Waker) {
        if !self.0.as_ref().is_some_and(|(known, by)| *known == ticket && by.will_wake(waker)) {
            self.0 = Some((ticket, waker.clone()));
            device.wake(ticket, OutsideLocks::waker(waker));
        }
    }
}

pub(crate) use acquire::{Acquire, Got, Refused, Want};
pub use element::{GetAsync, SetAsync};
pub(crate) use element::{read_of, value_of};
pub use guard::{PageAsync, PageMutAsync};
pub use range::{FlushAsync, PrefetchAsync, ReadAsync};
