//! Tests that the library translates expressions without locks: threads that use the same pages continue
//! meanwhile.
#![cfg(feature = "host")]

use std::sync::{Arc, Condvar, Mutex};
use vmarray::prelude::*;

use vmarray::ErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::device::{Device, ErrorKind as DeviceErrorKind, QueueHandle, Request, Result, Ticket};
use vmarray::host::HostDevice;
use vmarray::{Field, Source, VirtualArray};
use vmarray_conformance::wrap::Faulty;

use crate::common::as_any;

/// A device whose compiler works as long as the test wants.
#[derive(Debug)]
struct Slow {
    inner: Faulty<HostDevice>,
    /// Number of translating threads, and true if they must wait.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Slow {
    fn new() -> Arc<Self> {
        let inner = Faulty::new(HostDevice::new(16 << 20).unwrap());
        Arc::new(Self { inner, state: Mutex::new((0, true)), changed: Condvar::new() })
    }

    /// Returns when a thread is translating.
    fn await_compiler(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |(inside, _)| *inside == 0).unwrap());
    }

    fn let_compilers_finish(&self) {
        self.state.lock().unwrap().1 = false;
        self.changed.notify_all();
    }
}

// SAFETY: the inner device does all work.
unsafe impl Device for Slow {
    vmarray::device::forward! { self => self.inner;
        info memory create_queue release_queue allocate allocate_extensible extend release allocate_host import_host
        release_host
        poll wait wake order_after
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        let closed = matches!(request, Request::Compute(_)) && self.state.lock().unwrap().1;
        assert!(!closed, "nothing is computed that was not translated first");
        self.inner.submit(queue, request)
    }

    fn prepare(&self, _: &[Request<'_>]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(_, closed)| *closed).unwrap());
        Ok(())
    }
}

/// Runs `slow` in a thread of its own, and `meanwhile` while it waits for the compiler.
fn concurrently(device: &Slow, slow: impl FnOnce() + Send, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(slow);
        device.await_compiler();
        meanwhile();
        device.let_compilers_finish();
        thread.join().unwrap();
    });
}

#[test]
fn misses_of_an_array_go_on_while_an_expression_is_translated() {
    type Operation = fn(&VirtualArray<u32>);
    let operations: [Operation; 6] = [
        |array| assert_eq!(array.sum(.., Field::whole()).unwrap(), 9000),
        |array| assert_eq!(array.count_where(.., Field::whole().eq(9)).unwrap(), 1000),
        |array| assert_eq!(array.max(.., Field::whole()).unwrap(), Some(9)),
        |array| assert_eq!(array.histogram(.., Field::whole(), 10).unwrap()[9], 1000),
        |array| array.transform(.., Field::whole().set(Field::whole() + 1)).unwrap(),
        |array| array.assign_where(.., Field::whole().gt(3), Field::whole().set(4)).unwrap(),
    ];
    for operation in operations {
        let device = Slow::new();
        let builder = VirtualArray::<u32>::builder(1000).devices([as_any(&device)]).page_len(10);
        let array = builder.frames_per_channel(4).build().unwrap();
        array.fill(.., 9).unwrap();
        array.evict(..).unwrap();
        let missed = || {
            for index in (0..1000).step_by(50) {
                assert_eq!(array.get(index).unwrap(), 9);
            }
            array.set(500, 9).unwrap();
            array.flush(..).unwrap();
        };
        concurrently(&device, || operation(&array), missed);
    }
}

#[test]
fn an_assignment_reports_a_write_back_that_fails_during_its_reads() {
    let device = Slow::new();
    let array = |value| {
        let builder = VirtualArray::<u32>::builder(100).devices([as_any(&device)]).page_len(10);
        let array = builder.build().unwrap();
        array.fill(.., value).unwrap();
        array
    };
    let (target, other) = (array(1), array(2));
    let assign = || {
        let joined = target.join((&other,)).unwrap();
        let (to, from) = joined.rows();
        let sum = to.get(Field::whole()) + from.get(Field::whole());
        let error = joined.transform(.., to.set(Field::whole(), sum)).unwrap_err();
        match error.kind() {
            ErrorKind::Interrupted { written, unspecified, cause } => {
                assert!(
                    written.is_empty() && unspecified.iter().eq([&(0..100)]),
                    "{written:?} {unspecified:?}"
                );
                assert_eq!(cause.kind(), DeviceErrorKind::CopyFailed);
            }
            other => panic!("{other:?}"),
        }
    };
    concurrently(&device, assign, || {
        other.set(55, 3).unwrap();
        device.inner.inject(Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed).reported_later());
        other.flush(..).unwrap_err();
        device.inner.clear();
    });
    assert_eq!(other.get(55).unwrap(), 3, "what was written is not lost");
}

#[test]
fn other_operations_on_a_source_go_on_while_an_expression_is_translated() {
    type Operation = fn(&Source<u32>);
    let operations: [Operation; 3] = [
        |source| assert_eq!(source.sum(.., Field::whole()).unwrap(), 9000),
        |source| assert_eq!(source.count_where(.., Field::whole().eq(9)).unwrap(), 1000),
        |source| source.transform(.., Field::whole().set(Field::whole() + 1)).unwrap(),
    ];
    for operation in operations {
        let device = Slow::new();
        let source = Source::builder(vec![9_u32; 1000]).devices([as_any(&device)]).build().unwrap();
        let others = || {
            assert_eq!(source.count(.., Field::whole(), &9).unwrap(), 1000);
            source.fill(.., 9).unwrap();
            assert_eq!(source.get(77).unwrap(), 9);
        };
        concurrently(&device, || operation(&source), others);
    }
}
