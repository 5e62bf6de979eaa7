//! Tests of expressions that call a function that never returns, on a device in RAM.

use std::sync::Arc;
use std::time::Duration;

use backend_api::expr::{Action, FieldStore, Geometry, Instruction, Program, Type, Value};
use backend_api::kernel::{Body, Op, Reg, ScalarFunction};
use backend_api::{Commit, Compute, Device, DeviceBuffer, Elements, HostBuffer, HostMemory, Queue, Transfer};
use backend_host::HostDevice;

/// The argument, except that it never returns for 77.
fn endless(limit: Duration) -> ScalarFunction {
    use backend_api::expr::Binary;
    let [x, end, more] = [0, 1, 2].map(Reg);
    let turn = vec![
        Op::Binary { op: Binary::Eq, to: more, left: x, right: end },
        Op::If { when: more, then: vec![Op::Continue { out: 0 }], otherwise: vec![] },
        Op::Break { out: 1 },
    ];
    let code = vec![
        Op::Param { to: x, number: 0 },
        Op::Literal { to: end, bits: 77 },
        Op::Block { body: vec![Op::Loop { body: turn }] },
        Op::Copy { to: x, of: x },
    ];
    let registers = vec![Type::U32, Type::U32, Type::Bool];
    let body = Body { registers, params: vec![Type::U32], code, ..Body::default() };
    let function = ScalarFunction::new(body, Vec::new()).unwrap().named("endless");
    function.with_loops(vec![(3, "here.rs:3".into())]).with_time_limit(Some(limit))
}

#[test]
fn interpreted_calls_end_and_name_the_element_and_the_loop() {
    let limit = Duration::from_millis(20);
    let device = Arc::new(HostDevice::new(1 << 20).unwrap());
    let queue = Queue::new(&device).unwrap();
    let numbers: Vec<u32> = (0..9000).map(|number| number % 4500).collect();
    let bytes = (numbers.len() * 4) as u64;
    let memory = DeviceBuffer::new(&device, bytes, Commit::Proven).unwrap();
    let host = HostBuffer::new(&device, 1 << 20, HostMemory::Pageable).unwrap();
    host.write(0, bytemuck::cast_slice(&numbers));
    let upload = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes };
    device.wait(queue.submit(&[upload]).unwrap()).unwrap();
    let call = Instruction::Call { function: endless(limit), arguments: vec![Value(0)] };
    let field = Instruction::Field { source: 0, offset: 0, of: Type::U32 };
    let program = Program::new(vec![field, call]).unwrap();
    let compute = |first: u64, count: u64, action: Action<'_>| {
        let sources = [Elements { start: memory.at(first * 4), count, stride: 4 }];
        // The geometry describes pages of 100 elements on the second of three channels.
        let geometry = Geometry { first, page_len: 100, channel: 1, channels: 3 };
        let compute = Compute { program: &program, sources: &sources, geometry, action };
        device.wait(queue.submit(&compute).unwrap())
    };
    let sum = Action::Sum { value: Value(1), filter: None, answer: host.at(0) };
    let stores = [FieldStore { value: Value(1), source: 0, offset: 0 }];
    for action in [sum, Action::Store { stores: &stores, filter: None }] {
        let error = compute(10, 4000, action).unwrap_err();
        let late = error.over_time().unwrap();
        let found = (&*late.function, &*late.place, late.limit, late.element);
        assert_eq!(found, ("endless", "here.rs:3", limit, 177), "{error}");
        // The queue works afterwards.
        compute(78, 4400, action).unwrap();
    }
}
