//! Conformance checks of batches: one call of `submit` with many copies.

use backend_api::wrap::SplitMix64;
use backend_api::{Route, Routing};

use super::Context;
use super::scene::Scene;

pub(super) fn an_empty_batch_gives_a_ticket(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 4096, 4096);
    let first = scene.submit(&[scene.upload(0, 0, 4096)]);
    let empty = scene.submit(&[]);
    assert_eq!(empty.value, first.value + 1, "an empty batch must get the next ticket");
    cx.wait(empty);
    scene.assert_as_expected("an empty batch");
    let queue = cx.queue();
    let ticket = queue.submit(&[]).expect("an empty batch must succeed as the first submission of a queue");
    assert_eq!(ticket.value, 1, "the first ticket of a queue must be 1");
    cx.wait(ticket);
}

pub(super) fn batches_of_mixed_directions(cx: &Context<'_>) {
    const PART: usize = 8192;
    let mut scene = Scene::new(cx, 4 * PART, 2 * PART);
    let mut random = SplitMix64::new(7);
    for round in 0..20 {
        // Uploads write the first quarter of device memory. Internal copies read the second quarter and write
        // the third. Downloads read the last.
        let mut batch = Vec::new();
        for place in (0..PART - 400).step_by(400) {
            let mut near = |part: usize| part * PART + place + random.index(200);
            let (a, b, c) = (near(0), near(1), near(2));
            let (d, from, to) = (near(3), near(0), near(1));
            let bytes = [(); 3].map(|()| random.index(200));
            batch.push(scene.upload(from, a, bytes[0]));
            batch.push(scene.internal(b, c, bytes[1]));
            batch.push(scene.download(d, to, bytes[2]));
        }
        for i in (1..batch.len()).rev() {
            batch.swap(i, random.index(i + 1));
        }
        scene.submit(&batch);
        // Each of these requests reads bytes that the batch wrote.
        scene.submit(&[scene.internal(0, 3 * PART, PART)]);
        scene.submit(&[scene.download(2 * PART, 0, PART)]);
        scene.submit(&[scene.upload(PART, PART, PART)]);
        if round % 5 == 4 {
            scene.assert_as_expected("batches of mixed directions");
        }
    }
}

pub(super) fn batches_of_thousands_of_pieces(cx: &Context<'_>) {
    const PIECES: usize = 3000;
    let mut scene = Scene::new(cx, PIECES * 100, PIECES * 100);
    for bytes in [1, 8, 50] {
        // The copies are in reverse order, so the device cannot merge adjacent ones. The next batch has
        // ascending copies, so the device can merge all of them.
        let reverse: Vec<_> =
            (0..PIECES).map(|k| scene.upload(k * 100, (PIECES - 1 - k) * 100, bytes)).collect();
        scene.submit(&reverse);
        scene.assert_as_expected(&format!("a batch of {PIECES} uploads of {bytes} bytes"));
        let back: Vec<_> = (0..PIECES).map(|k| scene.download(k * bytes + 1, k * bytes, bytes)).collect();
        scene.submit(&back);
        scene.assert_as_expected(&format!("a batch of {PIECES} downloads of {bytes} bytes"));
        let half = PIECES * 50;
        let within: Vec<_> =
            (0..PIECES).map(|k| scene.internal(k * 49, half + k * 50, bytes.min(49))).collect();
        scene.submit(&within);
        scene.assert_as_expected(&format!("a batch of {PIECES} internal copies of {bytes} bytes"));
    }
}

pub(super) fn batches_that_read_one_place_many_times(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 20_000, 20_000);
    let mut batch = Vec::new();
    for k in 0..40 {
        batch.push(scene.upload(5, 1000 + k * 100, 100));
        batch.push(scene.internal(7, 10_000 + k * 100, 99));
        batch.push(scene.download(9, 10_000 + k * 100, 98));
    }
    scene.submit(&batch);
    scene.assert_as_expected("a batch that reads the same bytes again and again");
}

pub(super) fn batches_of_unequal_pieces(cx: &Context<'_>) {
    let large = 1 << 20;
    let mut scene = Scene::new(cx, large + 70_000, large + 70_000);
    for order in 0..2 {
        let mut sizes = vec![large - 3, 1, 0, 4097, 2, 30_001, 64, 0, 7, 8191];
        if order == 1 {
            sizes.reverse();
        }
        let mut batch = Vec::new();
        let mut at = order;
        for bytes in sizes {
            batch.push(scene.upload(at + 1, at, bytes));
            at += bytes + order;
        }
        scene.submit(&batch);
        scene.assert_as_expected("a batch of pieces between 0 bytes and a MiB");
    }
}

pub(super) fn copies_by_every_route(cx: &Context<'_>) {
    const PIECES: usize = 300;
    const ROOM: usize = 200;
    let mut scene = Scene::new(cx, PIECES * ROOM, PIECES * ROOM);
    let all = [Route::Single, Route::Batch, Route::Kernel];
    // A device must ignore a requested route that it does not have.
    assert!(
        cx.device().routes().iter().all(|route| all.contains(route)),
        "the device lists an unknown route"
    );
    let before = cx.device().routing();
    for route in all {
        cx.device().set_routing(Routing::only(route));
        for (number, pieces) in [0, 1, 2, 9, PIECES].into_iter().enumerate() {
            // The copies are in reverse order, so the device cannot merge adjacent ones.
            let place = |k: usize| (PIECES - 1 - k) * ROOM + number;
            let bytes = |k: usize| (k * 7 + number) % (ROOM - 8);
            let up: Vec<_> = (0..pieces).map(|k| scene.upload(k * ROOM + 3, place(k), bytes(k))).collect();
            let down: Vec<_> =
                (0..pieces).map(|k| scene.download(k * ROOM + 5, place(k), bytes(k))).collect();
            scene.submit_by(route, &up);
            scene.submit_by(route, &down);
            scene.assert_as_expected(&format!("{pieces} copies by the route {route:?}"));
            scene.submit(&up);
            scene.submit(&down);
            scene.assert_as_expected(&format!("{pieces} copies by a table with the route {route:?}"));
        }
        // One call copies in both directions.
        let half = PIECES * ROOM / 2;
        let both: Vec<_> = (0..PIECES / 2)
            .flat_map(|k| {
                [scene.upload(k * ROOM, k * ROOM, 50), scene.download(half + k * ROOM, half + k * ROOM, 60)]
            })
            .collect();
        scene.submit_by(route, &both);
        scene.assert_as_expected(&format!("copies both ways by the route {route:?}"));
    }
    cx.device().set_routing(before);
}
