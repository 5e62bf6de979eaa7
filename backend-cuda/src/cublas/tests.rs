//! Products by the fake cuBLAS. The kernel of these tests is no product: it writes -1, which is never the
//! library's result.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::{
    Access, Body, Code, LaunchView, MatrixProduct, Memory, Op, Reg, Report, VerifiedKernel, ViewDecl,
};
use backend_api::{Device, Elements, Queue, QueueProgress, Request, Ticket, Transfer};

use super::*;
use crate::CudaDevice;
use crate::driver::StatusCode;
use crate::fake::cublas::{FakeBlas, blas};
use crate::fake::{self, FakeScene, driven};
use crate::options::{CudaOptions, Route};

/// The extents of most products: as few multiplications as the library computes.
const EXTENTS: [u64; 3] = [128, 64, 128];
/// The places of the factors and of the result in device memory, and the place of the report in host memory.
const A: u64 = 256;
const B: u64 = 1 << 20;
const C: u64 = 2 << 20;
const REPORT: u64 = 3 << 20;

fn options() -> CudaOptions {
    // The fake driver has no copy kernels.
    CudaOptions::new().with_route(Route::Single)
}

/// A device whose machine has the library, unless `change` says otherwise.
fn scene(change: impl FnOnce(&mut FakeBlas)) -> FakeScene {
    blas(|blas| *blas = FakeBlas { is_installed: true, ..FakeBlas::default() });
    blas(change);
    FakeScene::on(fake::device(&options()), 4 << 20)
}

/// A kernel that is declared as a product of these elements, and writes -1.
fn kernel(of: Type) -> VerifiedKernel {
    let field = vec![(0, Memory::Value(of))];
    let view = |access| ViewDecl { access, fields: field.clone() };
    let minus_one = if of == Type::F64 { (-1.0_f64).to_bits() } else { (-1.0_f32).to_bits().into() };
    let body = Body {
        registers: vec![Type::U64, of],
        params: vec![Type::U64; 9],
        views: vec![view(Access::Read), view(Access::Read), view(Access::Write { tile: 1 })],
        code: vec![
            Op::Literal { to: Reg(0), bits: 0 },
            Op::Literal { to: Reg(1), bits: minus_one },
            Op::Store { view: 2, at: Reg(0), offset: 0, of: Memory::Value(of), value: Reg(1) },
        ],
        ..Body::default()
    };
    let parameters = MatrixProduct { extents: [0, 1, 2], factors: [[3, 4, 5], [6, 7, 8]] };
    // SAFETY: only the tests below use the kernel; they expect either result.
    let code = unsafe { Code::new("product") }.multiply(parameters);
    VerifiedKernel::new(body).unwrap().with_code(code)
}

/// A launch of a product. A factor has a first element, and the distances along the depth and across it.
#[derive(Clone, Copy)]
struct Product {
    of: Type,
    extents: [u64; 3],
    factors: [[u64; 3]; 2],
}

impl Product {
    fn plain(of: Type) -> Self {
        Self { of, extents: EXTENTS, factors: [[0, 1, EXTENTS[2]], [0, EXTENTS[1], 1]] }
    }

