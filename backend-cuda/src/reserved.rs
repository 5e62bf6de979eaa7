//! Memory of the card behind addresses that were set aside for more: the driver's management of virtual
//! memory.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::{AccessDescription, AllocationProperties, Code, Outcome, Table, check};

/// Addresses, the first of which have memory; given back on drop, at which nothing may be in flight there.
#[derive(Debug)]
pub(crate) struct Reserved {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    /// Memory comes in multiples of this.
    granularity: usize,
    /// All cards that reach the memory, this one included. Peer access between contexts does not concern it.
    cards: Vec<AccessDescription>,
    pieces: Mutex<Pieces>,
}

/// The memory so far, in the order of addresses.
#[derive(Debug, Default)]
struct Pieces {
    /// Each with how many bytes it has, in the order of addresses.
    handles: Vec<(u64, usize)>,
    bytes: usize,
}

/// The functions of the driver, which it has all of or none.
struct Calls {
    reserve: unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> u32,
    free: unsafe extern "C" fn(u64, usize) -> u32,
    create: unsafe extern "C" fn(*mut u64, usize, *const AllocationProperties, u64) -> u32,
    release: unsafe extern "C" fn(u64) -> u32,
    map: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> u32,
    unmap: unsafe extern "C" fn(u64, usize) -> u32,
    set_access: unsafe extern "C" fn(u64, usize, *const AccessDescription, usize) -> u32,
    granularity: unsafe extern "C" fn(*mut usize, *const AllocationProperties, u32) -> u32,
}

impl Calls {
    fn of(table: &Table) -> Outcome<Self> {
        let calls = || {
            Some(Self {
                reserve: table.mem_address_reserve?,
                free: table.mem_address_free?,
                create: table.mem_create?,
                release: table.mem_release?,
                map: table.mem_map?,
                unmap: table.mem_unmap?,
                set_access: table.mem_set_access?,
                granularity: table.mem_get_allocation_granularity?,
            })
        };
        calls().ok_or(Code::NOT_SUPPORTED)
    }
}

impl Reserved {
    /// Sets so many addresses aside, without memory. [`NOT_SUPPORTED`](Code::NOT_SUPPORTED) where the driver
    /// or the card cannot.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Outcome<Self> {
        let (table, ordinal) = (&context.driver.table, context.ordinal());
        let calls = Calls::of(table)?;
        let _current = context.enter()?;
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int;
        let mut is_supported = 0;
        // SAFETY: writes one integer.
        check(unsafe { (table.device_get_attribute)(&raw mut is_supported, attribute, ordinal) })?;
        if is_supported == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let (properties, mut granularity) = (AllocationProperties::on(ordinal), 0);
        // The greater one of two, which is that of the card's large pages.
        const RECOMMENDED: u32 = 1;
        // SAFETY: writes one integer; the properties are read.
        check(unsafe { (calls.granularity)(&raw mut granularity, &raw const properties, RECOMMENDED) })?;
        let granularity = granularity.max(1);
        let whole = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(granularity));
        let bytes = whole.ok_or(Code::OUT_OF_MEMORY)?.max(granularity);
        let cards = Self::cards_that_reach(table, ordinal)?;
        let mut address = 0;
        // SAFETY: writes one address.
        check(unsafe { (calls.reserve)(&raw mut address, bytes, 0, 0, 0) })?;
        let (context, pieces) = (Arc::clone(context), Mutex::default());
        Ok(Self { context, address, bytes, granularity, cards, pieces })
    }

    /// The card of a number, and those that reach its memory.
    fn cards_that_reach(table: &Table, ordinal: c_int) -> Outcome<Vec<AccessDescription>> {
        let mut count = 0;
        // SAFETY: writes one integer.
        check(unsafe { (table.device_get_count)(&raw mut count) })?;
        let mut cards = vec![AccessDescription::of(ordinal)];
        for other in (0..count).filter(|other| *other != ordinal) {
            let mut can_access = 0;
            // SAFETY: writes one integer; the ordinals are those of cards.
            check(unsafe { (table.device_can_access_peer)(&raw mut can_access, other, ordinal) })?;
            if can_access != 0 {
                cards.push(AccessDescription::of(other));
            }
        }
        Ok(cards)
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes have memory.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.pieces.lock().bytes as u64
    }

    /// How many bytes more need memory, for so many in all.
    pub(crate) fn missing_bytes(&self, bytes: u64) -> u64 {
        let whole = bytes.checked_next_multiple_of(self.granularity as u64).unwrap_or(u64::MAX);
        whole.saturating_sub(self.mapped_bytes())
    }

    /// Puts memory behind the first so many bytes. All of it, or nothing more than there was.
    pub(crate) fn extend(&self, bytes: u64) -> Outcome {
        let calls = Calls::of(&self.context.driver.table)?;
        let mut pieces = self.pieces.lock();
        let whole = usize::try_from(bytes).ok().and_then(|b| b.checked_next_multiple_of(self.granularity));
        let whole = whole.filter(|whole| *whole <= self.bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let Some(more) = whole.checked_sub(pieces.bytes).filter(|more| *more > 0) else { return Ok(()) };
        let _current = self.context.enter()?;
        let (properties, mut handle) = (AllocationProperties::on(self.context.ordinal()), 0);
        self.context.find_memory(|| {
            // SAFETY: writes one handle; the properties are read.
            check(unsafe { (calls.create)(&raw mut handle, more, &raw const properties, 0) })
        })?;
        let address = self.address + pieces.bytes as u64;
        // SAFETY: the addresses were set aside, and have no memory yet; the handle is as long.
        let mut mapped = check(unsafe { (calls.map)(address, more, 0, handle, 0) });
        if mapped.is_ok() {
            let cards = self.cards.as_slice();
            // SAFETY: the range was just mapped; as many descriptions are read as there are.
            mapped = check(unsafe { (calls.set_access)(address, more, cards.as_ptr(), cards.len()) });
            if mapped.is_err() {
                // SAFETY: mapped above, and nobody knows of it.
                let _ = check(unsafe { (calls.unmap)(address, more) });
            }
        }
        if let Err(code) = mapped {
            // SAFETY: created above, and not mapped any more.
            let _ = check(unsafe { (calls.release)(handle) });
            return Err(code);
        }
        pieces.handles.push((handle, more));
        pieces.bytes = whole;
        Ok(())
    }

    fn give_back(&self) -> Outcome {
        let calls = Calls::of(&self.context.driver.table)?;
        let _current = self.context.enter()?;
        let mut pieces = self.pieces.lock();
        let mut outcome = Ok(());
        // Each as it was mapped, the last one first, also after one that fails.
        let mut address = self.address + pieces.bytes as u64;
        for (handle, bytes) in pieces.handles.drain(..).rev() {
            address -= bytes as u64;
            // SAFETY: mapped here, in one call, and nothing is in flight there.
            outcome = outcome.and(check(unsafe { (calls.unmap)(address, bytes) }));
            // SAFETY: created here; memory that is still mapped stays until it is not.
            outcome = outcome.and(check(unsafe { (calls.release)(handle) }));
        }
        pieces.bytes = 0;
        // SAFETY: set aside here, as so many; the driver refuses while there is memory.
        outcome.and(check(unsafe { (calls.free)(self.address, self.bytes) }))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Err(code) = self.give_back() {
            tracing::debug!(?code, bytes = self.bytes, "memory was not given back: the device is lost");
        }
    }
}
