//! The recording of an array's work, compared with its statistics.

use std::sync::Arc;

use backend_host::SimulatedDevice;

use super::recording::Recording;
use crate::prelude::*;

/// Returns the whole numbers behind a key, in all lines that contain a text.
fn numbers(trace: &str, text: &str, key: &str) -> Vec<u64> {
    let lines = trace.lines().filter(|line| line.contains(text));
    let number = |line: &str| {
        let rest = &line[line.find(key)? + key.len()..];
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    lines.filter_map(number).collect()
}

#[test]
fn a_recording_matches_the_statistics() {
    let device = Arc::new(SimulatedDevice::builder(4711).build());
    let builder = VirtualArray::<u32>::builder(6400).devices([device]).page_len(64).read_ahead(false);
    let array = builder.frames_per_channel(10).build().unwrap();
    array.set(0, 1).unwrap();
    // Other tests of this process may use arrays meanwhile, but none of them records.
    let recording = Recording::begin().unwrap();
    assert!(Recording::begin().is_none());
    let watch = array.watch();
    for index in (0..6400).step_by(64) {
        array.set(index, 7).unwrap();
    }
    for index in (0..6400).step_by(64) {
        assert_eq!(array.get(index).unwrap(), 7);
    }
    array.transform(.., Field::whole().set(Field::whole() + 1)).unwrap();
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 100 * 7 + 6400);
    let total = watch.report().stats.total();
    let mut trace = Vec::new();
    recording.write(&mut trace).unwrap();
    let trace = String::from_utf8(trace).unwrap();
    let device = array.pager().channels()[0].device().info().to_string();
    let own = numbers(&trace, &device, "\"pid\":")[0];
    let of = |what: &str, key: &str| -> u64 {
        let lines: Vec<&str> =
            trace.lines().filter(|line| line.contains(&format!("\"pid\":{own},"))).collect();
        numbers(&lines.join("\n"), &format!("\"name\":\"{what}\""), key).iter().sum()
    };
    let fetched = total.misses - 99;
    assert_eq!((of("fetch", "\"pieces\":"), of("fetch", "\"bytes\":")), (fetched, 256 * fetched), "{trace}");
    assert_eq!(of("write", "\"bytes\":"), total.bytes_to_device, "{trace}");
    assert_eq!(of("question", "\"bytes\":") + of("change", "\"bytes\":"), total.bytes_in_place, "{trace}");
    assert!(numbers(&trace, "\"name\":\"miss\"", "\"pages\":").len() as u64 >= total.misses);
    assert!(numbers(&trace, "\"name\":\"evicted\"", "\"pages\":").iter().sum::<u64>() >= total.evictions);
    // Braces and quotes match, and no recording is left.
    assert_eq!(trace.matches('{').count(), trace.matches('}').count());
    assert_eq!(trace.matches('"').count() % 2, 0);
    array.get(5).unwrap();
    let mut empty = Vec::new();
    Recording::begin().unwrap().write(&mut empty).unwrap();
    assert_eq!(String::from_utf8(empty).unwrap().lines().count(), 3);
}
