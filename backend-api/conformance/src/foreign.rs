//! Conformance checks of kernels with native code (PTX, OpenCL C or a Rust function). The device runs the
//! native code instead of compiling the kernel's portable body.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_api::expr::Geometry;
use backend_api::kernel::{
    Access, Binary, Body, Code, Launch, LaunchView, Memory, Op, Reg, Report, Type, VerifiedKernel, ViewDecl,
};
use backend_api::{Error, ErrorKind};

use super::Context;
use super::launches::{REPORT, accepted, report, scene};

/// PTX code of the kernel `x[i] = x[i] * by + add`.
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

/// Creates a kernel whose body has the effect of [`PTX`].
fn kernel() -> VerifiedKernel {
    let (of, [at, value, by, add]) = (Memory::Value(Type::U64), [0, 1, 2, 4].map(Reg));
    let body = Body {
        registers: vec![Type::U64, Type::U64, Type::U64, Type::U32, Type::U64],
        params: vec![Type::U64, Type::U32],
        views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
        code: vec![
            Op::Literal { to: at, bits: 0 },
            Op::Load { to: value, view: 0, at, offset: 0, of },
            Op::Param { to: by, number: 0 },
            Op::Param { to: Reg(3), number: 1 },
            Op::Cast { to: add, of: Reg(3) },
            Op::Binary { op: Binary::Mul, to: value, left: value, right: by },
            Op::Binary { op: Binary::Add, to: value, left: value, right: add },
            Op::Store { view: 0, at, offset: 0, of, value },
        ],
        ..Body::default()
    };
    VerifiedKernel::new(body).expect("the kernel's body must be valid")
}

pub(super) fn code_from_elsewhere_is_run(cx: &Context<'_>) {
    let mut scene = scene(cx);
    // SAFETY: both texts do the same as the kernel's body.
    let code = unsafe { Code::new("scale") }.ptx(PTX).opencl_c(OPENCL_C);
    let kernel = kernel().with_code(code);
    let elements = scene.elements(16, 1000, 8);
    for round in 1..4_u64 {
        let by = round + (1 << 40);
        scene.fill(16, 4000, &round.to_ne_bytes());
        let launched = scene.queue.submit(&Launch {
            views: &[LaunchView::Run(elements)],
            params: &[by, 7],
            ..Launch::new(&kernel, 1000, Geometry::plain(0), scene.host_at(REPORT as u64))
        });
        if accepted(cx, "code from elsewhere", launched).is_none() {
            return;
        }
        for bytes in scene.expected[16..8016].as_chunks_mut::<8>().0 {
            *bytes = u64::from_ne_bytes(*bytes).wrapping_mul(by).wrapping_add(7).to_ne_bytes();
        }
    }
    scene.finish();
    let ticket = scene.submit(&[]);
    scene.settle(ticket);
    assert_eq!(report(&mut scene), Report::default());
    scene.assert_as_expected("memory after foreign code between fills");
}

pub(super) fn a_foreign_submission_may_refuse_a_launch(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let asked = Arc::new(AtomicBool::new(false));
    let (noted, refusal) = (Arc::clone(&asked), Error::new(ErrorKind::InvalidArgument, "a library"));
    // SAFETY: the function submits no work.
    let code = unsafe { Code::new("scale") }.submit(move |launch| {
        noted.store(true, Ordering::Relaxed);
        assert_eq!((launch.items, launch.params, launch.views.len()), (1000, &[1, 0][..], 1));
        Err(refusal.clone().with_detail("by itself"))
    });
    let kernel = kernel().with_code(code);
    let launched = scene.queue.submit(&Launch {
        views: &[LaunchView::Run(scene.elements(16, 1000, 8))],
        params: &[1, 0],
        ..Launch::new(&kernel, 1000, Geometry::plain(0), scene.host_at(REPORT as u64))
    });
    // If the device has no native queue (such as a CUDA stream) for the code, it runs the kernel's portable
    // body, which also leaves the data unchanged.
    if asked.load(Ordering::Relaxed) {
        assert_eq!(launched.expect_err("the code's `submit` refuses the launch").detail(), "by itself");
    } else if let Some(ticket) = accepted(cx, "code from elsewhere", launched) {
        scene.settle(ticket);
        assert_eq!(report(&mut scene), Report::default());
    }
    scene.assert_as_expected("a refused launch");
}
