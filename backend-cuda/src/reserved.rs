//! Growable device memory: reserves a long address range, and maps GPU memory to its beginning as it grows.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use parking_lot::Mutex;

use crate::context::CudaContext;
use crate::driver::{AccessDescription, AllocationProperties, DriverResult, StatusCode, Table, check};

/// An address range whose first part is mapped to GPU memory. The drop releases both, when no work uses them.
#[derive(Debug)]
pub(crate) struct ReservedRange {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
    /// The granularity of mapped memory in bytes.
    granularity: usize,
    /// All GPUs with access to the memory, including this one: peer access does not cover mapped memory.
    cards: Vec<AccessDescription>,
    pieces: Mutex<Pieces>,
}

/// The mapped memory, in the order of addresses.
#[derive(Debug, Default)]
struct Pieces {
    /// Handles of the driver's allocations, each with its number of bytes, in the order of addresses.
    handles: Vec<(u64, usize)>,
    bytes: usize,
}

/// The driver's functions for virtual memory; a driver has all of them or none.
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
    fn of(table: &Table) -> DriverResult<Self> {
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
        calls().ok_or(StatusCode::NOT_SUPPORTED)
    }
}

impl ReservedRange {
    /// Reserves `bytes` bytes of addresses, without memory. Returns
    /// [`NOT_SUPPORTED`](StatusCode::NOT_SUPPORTED) if the driver or the GPU cannot do so.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: u64) -> DriverResult<Self> {
        let (table, ordinal) = (&context.driver.table, context.ordinal());
        let calls = Calls::of(table)?;
        let _current = context.enter()?;
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int;
        let mut is_supported = 0;
        // SAFETY: writes one integer.
        check(unsafe { (table.device_get_attribute)(&raw mut is_supported, attribute, ordinal) })?;
        if is_supported == 0 {
            return Err(StatusCode::NOT_SUPPORTED);
        }
        let (properties, mut granularity) = (AllocationProperties::on(ordinal), 0);
        // Use the recommended granularity, the length of the GPU's large pages, instead of the minimum.
        const RECOMMENDED: u32 = 1;
        // SAFETY: writes one integer; the properties are read.
        check(unsafe { (calls.granularity)(&raw mut granularity, &raw const properties, RECOMMENDED) })?;
        let granularity = granularity.max(1);
        let whole = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(granularity));
        let bytes = whole.ok_or(StatusCode::OUT_OF_MEMORY)?.max(granularity);
        let cards = Self::cards_that_reach(table, ordinal)?;
        let mut address = 0;
        // SAFETY: writes one address.
        check(unsafe { (calls.reserve)(&raw mut address, bytes, 0, 0, 0) })?;
        let (context, pieces) = (Arc::clone(context), Mutex::default());
        Ok(Self { context, address, bytes, granularity, cards, pieces })
    }

    /// Returns the GPU of this number, and the GPUs with peer access to its memory.
    fn cards_that_reach(table: &Table, ordinal: c_int) -> DriverResult<Vec<AccessDescription>> {
        let mut count = 0;
        // SAFETY: writes one integer.
        check(unsafe { (table.device_get_count)(&raw mut count) })?;
        let mut cards = vec![AccessDescription::of(ordinal)];
        for other in (0..count).filter(|other| *other != ordinal) {
            let mut can_access = 0;
            // SAFETY: writes one integer; the ordinals are valid.
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

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.pieces.lock().bytes as u64
    }

    /// Returns the additional bytes that a length of `bytes` needs.
    pub(crate) fn missing_bytes(&self, bytes: u64) -> u64 {
        let whole = bytes.checked_next_multiple_of(self.granularity as u64).unwrap_or(u64::MAX);
        whole.saturating_sub(self.mapped_bytes())
    }

    /// Maps memory to the first `bytes` bytes. After an error the mapped memory is the same as before.
    pub(crate) fn extend(&self, bytes: u64) -> DriverResult {
        let calls = Calls::of(&self.context.driver.table)?;
        let mut pieces = self.pieces.lock();
        let whole = usize::try_from(bytes).ok().and_then(|b| b.checked_next_multiple_of(self.granularity));
        let whole = whole.filter(|whole| *whole <= self.bytes).ok_or(StatusCode::OUT_OF_MEMORY)?;
        let Some(more) = whole.checked_sub(pieces.bytes).filter(|more| *more > 0) else { return Ok(()) };
        let _current = self.context.enter()?;
        let (properties, mut handle) = (AllocationProperties::on(self.context.ordinal()), 0);
        self.context.find_memory(|| {
            // SAFETY: writes one handle; the properties are read.
            check(unsafe { (calls.create)(&raw mut handle, more, &raw const properties, 0) })
        })?;
        let address = self.address + pieces.bytes as u64;
        // SAFETY: the addresses are reserved and not mapped yet; the handle has this length.
        let mut mapped = check(unsafe { (calls.map)(address, more, 0, handle, 0) });
        if mapped.is_ok() {
            let cards = self.cards.as_slice();
            // SAFETY: the range was just mapped; the driver reads the given number of descriptions.
            mapped = check(unsafe { (calls.set_access)(address, more, cards.as_ptr(), cards.len()) });
            if mapped.is_err() {
                // SAFETY: mapped above, and no other code knows it.
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

    fn give_back(&self) -> DriverResult {
        let calls = Calls::of(&self.context.driver.table)?;
        let _current = self.context.enter()?;
        let mut pieces = self.pieces.lock();
        let mut outcome = Ok(());
        // Unmap each allocation as a whole, the last one first. Continue after a failure.
        let mut address = self.address + pieces.bytes as u64;
        for (handle, bytes) in pieces.handles.drain(..).rev() {
            address -= bytes as u64;
            // SAFETY: mapped here, in one call, and no work in flight uses it.
            outcome = outcome.and(check(unsafe { (calls.unmap)(address, bytes) }));
            // SAFETY: created here; the driver keeps memory that is still mapped.
            outcome = outcome.and(check(unsafe { (calls.release)(handle) }));
        }
        pieces.bytes = 0;
        // SAFETY: reserved here, with this length; the driver refuses while memory is mapped.
        outcome.and(check(unsafe { (calls.free)(self.address, self.bytes) }))
    }
}

impl Drop for ReservedRange {
    fn drop(&mut self) {
        if let Err(code) = self.give_back() {
            tracing::debug!(
                ?code,
                bytes = self.bytes,
                "cannot free device memory, because the device is lost"
            );
        }
    }
}