    fn launch<R>(&self, scene: &FakeScene, run: impl FnOnce(&Launch<'_>) -> R) -> R {
        let (kernel, stride) = (kernel(self.of), u64::from(self.of.bytes()));
        let [rows, columns, depth] = self.extents;
        let len =
            |[first, along, across]: [u64; 3], lines| first + (depth - 1) * along + (lines - 1) * across + 1;
        let [a, b] = self.factors;
        let view = |start, count| LaunchView::Run(Elements { start: scene.memory.at(start), count, stride });
        let views = [view(A, len(a, rows)), view(B, len(b, columns)), view(C, rows * columns)];
        let params: Vec<u64> = self.extents.into_iter().chain(a).chain(b).collect();
        let new = Launch::new(&kernel, rows * columns, Geometry::plain(0), scene.host.at(REPORT));
        run(&Launch { views: &views, params: &params, ..new })
    }

    fn submit_to(&self, scene: &FakeScene, queue: &Queue<CudaDevice>) -> backend_api::Result<Ticket> {
        self.launch(scene, |launch| queue.submit(launch))
    }

    fn submit(&self, scene: &FakeScene) -> backend_api::Result<Ticket> {
        self.submit_to(scene, &scene.queue)
    }

    /// Number `at` of the memory, a small integer.
    fn number(at: u64) -> f64 {
        (at % 7) as f64 - 3.0
    }

    /// Writes numbers to the device's memory, and garbage to the report.
    fn prepare(&self, scene: &FakeScene) {
        let bytes = u64::from(self.of.bytes());
        for at in 0..(3 << 20) / bytes {
            match self.of {
                Type::F64 => scene.host.write((at * bytes) as usize, &Self::number(at).to_ne_bytes()),
                _ => scene.host.write((at * bytes) as usize, &(Self::number(at) as f32).to_ne_bytes()),
            }
        }
        scene.device.wait(scene.queue.submit(&[scene.upload(3 << 20)]).unwrap()).unwrap();
        scene.host.write(REPORT as usize, &[7; Report::BYTES as usize]);
    }

    /// The elements of the result in the device's memory.
    fn result(&self, scene: &FakeScene) -> Vec<f64> {
        let bytes = u64::from(self.of.bytes());
        let count = self.extents[0] * self.extents[1];
        let back =
            Transfer::Download { from: scene.memory.at(C), to: scene.host.at(0), bytes: count * bytes };
        scene.device.wait(scene.queue.submit(&[back]).unwrap()).unwrap();
        let element = |at: u64| match self.of {
            Type::F64 => {
                let mut bytes = [0; 8];
                scene.host.read((at * 8) as usize, &mut bytes);
                f64::from_ne_bytes(bytes)
            }
            _ => {
                let mut bytes = [0; 4];
                scene.host.read((at * 4) as usize, &mut bytes);
                f32::from_ne_bytes(bytes).into()
            }
        };
        (0..count).map(element).collect()
    }

    fn expected(&self) -> Vec<f64> {
        let (bytes, [rows, columns, depth]) = (u64::from(self.of.bytes()), self.extents);
        let number = |start: u64, [first, along, across]: [u64; 3], k: u64, line: u64| {
            Self::number(start / bytes + first + k * along + line * across)
        };
        let sum = |(row, column): (u64, u64)| -> f64 {
            let [a, b] = self.factors;
            (0..depth).map(|k| number(A, a, k, row) * number(B, b, k, column)).sum()
        };
        (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(sum).collect()
    }

    /// Runs the product. Returns true if the library multiplied, false if the kernel ran.
    #[track_caller]
    fn run(&self, scene: &FakeScene) -> bool {
        self.prepare(scene);
        scene.device.wait(self.submit(scene).unwrap()).unwrap();
        let mut report = [1; Report::BYTES as usize];
        scene.host.read(REPORT as usize, &mut report);
        assert!(report.iter().all(|byte| *byte == 0), "a report of no failures");
        let result = self.result(scene);
        if result.iter().all(|element| *element == -1.0) {
            return false;
        }
        assert_eq!(result, self.expected());
        true
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn factors_may_have_both_orders_and_padded_lines() {
    let scene = scene(|_| ());
    let [rows, columns, depth] = EXTENTS;
    for of in [Type::F32, Type::F64] {
        for a in [[0, 1, depth], [9, 1, depth + 3], [0, rows, 1], [5, rows + 1, 1]] {
            for b in [[0, columns, 1], [3, columns + 7, 1], [0, 1, depth], [1, 1, depth + 2]] {
                let product = Product { of, extents: EXTENTS, factors: [a, b] };
                assert!(product.run(&scene), "{of:?} {a:?} {b:?}");
            }
        }
        // Vectors, whose elements have any distance.
        let dot = Product { of, extents: [1, 1 << 12, 256], factors: [[2, 1, 9], [0, 1 << 5, 1]] };
        assert!(!dot.run(&scene), "lines of the second factor overlap");
        let column = Product { of, extents: [1 << 10, 1, 1 << 10], factors: [[0, 0, 1], [0, 3, 5]] };
        assert!(!column.run(&scene), "all columns of the first factor are one column");
        let outer = Product { of, extents: [1 << 10, 1 << 7, 8], factors: [[0, 1 << 10, 1], [4, 1, 8]] };
        assert!(outer.run(&scene));
    }
    assert_eq!(blas(|_| ()).created, 1);
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn other_products_are_left_to_the_kernel() {
    let scene = scene(|_| ());
    let [rows, columns, depth] = EXTENTS;
    let plain = Product::plain(Type::F32);
    let factors = |a, b| Product { factors: [a, b], ..plain };
    let (a, b) = (plain.factors[0], plain.factors[1]);
    assert!(!factors([0, 2, 2 * depth], b).run(&scene), "no distance is 1");
    assert!(!factors([0, 1, depth - 1], b).run(&scene) && !factors(a, [0, columns - 1, 1]).run(&scene));
    let small = Product { extents: [rows - 1, columns, depth], ..plain };
    assert!(!small.run(&scene), "a small product");
    assert_eq!(blas(|_| ()).created, 0, "the library was not started");
    assert!(plain.run(&scene));
    // Elements outside of a view, and a view with holes.
    plain.launch(&scene, |launch| {
        assert!(BlasProduct::of_launch(launch).is_some());
        for (number, value) in [(0, rows + 1), (2, u64::MAX), (3, 1), (5, u64::MAX), (6, 1), (8, 2)] {
            let mut params = launch.params.to_vec();
            params[number] = value;
            assert_eq!(BlasProduct::of_launch(&Launch { params: &params, ..*launch }), None, "{number}");
        }
        let mut views = launch.views.to_vec();
        let LaunchView::Run(elements) = views[1] else { unreachable!() };
        views[1] = LaunchView::Run(Elements { stride: 8, ..elements });
        assert_eq!(BlasProduct::of_launch(&Launch { views: &views, ..*launch }), None);
        let product = BlasProduct::of_launch(launch).unwrap();
        assert_eq!(product.addresses(&[512, 1024, 4]), Some([512, 1024, 4]));
        assert_eq!(product.addresses(&[512, 1026, 4]), None);
    });
}

#[test]
fn a_missing_library_is_no_error() {
    let plain = Product::plain(Type::F32);
    assert!(!plain.run(&scene(|blas| blas.is_installed = false)));
    let turned_off = FakeScene::on(fake::device(&options().without_cublas()), 4 << 20);
    blas(|blas| blas.is_installed = true);
    assert!(!plain.run(&turned_off));
    // The library does not know the GPU.
    let scene = scene(|blas| blas.creation = BlasStatus::ARCH_MISMATCH);
    assert!(!plain.run(&scene) && !plain.run(&scene));
    // A shortage passes.
    let scene = self::scene(|blas| blas.creation = BlasStatus::ALLOC_FAILED);
    assert!(!plain.run(&scene) && plain.run(&scene));
}

#[test]
fn a_refused_product_is_computed_by_the_kernel() {
    let (scene, plain) = (scene(|_| ()), Product::plain(Type::F64));
    for status in [BlasStatus::NOT_SUPPORTED, BlasStatus::ALLOC_FAILED, BlasStatus::ARCH_MISMATCH] {
        blas(|blas| blas.product = status);
        assert!(!plain.run(&scene) && plain.run(&scene));
    }
    // No memory is left for the workspace of another queue.
    let other = Queue::new(&scene.device).unwrap();
    driven(|driven| driven.no_bytes_above = Some(8 << 20));
    plain.prepare(&scene);
    scene.device.wait(plain.submit_to(&scene, &other).unwrap()).unwrap();
    driven(|driven| driven.no_bytes_above = None);
    assert!(plain.result(&scene).iter().all(|element| *element == -1.0));
}

#[test]
fn a_failed_product_has_the_name_of_its_status() {
    let (scene, plain) = (scene(|_| ()), Product::plain(Type::F32));
    for (status, name) in [(13, "CUBLAS_STATUS_EXECUTION_FAILED"), (99, "CUBLAS_STATUS_99")] {
        blas(|blas| blas.product = status);
        let error = plain.submit(&scene).unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::KernelFailed, "launch"));
        assert_eq!(error.driver().map(|driver| driver.name.as_str()), Some(name));
    }
    // The queue and the factors are as before.
    assert!(plain.run(&scene));
}

#[test]
fn a_product_on_a_lost_device_reports_the_loss() {
    let (scene, plain) = (scene(|_| ()), Product::plain(Type::F32));
    assert!(plain.run(&scene));
    scene.stream().fail();
    blas(|blas| blas.product = 13);
    assert_eq!(plain.submit(&scene).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(plain.submit(&scene).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(scene.device.core.lost(), Some(StatusCode::LAUNCH_FAILED));
}

#[test]
fn products_are_ordered_by_their_queue() {
    let (scene, plain) = (scene(|_| ()), Product::plain(Type::F32));
    let other = Queue::new(&scene.device).unwrap();
    let launches = |queue: &Queue<CudaDevice>| fake::stream(&scene.device, queue.id()).started()[2];
    plain.prepare(&scene);
    let (first, second) = (scene.stream(), fake::stream(&scene.device, other.id()));
    let before = (launches(&scene.queue), launches(&other));
    first.open(0);
    second.open(0);
    let tickets = [plain.submit(&scene).unwrap(), plain.submit_to(&scene, &other).unwrap()];
    assert_eq!((launches(&scene.queue), launches(&other)), (before.0 + 1, before.1 + 1));
    let done = || tickets.map(|ticket| scene.device.poll(ticket) == Ok(QueueProgress::Done));
    assert_eq!(done(), [false, false]);
    second.open(u64::MAX);
    assert_eq!(done(), [false, true]);
    first.open(u64::MAX);
    assert_eq!(done(), [true, true]);
    assert_eq!(blas(|_| ()).created, 1, "one handle for all queues");
}

#[test]
fn a_handle_lives_as_long_as_its_device() {
    let (scene, plain) = (scene(|_| ()), Product::plain(Type::F32));
    plain.launch(&scene, |launch| {
        scene.device.prepare(&[Request::Launch(launch)]).unwrap();
        assert_eq!(blas(|_| ()).created, 1, "a preparation starts the library");
        assert_eq!(scene.device.kernel_facts(launch).unwrap().library, Some("cuBLAS"));
    });
    assert!(plain.run(&scene));
    let again = FakeScene::on(fake::again(&scene.device), 4 << 20);
    assert!(plain.run(&again));
    assert_eq!((blas(|_| ()).created, blas(|_| ()).destroyed), (2, 0));
    drop(scene);
    assert_eq!(blas(|_| ()).destroyed, 1);
    assert!(plain.run(&again));
    let core = Arc::clone(&again.device.core);
    drop(again);
    assert_eq!(blas(|_| ()).destroyed, 1, "the core of the device is in use");
    drop(core);
    assert_eq!(blas(|_| ()).destroyed, 2);
}

#[test]
fn files_that_are_no_library_are_not_used() {
    assert!(load(Some("off".into())).is_none());
    let absent = std::env::temp_dir().join(vmarray_support::private_dir::random_name());
    assert!(load(Some(absent.clone().into())).is_none());
    std::fs::write(&absent, "no library").unwrap();
    assert!(load(Some(absent.clone().into())).is_none());
    std::fs::remove_file(absent).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "loads a library")]
fn a_library_of_this_machine_has_all_functions() {
    assert_eq!(load(None).is_some(), installed().is_some());
}
