//! The trait that a backend implements.

use std::ptr::NonNull;

use crate::HostId;

/// What a queue has done of the work up to a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// Not all of it yet.
    Pending,
    /// All of it.
    Done,
}

/// What kind of host memory is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HostMemory {
    /// Page-locked, or [`PinRefused`](crate::ErrorKind::PinRefused).
    Pinned,
    /// Ordinary memory. Copies may be slower and may need a copy in between.
    Pageable,
}

/// Host memory that a device gave.
///
/// The memory is aligned to at least 4096 bytes and zeroed, and stays where it is until
/// [`release_host`](crate::Device::release_host).
#[derive(Debug)]
pub struct HostAllocation {
    /// Its name in copies.
    pub id: HostId,
    /// Its first byte.
    pub address: NonNull<u8>,
    /// Its length.
    pub bytes: usize,
    /// What kind it is.
    pub kind: HostMemory,
}

// SAFETY: an allocation is a name and an address; nothing is reached through it without further unsafe code.
unsafe impl Send for HostAllocation {}
// SAFETY: as above.
unsafe impl Sync for HostAllocation {}

/// How sure the memory of an allocation has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Commit {
    /// As the driver likes it: many hand out memory that they look for at first use.
    Lazy,
    /// Every part has been written to before the call returns, so that it is known to exist, and, where the backend
    /// can tell, to be on the device and not spilled to host memory.
    Proven,
}

