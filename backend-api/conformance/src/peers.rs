//! Conformance checks of direct access to another device's memory, if both devices belong to one process.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::{
    Access, Binary, Body, Builtin, Memory, Op, Reg, Report, Type, VerifiedKernel, ViewDecl,
};
use backend_api::{
    Device, DeviceBuffer, DeviceSpan, Elements, ErrorKind, Fill, Gather, Launch, LaunchView, Queue,
    QueueProgress, Reach, Result, Ticket, Transfer,
};

use super::context::{assert_holds, assert_refused};
use super::indexed::elements_in_pages;
use super::{Context, Limits, SuiteReport as Outcomes, erased, outcome};

/// Checks direct access from `device` to the memory of `peer`. If [`Device::reaches`] reports no access, the
/// device must refuse the peer's memory. Otherwise the checks test copies, and for `Reach::Maps` also
/// kernels. Call the function again with swapped arguments to check the other direction.
///
/// ```
/// # use std::sync::Arc;
/// use vmarray_conformance::{Limits, run_peers};
/// # use {vmarray_conformance::reference::ReferenceDevice, backend_host::HostDevice};
/// let (one, other) = (Arc::new(HostDevice::new(64 << 20)?), Arc::new(HostDevice::new(64 << 20)?));
/// let report = run_peers(&one, &other, &Limits::default());
/// report.assert_passed();
/// // Devices of different backends cannot access each other's memory, and must refuse it.
/// run_peers(&one, &Arc::new(ReferenceDevice::new(64 << 20)), &Limits::default()).assert_passed();
/// # Ok::<_, backend_api::Error>(())
/// ```
pub fn run_peers<D: Device, E: Device>(device: &Arc<D>, peer: &Arc<E>, limits: &Limits) -> Outcomes {
    run(&erased(device), &erased(peer), limits)
}

