//! Kernels whose code comes from elsewhere.

use crate::expr::Geometry;
use crate::kernel::{Access, Body, Code, HostItems, Kernel, Launch, Memory, Report, Type, View, ViewDecl};
use crate::{Device, Error, ErrorKind};

use super::Context;
use super::launches::{REPORT, accepted, report, scene};

/// `x[i] = x[i] * by + add`.
const PTX: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 items, .param .u64 by, .param .u32 add)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .b64 %d<6>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %d1, %r4;
    ld.param.u64 %d2, [items];
    setp.ge.u64 %p, %d1, %d2;
    @%p ret;
    ld.param.u64 %d2, [x];
    shl.b64 %d1, %d1, 3;
    add.u64 %d2, %d2, %d1;
    ld.global.u64 %d3, [%d2];
    ld.param.u64 %d4, [by];
    ld.param.u32 %r1, [add];
    cvt.u64.u32 %d5, %r1;
    mad.lo.u64 %d3, %d3, %d4, %d5;
    st.global.u64 [%d2], %d3;
    ret;
}
";
const OPENCL_C: &str = "
__kernel void scale(__global uchar *memory, ulong start, ulong items, ulong by, uint add)
{
    __global ulong *x = (__global ulong *)(memory + start);
    size_t i = get_global_id(0);
    if (i < items)
        x[i] = x[i] * by + add;
}
";

fn kernel() -> Kernel {
    let view = ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, Memory::Value(Type::U64))] };
    let body = Body { views: vec![view], params: vec![Type::U64, Type::U32], ..Body::default() };
    Kernel::new(body).expect("a body without operations")
}

fn natively(items: &HostItems<'_>) -> Report {
    let [by, add] = [items.param(0), items.param(1)];
    for item in items.items() {
        let old: u64 = items.view(0).load(item, 0).unwrap_or(0);
        items.view(0).store(item, 0, old.wrapping_mul(by).wrapping_add(add));
    }
    Report::default()
}

pub(super) fn code_from_elsewhere_is_run<D: Device>(cx: &Context<'_, D>) {
    let mut scene = scene(cx);
    let code = Code::new("scale").ptx(PTX).opencl_c(OPENCL_C);
    // SAFETY: the texts do what the body declares.
    let kernel = unsafe { kernel().with_host(natively).with_code(code) };
    let elements = scene.elements(16, 1000, 8);
    for round in 1..4_u64 {
        scene.fill(16, 4000, &round.to_ne_bytes());
        let launched = scene.queue.launch(&Launch {
            views: &[View::Run(elements)],
            params: &[round + (1 << 40), 7],
            ..Launch::new(&kernel, 1000, Geometry::plain(0), scene.host_at(REPORT as u64))
        });
        if accepted(cx, "code from elsewhere", launched).is_none() {
            return;
        }
        for bytes in scene.expected[16..8016].as_chunks_mut::<8>().0 {
            *bytes = u64::from_ne_bytes(*bytes).wrapping_mul(round + (1 << 40)).wrapping_add(7).to_ne_bytes();
        }
    }
    scene.finish();
    let ticket = scene.submit(&[]);
    scene.settle(ticket);
    assert_eq!(report(&mut scene), Report::default());
    scene.assert_as_expected("code from elsewhere between fills");
}

pub(super) fn code_that_does_not_fit_is_refused<D: Device>(cx: &Context<'_, D>) {
    let mut scene = scene(cx);
    let elements = scene.elements(16, 1000, 8);
    let launch = |code| {
        // SAFETY: nothing of it ever runs.
        let kernel = unsafe { kernel().with_code(code) };
        scene.queue.launch(&Launch {
            views: &[View::Run(elements)],
            params: &[2, 7],
            ..Launch::new(&kernel, 1000, Geometry::plain(0), scene.host_at(REPORT as u64))
        })
    };
    // No device can do anything with that, neither run it nor do without.
    let error = launch(Code::new("scale")).expect_err("no code at all");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(launch(Code::new("scale").ptx("nonsense").opencl_c("nonsense")).is_err(), "nonsense");
    let refusal = Error::new(ErrorKind::InvalidArgument, "a library").with_detail("by itself");
    let error = launch(Code::new("scale").submit(move |_| Err(refusal.clone()))).expect_err("it refuses");
    let is_told = error.detail().contains("by itself") || error.kind() == ErrorKind::Unsupported;
    assert!(is_told, "{error}");
    scene.assert_as_expected("refused code");
}
