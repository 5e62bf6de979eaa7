//! Devices with a deliberate flaw in the access to another device's memory. The checks with two devices must
//! find it.

use std::sync::Arc;
use std::time::Duration;

use backend_api::{
    BufferHandle, Device, DeviceInfo, ErrorKind, QueueHandle, Reach, Request, Result, Ticket, Transfer,
};
use backend_host::{SimulatedDevice, SimulatedFabric};
use parking_lot::Mutex;
use vmarray_conformance::reference::ReferenceDevice;
use vmarray_conformance::{Limits, Outcome, SuiteReport, run_peers};

super::flaws! {
    /// The flaws of devices that claim to reach each other.
    CopiesMissTheirLastByte: copies_between_devices_move_every_byte;
    OrdersAfterPeersAreIgnored: work_is_ordered_after_tickets_of_a_peer;
    MemoryDoesNotWait: memory_waits_for_the_work_of_peers;
    RangesAreNotChecked: ranges_outside_of_a_peers_memory_are_refused;
    UploadsGoAstray: nothing_else_takes_places_of_a_peer;
    ReachIsDenied: memory_without_a_link_is_unknown;
    ReachIsOverstated:
        kernels_reach_memory_that_is_mapped gathers_and_scatters_reach_memory_that_is_mapped;
}

#[derive(Debug)]
struct Flawed {
    inner: SimulatedDevice,
    flaw: Flaw,
    released: Mutex<Vec<BufferHandle>>,
}

// SAFETY: the inner device keeps the contract. This device breaks it in tests that detect the violation,
// and that rely only on the memory's existence.
unsafe impl Device for Flawed {
    fn release(&self, buffer: BufferHandle) {
        match self.flaw {
            Flaw::MemoryDoesNotWait => self.released.lock().push(buffer),
            _ => self.inner.release(buffer),
        }
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        if let (
            Flaw::CopiesMissTheirLastByte,
            Request::Copies([Transfer::Internal { from, to, bytes: bytes @ 2.. }], _),
        ) = (self.flaw, request)
        {
            let shorter = Transfer::Internal { from: *from, to: *to, bytes: bytes - 1 };
            return self.inner.submit(queue, &Request::Copies(&[shorter], None));
        }
        let taken_for_nothing = match self.flaw {
            _ if !matches!(request, Request::Copies(..)) => None,
            Flaw::RangesAreNotChecked => Some(ErrorKind::InvalidArgument),
            Flaw::UploadsGoAstray => Some(ErrorKind::UnknownHandle),
            _ => None,
        };
        self.inner.submit(queue, request).or_else(|error| {
            let is_hidden = taken_for_nothing == Some(error.kind());
            if is_hidden { self.inner.submit(queue, &Request::Copies(&[], None)) } else { Err(error) }
        })
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        let was_given = ticket.value < 1 << 40;
        if self.flaw == Flaw::OrdersAfterPeersAreIgnored && was_given {
            return Ok(());
        }
        self.inner.order_after(queue, ticket)
    }

    fn reaches(&self, other: &DeviceInfo) -> Reach {
        match self.flaw {
            Flaw::ReachIsDenied => Reach::No,
            Flaw::ReachIsOverstated => Reach::Maps,
            _ => self.inner.reaches(other),
        }
    }

    backend_api::forward! { self => self.inner;
        info memory create_queue release_queue allocate allocate_extensible extend allocate_host import_host
        release_host
        poll wait wake
    }
}

fn report(flaw: Flaw, reach: Reach) -> SuiteReport {
    let fabric = SimulatedFabric::new(reach, 1_000_000_000, Duration::from_micros(5));
    let device = |seed| {
        let inner = SimulatedDevice::builder(seed).bytes(64 << 20).fabric(&fabric).build();
        Arc::new(Flawed { inner, flaw, released: Mutex::default() })
    };
    run_peers(&device(1), &device(2), &Limits::default())
}

#[test]
fn every_flaw_of_peers_fails_its_check() {
    for (flaw, name) in Flaw::FOUND_BY {
        let reach = if *flaw == Flaw::ReachIsOverstated { Reach::Copies } else { Reach::Maps };
        let report = report(*flaw, reach);
        assert!(report.failures().any(|(failed, _)| failed == *name), "{flaw:?}: {name}: {report}");
    }
    for (name, _) in report(Flaw::None, Reach::Maps).outcomes() {
        assert!(Flaw::FOUND_BY.iter().any(|(_, known)| *known == name), "{name} finds no flaw");
    }
}

#[test]
fn sound_devices_pass_with_any_links() {
    for (reach, skipped) in [(Reach::No, 4), (Reach::Copies, 1), (Reach::Maps, 1)] {
        let report = report(Flaw::None, reach);
        report.assert_passed();
        let outcomes = report.outcomes().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_)));
        assert_eq!(outcomes.count(), skipped, "{reach:?}: {report}");
    }
}

#[test]
fn devices_of_different_backends_are_unknown_to_each_other() {
    let host = Arc::new(backend_host::HostDevice::new(64 << 20).unwrap());
    let other = Arc::new(ReferenceDevice::new(64 << 20));
    run_peers(&host, &other, &Limits::default()).assert_passed();
    run_peers(&other, &host, &Limits::default()).assert_passed();
}