fn run(device: &Arc<dyn Device>, peer: &Arc<dyn Device>, limits: &Limits) -> Outcomes {
    macro_rules! checks {
        ($($name:ident)*) => {
            [$((stringify!($name), $name as fn(&Pair<'_>))),*]
        };
    }
    let mut report = Outcomes::default();
    for (name, run) in checks! {
        copies_between_devices_move_every_byte
        work_is_ordered_after_tickets_of_a_peer
        memory_waits_for_the_work_of_peers
        ranges_outside_of_a_peers_memory_are_refused
        nothing_else_takes_places_of_a_peer
        memory_without_a_link_is_unknown
        kernels_reach_memory_that_is_mapped
        gathers_and_scatters_reach_memory_that_is_mapped
    } {
        println!("{} and {}: {name}", device.info(), peer.info());
        let pair = Pair { own: Context::new(device, *limits), peer: Context::new(peer, *limits) };
        report.outcomes.push((name, outcome(|| run(&pair), &pair.own)));
    }
    report
}

/// A device, and a peer whose memory it may be able to access.
struct Pair<'a> {
    own: Context<'a>,
    peer: Context<'a>,
}

impl Pair<'_> {
    /// Returns true if the device reports at least the access `least` to the peer. Otherwise skips the check.
    fn reaches(&self, least: Reach) -> bool {
        let reach = self.own.device().reaches(self.peer.device().info());
        if reach < least {
            self.own.skip(format!("the device has the access {reach:?} to the peer"));
        }
        reach >= least
    }

    /// Allocates device memory of the peer, and writes `bytes` to it.
    fn written(&self, bytes: &[u8]) -> DeviceBuffer<dyn Device> {
        let (queue, host) = (self.peer.queue(), self.peer.host(bytes.len()));
        let memory = self.peer.memory(bytes.len() as u64);
        host.write(0, bytes);
        self.peer.wait(self.peer.upload(&queue, &host, &memory, bytes.len() as u64));
        memory
    }
}

#[track_caller]
fn assert_memory(cx: &Context<'_>, what: &str, memory: &DeviceBuffer<dyn Device>, expected: &[u8]) {
    let (queue, host) = (cx.queue(), cx.host(expected.len()));
    cx.wait(cx.download(&queue, memory, &host, expected.len() as u64));
    assert_holds(what, &host, 0, expected);
}

fn copy(queue: &Queue<dyn Device>, from: DeviceSpan<'_>, to: DeviceSpan<'_>, bytes: u64) -> Result<Ticket> {
    queue.submit(&[Transfer::Internal { from, to, bytes }])
}

fn copies_between_devices_move_every_byte(cx: &Pair<'_>) {
    if !cx.reaches(Reach::Copies) {
        return;
    }
    const BYTES: usize = 1 << 20;
    let (there, queue) = (cx.own.noise(1, BYTES), cx.own.queue());
    let (peer, own) = (cx.written(&there), cx.own.memory(BYTES as u64));
    let mut expected = vec![7; BYTES];
    cx.own.fill(&queue, &own, BYTES as u64, &[7]);
    // One call copies pieces of many lengths and alignments to the device. Then one long copy goes back.
    let mut pieces = Vec::new();
    let (mut from, mut to) = (0, 0);
    for bytes in (0..40).chain([255, 256, 4095, 4097, 100_003]) {
        expected[to..to + bytes].copy_from_slice(&there[from..from + bytes]);
        let places = (peer.at(from as u64), own.at(to as u64));
        pieces.push(Transfer::Internal { from: places.0, to: places.1, bytes: bytes as u64 });
        (from, to) = (from + bytes + 3, to + bytes + 5);
    }
    cx.own.wait(queue.submit(&pieces).expect("copies from an accessible peer must succeed"));
    assert_memory(&cx.own, "the device's memory after copies from the peer", &own, &expected);
    let half = BYTES as u64 / 2;
    cx.own.wait(copy(&queue, own.at(1), peer.at(half), half - 1).expect("a copy to the peer must succeed"));
    let back = [&there[..BYTES / 2], &expected[1..BYTES / 2], &there[BYTES - 1..]].concat();
    assert_memory(&cx.peer, "the peer's memory after a copy from the device", &peer, &back);
}

fn work_is_ordered_after_tickets_of_a_peer(cx: &Pair<'_>) {
    if !cx.reaches(Reach::Copies) {
        return;
    }
    const BYTES: u64 = 4 << 20;
    let (peer, own) = (cx.peer.memory(BYTES), cx.own.memory(BYTES));
    let (theirs, ours) = (cx.peer.queue(), cx.own.queue());
    for round in 1..10_u8 {
        let written = cx.peer.fill(&theirs, &peer, BYTES, &[round]);
        ours.order_after(written).expect("`order_after` must accept a ticket of an accessible peer");
        cx.own.wait(copy(&ours, peer.at(0), own.at(0), BYTES).expect("the copy must succeed"));
        assert_memory(
            &cx.own,
            "the device's memory after a copy ordered after the peer's fill",
            &own,
            &vec![round; BYTES as usize],
        );
    }
    let never = Ticket { queue: theirs.id(), value: 1 << 40 };
    assert_refused(
        "an order after a ticket that was never issued",
        ours.order_after(never),
        ErrorKind::UnknownHandle,
    );
}

fn memory_waits_for_the_work_of_peers(cx: &Pair<'_>) {
    if !cx.reaches(Reach::Copies) {
        return;
    }
    const BYTES: u64 = 4 << 20;
    let (own, queue) = (cx.own.memory(BYTES), cx.own.queue());
    for to_the_peer in [false, true] {
        for round in 0..4_u8 {
            let peer = cx.written(&vec![round; BYTES as usize]);
            let (from, to) = if to_the_peer { (own.at(0), peer.at(0)) } else { (peer.at(0), own.at(0)) };
            let ticket = copy(&queue, from, to, BYTES).expect("the copy must succeed");
            // SAFETY: the memory is released, so the device must refuse this place.
            let gone = unsafe { peer.at(0).detach() };
            drop(peer);
            let now = cx.own.device().poll(ticket).expect("the poll of a finished copy must succeed");
            assert_eq!(now, QueueProgress::Done, "a copy must be done after its memory was released");
            let refused = copy(&queue, gone, own.at(0), 1);
            assert_refused("a copy from released memory", refused, ErrorKind::UnknownHandle);
        }
    }
}

fn ranges_outside_of_a_peers_memory_are_refused(cx: &Pair<'_>) {
    if !cx.reaches(Reach::Copies) {
        return;
    }
    let (own, queue) = (cx.own.memory(200), cx.own.queue());
    let peer = cx.written(&[1; 100]);
    for (offset, bytes) in [(0, 101), (100, 1), (1, 100), (u64::MAX, 1), (1, u64::MAX)] {
        for (from, to) in [(peer.at(offset), own.at(0)), (own.at(0), peer.at(offset))] {
            let refused = copy(&queue, from, to, bytes);
            assert_refused("a copy outside of the peer's memory", refused, ErrorKind::InvalidArgument);
        }
    }
    cx.own.wait(
        copy(&queue, peer.at(100), own.at(0), 0)
            .expect("a copy of 0 bytes at the end of memory must succeed"),
    );
}

fn nothing_else_takes_places_of_a_peer(cx: &Pair<'_>) {
    let (queue, host, peer) = (cx.own.queue(), cx.own.host(100), cx.written(&[1; 100]));
    let upload = Transfer::Upload { from: host.at(0), to: peer.at(0), bytes: 100 };
    let download = Transfer::Download { from: peer.at(0), to: host.at(0), bytes: 100 };
    let within = Transfer::Internal { from: peer.at(0), to: peer.at(50), bytes: 0 };
    for copies in [&[upload][..], &[download], &[within, upload], &[within, download]] {
        let refused = queue.submit(copies);
        assert_refused("a copy from or to the host", refused, ErrorKind::UnknownHandle);
    }
    let fill = Fill { to: peer.at(0), bytes: 100, pattern: &[2] };
    assert_refused("a fill", queue.submit(&fill), ErrorKind::UnknownHandle);
    assert_memory(&cx.peer, "the peer's memory after refused requests", &peer, &[1; 100]);
}

fn memory_without_a_link_is_unknown(cx: &Pair<'_>) {
    if cx.own.device().reaches(cx.peer.device().info()) > Reach::No {
        return cx.own.skip("the device can access the peer's memory");
    }
    let (own, queue, peer) = (cx.own.memory(100), cx.own.queue(), cx.written(&[1; 100]));
    for (from, to) in [(peer.at(0), own.at(0)), (own.at(0), peer.at(0))] {
        assert_refused("a copy between the devices", copy(&queue, from, to, 10), ErrorKind::UnknownHandle);
    }
    let done = cx.peer.fill(&cx.peer.queue(), &peer, 100, &[2]);
    assert_refused("an order after work of the peer", queue.order_after(done), ErrorKind::UnknownHandle);
    assert_memory(&cx.peer, "the peer's memory after refused requests", &peer, &[2; 100]);
}

/// Creates the kernel `y[i] = x[i] + i` on 64-bit numbers.
fn kernel() -> VerifiedKernel {
    let (of, [at, value, index]) = (Memory::Value(Type::U64), [0, 1, 2].map(Reg));
    let view = |access| ViewDecl { access, fields: vec![(0, of)] };
    let body = Body {
        registers: vec![Type::U64; 3],
        views: vec![view(Access::Write { tile: 1 }), view(Access::Read)],
        code: vec![
            Op::Literal { to: at, bits: 0 },
            Op::Builtin { to: index, what: Builtin::Index },
            Op::Load { to: value, view: 1, at: index, offset: 0, of },
            Op::Binary { op: Binary::Add, to: value, left: value, right: index },
            Op::Store { view: 0, at, offset: 0, of, value },
        ],
        ..Body::default()
    };
    VerifiedKernel::new(body).expect("the kernel's body must be valid")
}

fn kernels_reach_memory_that_is_mapped(cx: &Pair<'_>) {
    const COUNT: u64 = 10_000;
    let bytes =
        |value: &dyn Fn(u64) -> u64| -> Vec<u8> { (0..COUNT).flat_map(|i| value(i).to_ne_bytes()).collect() };
    let (queue, report, kernel) = (cx.own.queue(), cx.own.host(Report::BYTES as usize), kernel());
    let (own, peer) = (cx.own.memory(8 * COUNT), cx.written(&bytes(&|i| i * i)));
    let elements = |start| Elements { start, count: COUNT, stride: 8 };
    let launch = |to: LaunchView<'_>, from: LaunchView<'_>| {
        let geometry = Geometry::plain(0);
        queue.submit(&Launch { views: &[to, from], ..Launch::new(&kernel, COUNT, geometry, report.at(0)) })
    };
    let (here, there) = (LaunchView::Run(elements(own.at(0))), LaunchView::Run(elements(peer.at(0))));
    let launched = launch(here, there);
    if cx.own.device().reaches(cx.peer.device().info()) < Reach::Maps {
        let kind = launched.expect_err("a launch on memory that the device cannot map must fail").kind();
        assert!(matches!(kind, ErrorKind::UnknownHandle | ErrorKind::Unsupported), "{kind:?}");
        return;
    }
    if matches!(&launched, Err(error) if error.kind() == ErrorKind::Unsupported) {
        return cx.own.skip("the device runs no kernels of the program");
    }
    cx.own.wait(launched.expect("the launch must be accepted"));
    assert_memory(
        &cx.own,
        "the result of a kernel that reads the peer's memory",
        &own,
        &bytes(&|i| i * i + i),
    );
    // The operand's pages alternate between both devices. The result is in the peer's memory.
    let (page_len, target) = (64, cx.peer.memory(8 * COUNT));
    let striped = LaunchView::Striped { bases: &[own.at(0), peer.at(0)], page_len, count: COUNT, stride: 8 };
    cx.own.wait(
        launch(LaunchView::Run(elements(target.at(0))), striped)
            .expect("a launch on pages of both devices must succeed"),
    );
    let value = |i: u64| {
        let (page, within) = (i / page_len, i % page_len);
        let at = page / 2 * page_len + within;
        at * at + if page % 2 == 0 { at } else { 0 } + i
    };
    assert_memory(
        &cx.peer,
        "the result of a kernel that writes to the peer's memory",
        &target,
        &bytes(&value),
    );
}

fn gathers_and_scatters_reach_memory_that_is_mapped(cx: &Pair<'_>) {
    const BYTES: usize = 100_000;
    let (here, there) = (cx.own.noise(1, BYTES), cx.own.noise(2, BYTES));
    let (own, peer) = (cx.own.memory(BYTES as u64), cx.written(&there));
    let (queue, host) = (cx.own.queue(), cx.own.host(BYTES));
    host.write(0, &here);
    cx.own.wait(cx.own.upload(&queue, &host, &own, BYTES as u64));
    let bases = [peer.at(0), own.at(64)];
    if cx.own.device().reaches(cx.peer.device().info()) < Reach::Maps {
        let elements = LaunchView::Striped { bases: &bases, page_len: 8, count: 99, stride: 4 };
        let gathered = queue.submit(&Gather { elements, indices: host.at(0), count: 0, values: host.at(0) });
        let kind = gathered.expect_err("a launch on memory that the device cannot map must fail").kind();
        assert!(matches!(kind, ErrorKind::UnknownHandle | ErrorKind::Unsupported), "{kind:?}");
        return;
    }
    let (queues, their_host) = (cx.peer.queue(), cx.peer.host(BYTES));
    let read = |place: usize| {
        let mut bytes = vec![0; BYTES];
        if place == 1 {
            cx.own.wait(cx.own.download(&queue, &own, &host, BYTES as u64));
            host.read(0, &mut bytes);
        } else {
            cx.peer.wait(cx.peer.download(&queues, &peer, &their_host, BYTES as u64));
            their_host.read(0, &mut bytes);
        }
        bytes
    };
    // The elements are in the peer's memory alone, or in the memories of both devices.
    for bases in [&bases[..1], &bases[..2]] {
        if !elements_in_pages(&cx.own, bases, &read) {
            return cx.own.skip("the device does not gather elements that are striped over several places");
        }
    }
}