/// Writes the definition of [`Device`](crate::Device), so that a crate which gathers several backends in an enum can
/// have `enum_dispatch` read the same definition and generate the dispatching implementation.
///
/// Not for use elsewhere. The facade expands it in a private module; its paths therefore start with `::backend_api`.
#[doc(hidden)]
#[macro_export]
macro_rules! define_device_trait {
    ($(#[$attribute:meta])*) => {
        $(#[$attribute])*
        /// A card, or a stand-in for one.
        ///
        /// The contract is stated in the [crate's documentation](::backend_api); the
        /// conformance suite checks it. Every method can be called from any thread at any time. None
        /// panics on what a caller, a driver or a full card can cause.
        pub trait Device: ::std::fmt::Debug + Send + Sync + 'static {
            /// What is known of the device. Never blocks.
            fn info(&self) -> &::backend_api::DeviceInfo;

            /// How much memory there is now. May ask the driver.
            ///
            /// # Errors
            /// [`Lost`](::backend_api::ErrorKind::Lost), or what the driver says.
            fn memory(&self) -> ::backend_api::Result<::backend_api::MemoryStatus>;

            /// A new in-order queue.
            ///
            /// # Errors
            /// [`Lost`](::backend_api::ErrorKind::Lost), or a refusal by the system or the driver.
            fn create_queue(&self) -> ::backend_api::Result<::backend_api::QueueId>;

            /// Ends a queue. Blocks until its work is done or the device is lost. An unknown queue is ignored.
            ///
            /// Tickets of an ended queue stay askable, but what failed is forgotten: all of them are then reported as
            /// done. Whoever cares for an outcome asks before ending the queue.
            fn release_queue(&self, queue: ::backend_api::QueueId);

            /// Device memory of `bytes` bytes, with unspecified contents. More than the driver gives in one piece
            /// is put together from several pieces behind one [`BufferId`](::backend_api::BufferId).
            ///
            /// # Errors
            /// [`OutOfMemory`](::backend_api::ErrorKind::OutOfMemory) with bytes asked and available,
            /// [`TooLarge`](::backend_api::ErrorKind::TooLarge), [`Lost`](::backend_api::ErrorKind::Lost).
            fn allocate(
                &self,
                bytes: u64,
                commit: ::backend_api::Commit,
            ) -> ::backend_api::Result<::backend_api::BufferId>;

            /// Gives device memory back. Blocks until submitted work that touches it is done or the device is lost.
            /// An unknown buffer is ignored.
            fn release(&self, buffer: ::backend_api::BufferId);

            /// Zeroed host memory that the device copies from and to, usable by all of its queues.
            ///
            /// # Errors
            /// [`PinRefused`](::backend_api::ErrorKind::PinRefused) for pinned memory beyond what the system
            /// allows, [`OutOfMemory`](::backend_api::ErrorKind::OutOfMemory),
            /// [`Lost`](::backend_api::ErrorKind::Lost).
            fn allocate_host(
                &self,
                bytes: usize,
                kind: ::backend_api::HostMemory,
            ) -> ::backend_api::Result<::backend_api::HostAllocation>;

            /// Makes memory of the program known to the device, as pageable memory or, if `kind` asks for it, locked
            /// in place.
            ///
            /// # Errors
            /// [`PinRefused`](::backend_api::ErrorKind::PinRefused),
            /// [`Unsupported`](::backend_api::ErrorKind::Unsupported), [`Lost`](::backend_api::ErrorKind::Lost).
            ///
            /// # Safety
            /// Until [`release_host`](Self::release_host) has returned, the `bytes` bytes from `address` on must stay
            /// allocated, readable, and, if any download or kernel names them as a target, writable.
            unsafe fn import_host(
                &self,
                address: ::std::ptr::NonNull<u8>,
                bytes: usize,
                kind: ::backend_api::HostMemory,
            ) -> ::backend_api::Result<::backend_api::HostId>;

            /// Gives host memory back, or forgets imported memory. Blocks until submitted work that touches it is
            /// done or the device is lost. An unknown piece is ignored.
            fn release_host(&self, host: ::backend_api::HostId);

            /// Starts copies; returns before they are done.
            ///
            /// The copies of one call may run in any order and at once; they must not write what another copy of the
            /// same call reads or writes. An empty slice gives a ticket for the work before it.
            ///
            /// # Errors
            /// [`InvalidArgument`](::backend_api::ErrorKind::InvalidArgument) for a range outside of its memory,
            /// [`UnknownHandle`](::backend_api::ErrorKind::UnknownHandle),
            /// [`Lost`](::backend_api::ErrorKind::Lost), or what the driver says. After an error no part of the call
            /// is or will be in flight; after the first two, nothing was changed.
            fn submit(
                &self,
                queue: ::backend_api::QueueId,
                transfers: &[::backend_api::Transfer],
            ) -> ::backend_api::Result<::backend_api::Ticket>;

            /// Starts to write a pattern; returns before it is done.
            ///
            /// # Errors
            /// As [`submit`](Self::submit); an empty or overlong pattern is an invalid argument.
            fn fill(
                &self,
                queue: ::backend_api::QueueId,
                fill: &::backend_api::Fill<'_>,
            ) -> ::backend_api::Result<::backend_api::Ticket>;

            /// Starts a search; returns before it is done.
            ///
            /// # Errors
            /// As [`submit`](Self::submit); an empty or overlong value, or a field outside of its element, is an
            /// invalid argument.
            fn search(
                &self,
                queue: ::backend_api::QueueId,
                search: &::backend_api::Search<'_>,
            ) -> ::backend_api::Result<::backend_api::Ticket>;

            /// Starts to collect elements by index; returns before it is done.
            ///
            /// # Errors
            /// As [`submit`](Self::submit). An index outside of the elements makes the ticket fail with
            /// [`KernelFailed`](::backend_api::ErrorKind::KernelFailed); no memory outside of them is read.
            fn gather(
                &self,
                queue: ::backend_api::QueueId,
                gather: &::backend_api::Gather,
            ) -> ::backend_api::Result<::backend_api::Ticket>;

            /// Starts to distribute elements by index; returns before it is done.
            ///
            /// # Errors
            /// As [`gather`](Self::gather); no memory outside of the elements is written.
            fn scatter(
                &self,
                queue: ::backend_api::QueueId,
                scatter: &::backend_api::Scatter,
            ) -> ::backend_api::Result<::backend_api::Ticket>;

            /// Starts to evaluate a program for each of some elements; returns before it is done. May take long the
            /// first time that a program is met, where it has to be translated.
            ///
            /// # Errors
            /// As [`submit`](Self::submit); whatever [`Compute`](::backend_api::Compute) forbids is an invalid
            /// argument; [`Unsupported`](::backend_api::ErrorKind::Unsupported) for types that the device does not
            /// know, such as `f64` on some.
            fn compute(
                &self,
                queue: ::backend_api::QueueId,
                compute: &::backend_api::Compute<'_>,
            ) -> ::backend_api::Result<::backend_api::Ticket>;

            /// Whether the work up to a ticket is done. Never blocks.
            ///
            /// # Errors
            /// The error of the very call that gave the ticket, however often it is asked for and by however many, as
            /// long as its queue is not [ended](Self::release_queue);
            /// [`Lost`](::backend_api::ErrorKind::Lost) for all work that was pending when the device was lost;
            /// [`UnknownHandle`](::backend_api::ErrorKind::UnknownHandle) for a ticket that was never given.
            fn poll(
                &self,
                ticket: ::backend_api::Ticket,
            ) -> ::backend_api::Result<::backend_api::Progress>;

            /// Blocks until the work up to a ticket is done: spins briefly, then yields, then sleeps.
            ///
            /// # Errors
            /// As [`poll`](Self::poll).
            fn wait(&self, ticket: ::backend_api::Ticket) -> ::backend_api::Result<()>;

            /// Wakes `waker` once, when a ticket is done or has failed; at once, before this returns, if that is so
            /// already or the ticket was never given. Never blocks. A waker may call the device: it runs while no lock
            /// is held.
            fn wake(&self, ticket: ::backend_api::Ticket, waker: ::std::task::Waker);

            /// Work submitted to `queue` from now on starts after `ticket`, of whichever queue of this device, is
            /// done or has failed. Does not block the caller.
            ///
            /// # Errors
            /// [`UnknownHandle`](::backend_api::ErrorKind::UnknownHandle),
            /// [`Lost`](::backend_api::ErrorKind::Lost), or what the driver says.
            fn order_after(
                &self,
                queue: ::backend_api::QueueId,
                ticket: ::backend_api::Ticket,
            ) -> ::backend_api::Result<()>;
        }
    };
}

define_device_trait!();
