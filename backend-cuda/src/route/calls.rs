//! Tests of copy routes: compare the driver calls that copies cause with the expected calls.

use backend_api::{Device, Request, Route, Routing, Ticket, Transfer};

use crate::fake::{self, FakeScene};
use crate::options::CudaOptions;

const PAGE: u64 = 4096;

fn scene(has_batches: bool, options: &CudaOptions) -> FakeScene {
    let device = if has_batches { fake::device_with_batches(options) } else { fake::device(options) };
    FakeScene::on(device, 128 * PAGE as usize)
}

impl FakeScene {
    /// Downloads of every other page, which cannot be merged.
    fn downloads(&self, pieces: u64) -> Vec<Transfer<'_>> {
        let (memory, host) = (&self.memory, &self.host);
        (0..pieces)
            .map(|i| Transfer::Download {
                from: memory.at(2 * i * PAGE),
                to: host.at(2 * i * PAGE),
                bytes: PAGE,
            })
            .collect()
    }

    /// Returns the single copies, batches and kernels that `submit` has started.
    fn started(&self, submit: impl FnOnce() -> Ticket) -> [usize; 3] {
        let before = self.stream().started();
        let _ticket = submit();
        let after = self.stream().started();
        std::array::from_fn(|i| after[i] - before[i])
    }

    fn submitted(&self, pieces: u64) -> [usize; 3] {
        self.started(|| self.queue.submit(&self.downloads(pieces)).unwrap())
    }

    fn submitted_by(&self, route: Route, pieces: u64) -> [usize; 3] {
        let transfers = self.downloads(pieces);
        self.started(|| {
            self.device.submit(self.queue.handle(), &Request::Copies(&transfers, Some(route))).unwrap()
        })
    }
}

#[test]
fn each_route_is_taken_when_it_is_named() {
    let scene = scene(true, &CudaOptions::new());
    assert_eq!(scene.device.routes(), [Route::Single, Route::Batch, Route::Kernel]);
    assert_eq!(scene.submitted_by(Route::Single, 20), [20, 0, 0]);
    assert_eq!(scene.submitted_by(Route::Batch, 20), [0, 1, 0]);
    assert_eq!(scene.submitted_by(Route::Kernel, 20), [0, 0, 1]);
    assert_eq!(scene.submitted_by(Route::Batch, 1), [0, 1, 0]);
    // The forced route applied to these calls only, so the next call uses the default.
    assert_eq!(scene.submitted(20), [0, 0, 1]);
    assert_eq!(scene.submitted(8), [0, 1, 0]);
    assert_eq!(scene.submitted(1), [1, 0, 0]);
}

#[test]
fn a_route_that_a_driver_has_not_is_not_offered_and_not_taken() {
    let scene = scene(false, &CudaOptions::new());
    assert_eq!(scene.device.routes(), [Route::Single, Route::Kernel]);
    assert_eq!(scene.submitted_by(Route::Batch, 20), [20, 0, 0]);
    scene.device.set_routing(Routing::only(Route::Batch));
    assert_eq!(scene.submitted(20), [0, 0, 1], "wrong driver calls with the device's own choice of a route");
}

#[test]
fn a_table_decides_until_it_is_taken_back() {
    let scene = scene(true, &CudaOptions::new());
    let mut routing = Routing::new();
    routing.set_download(16, PAGE, Some(Route::Single));
    routing.set_download(8, PAGE, Some(Route::Kernel));
    scene.device.set_routing(routing);
    assert_eq!(scene.device.routing(), routing);
    assert_eq!(scene.submitted(20), [20, 0, 0]);
    assert_eq!(scene.submitted(8), [0, 0, 1]);
    assert_eq!(scene.submitted(4), [0, 1, 0], "wrong driver calls if the table has no entry");
    // A route that the caller forces has priority over the table.
    assert_eq!(scene.submitted_by(Route::Batch, 20), [0, 1, 0]);
    scene.device.set_routing(Routing::new());
    assert_eq!(scene.submitted(20), [0, 0, 1]);
}

#[test]
fn neighbours_count_as_one_piece() {
    let scene = scene(true, &CudaOptions::new());
    scene.device.set_routing(Routing::only(Route::Batch));
    let whole: Vec<Transfer> = (0..32)
        .map(|i| Transfer::Download {
            from: scene.memory.at(i * PAGE),
            to: scene.host.at(i * PAGE),
            bytes: PAGE,
        })
        .collect();
    let started = scene.started(|| scene.queue.submit(&whole).unwrap());
    assert_eq!(started, [1, 0, 0], "a single copy must ignore the entry for several copies");
}

#[test]
fn an_option_goes_before_a_table() {
    let options = CudaOptions::new().with_route(Route::Single);
    let scene = scene(true, &options);
    scene.device.set_routing(Routing::only(Route::Batch));
    assert_eq!(scene.submitted(20), [20, 0, 0]);
    assert_eq!(scene.submitted_by(Route::Batch, 20), [0, 1, 0]);
}
