//! Random programs during which a device is lost. Without redundancy exactly its pages are lost and all other
//! work continues; with mirrors no operation fails.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vmarray::device::wrap::Fault;
use vmarray::device::{Device, ErrorKind as DeviceErrorKind};
use vmarray::explain::Work;
use vmarray::home::ReplicaState;
use vmarray::host::SimulatedDevice;
use vmarray::kernel::Own;
use vmarray::prelude::*;
use vmarray::{Error, ErrorKind, Placement, Result};

use crate::common::{Numbers, Shape, as_any, changed_ranges};

const VALUE: Field<u32, u32> = Field::whole();

fn card(seed: u64) -> Arc<SimulatedDevice> {
    let latency = Duration::from_micros(seed % 40);
    Arc::new(SimulatedDevice::builder(seed).bytes(1 << 20).latency(latency).build())
}

#[vmarray::kernel]
fn add(by: u32, x: &mut Own<u32>) {
    x.set(x.get() + by);
}

/// Possible values of each element; any value if the list is empty.
struct Model {
    values: Vec<Vec<u32>>,
    page_len: usize,
    /// True for channels whose device is lost, or about to be, without a replacement.
    lost: Vec<bool>,
}

impl Model {
    fn is_lost(&self, index: usize) -> bool {
        self.lost[index / self.page_len % self.lost.len()]
    }

    fn saw(&mut self, index: usize, value: u32) {
        let known = &mut self.values[index];
        assert!(
            known.is_empty() || known.contains(&value),
            "element {index} is {value}, not one of {known:?}"
        );
        *known = vec![value];
    }

    fn read(&mut self, indices: &[usize], read: Result<Vec<u32>>) {
        match read {
            Ok(values) => {
                assert_eq!(values.len(), indices.len());
                indices.iter().zip(values).for_each(|(index, value)| self.saw(*index, value));
            }
            Err(error) => self.excuse(indices, &error),
        }
    }

    /// Checks that a failed operation used elements of the lost device.
    fn excuse(&self, touched: &[usize], error: &Error) {
        let cause = error.device_error().unwrap_or_else(|| panic!("{error}"));
        assert_eq!(cause.kind(), DeviceErrorKind::Lost, "{error}");
        assert!(touched.iter().any(|index| self.is_lost(*index)), "nothing of {touched:?} is lost: {error}");
    }

    /// Elements were changed one by one. On remaining devices a failed change leaves the old or the new
    /// value. Errors name elements of a view that begins at `start`.
    fn changed(
        &mut self,
        indices: &[usize],
        start: usize,
        result: Result<()>,
        change: impl Fn(usize, Option<u32>) -> Option<u32>,
    ) {
        let failed = result.err().inspect(|error| self.excuse(indices, error));
        for range in failed.as_ref().map(|error| changed_ranges(error).1).into_iter().flatten() {
            let mut range = range.start + start..range.end + start;
            assert!(range.all(|index| self.is_lost(index)), "{failed:?}");
        }
        for (place, &index) in indices.iter().enumerate() {
            let was = std::mem::take(&mut self.values[index]);
            let mut is: Vec<u32> = match &was[..] {
                [] => change(place, None).into_iter().collect(),
                all => all.iter().filter_map(|value| change(place, Some(*value))).collect(),
            };
            self.values[index] = match &failed {
                None => is,
                Some(_) if self.is_lost(index) || was.is_empty() => Vec::new(),
                Some(_) => {
                    is.extend(was);
                    is
                }
            };
        }
    }

    /// Elements were overwritten.
    fn wrote(&mut self, indices: &[usize], values: &[u32], result: Result<()>) {
        self.changed(indices, 0, result, |place, _| Some(values[place % values.len()]));
    }
}

fn step(array: &VirtualArray<u32>, model: &mut Model, random: &mut Numbers) {
    let len = array.len();
    let at = random.below(len);
    // Choose ranges of one or two pages as often as all other lengths together.
    let range = match random.below(2) {
        0 => random.range(len),
        _ => at..(at + 1 + random.below(2 * model.page_len)).min(len),
    };
    let within: Vec<usize> = range.clone().collect();
    let value = 1 + random.below(6) as u32;
    match random.below(20) {
        0..3 => model.read(&[at], array.get(at).map(|value| vec![value])),
        3 => model.read(&[at], array.get_uncached(at).map(|value| vec![value])),
        4..7 => model.wrote(&[at], &[value], array.set(at, value)),
        7 => model.wrote(&[at], &[value], array.set_uncached(at, value)),
        8 => {
            let more = |value: u32| value.wrapping_mul(3);
            let result = array.update(at, more).map(drop);
            model.changed(&[at], 0, result, |_, value| value.map(more));
        }
        9 => {
            let values: Vec<u32> = within.iter().map(|index| value + *index as u32 % 3).collect();
            let result = array.write(range.start, &values);
            model.wrote(&within, &values, result);
        }
        10 => model.read(&within, array.to_vec(range)),
        11 => model.wrote(&within, &[value], array.fill(range, value)),
        12 => {
            let list: Vec<usize> = (0..random.below(40)).map(|_| random.below(len)).collect();
            model.read(&list, array.gather(&list));
        }
        13 => {
            let list: Vec<usize> = (0..random.below(40)).map(|_| random.below(len)).collect();
            let values: Vec<u32> = list.iter().map(|_| random.below(9) as u32).collect();
            let result = array.scatter(&list, &values);
            model.wrote(&list, &values, result);
        }
        14 => {
            let section = array.section(range.clone()).unwrap();
            match section.find(VALUE, &value) {
                Ok(found) => {
                    let is_found = |index: &usize| found.contains(&(index - range.start));
                    let sure = within.iter().filter(|index| model.values[**index] == [value]);
                    assert!(sure.into_iter().all(is_found));
                    found.iter().for_each(|place| model.saw(range.start + place, value));
                }
                Err(error) => model.excuse(&within, &error),
            }
        }
        15 => {
            let known: Option<i128> = within
                .iter()
                .map(|index| match model.values[*index][..] {
                    [value] => Some(i128::from(value)),
                    _ => None,
                })
                .sum();
            match array.sum(range, VALUE) {
                Ok(sum) => assert_eq!(sum, known.unwrap_or(sum)),
                Err(error) => model.excuse(&within, &error),
            }
        }
        16 => {
            let result = array.transform(range, VALUE.set(VALUE + value));
            model.changed(&within, 0, result, |_, was| Some(was?.wrapping_add(value)));
        }
        17 => {
            let result = add::run((value, array.section_mut(range.clone()).unwrap()));
            model.changed(&within, range.start, result, |_, was| Some(was?.wrapping_add(value)));
        }
        18 => {
            let to = random.below(len - range.len() + 1);
            let targets: Vec<usize> = (to..to + range.len()).collect();
            let both: Vec<usize> = within.iter().chain(&targets).copied().collect();
            let sources: Vec<_> = within.iter().map(|index| model.values[*index].clone()).collect();
            match array.copy_from(to, array.section(range).unwrap()) {
                Ok(()) => targets.iter().zip(sources).for_each(|(to, value)| model.values[*to] = value),
                Err(error) => {
                    model.excuse(&both, &error);
                    for (to, mut value) in targets.into_iter().zip(sources) {
                        let is_lost = model.is_lost(to);
                        let was = &mut model.values[to];
                        if is_lost || value.is_empty() || was.is_empty() {
                            was.clear();
                        } else {
                            was.append(&mut value);
                        }
                    }
                }
            }
        }
        _ => {
            let result = match random.below(3) {
                0 => array.flush(range),
                1 => array.evict(range),
                _ => array.prefetch(range),
            };
            if let Err(error) = result {
                model.excuse(&within, &error);
            }
        }
    }
}

/// The pages of a lost device: in frames, and lost. The array reports their numbers. All have contents.
fn lost_pages(array: &VirtualArray<u32>) -> (Vec<usize>, Vec<usize>) {
    let homes = array.homes();
    let is_lost = |page: &usize| homes[page % homes.len()].replicas[0].state == ReplicaState::Lost;
    let is_resident = |page: &usize| array.explain(array.page_range(*page), Work::Ask).unwrap().resident == 1;
    let (in_frames, gone): (Vec<_>, Vec<_>) = (0..array.page_count()).filter(is_lost).partition(is_resident);
    assert_eq!(homes.iter().map(|home| home.lost_pages).sum::<u64>(), gone.len() as u64);
    (in_frames, gone)
}

/// Compares the reported lost pages with the results of reads.
fn assert_homes(array: &VirtualArray<u32>, model: &mut Model) {
    let (in_frames, mut unread) = lost_pages(array);
    for page in in_frames {
        let mut range = array.page_range(page);
        // Read everything in one call: between two reads a prefetch could take the frame.
        match array.to_vec(range.clone()) {
            Ok(values) => range.zip(values).for_each(|(index, value)| model.saw(index, value)),
            // The page was in transit to its frame when the device was lost, and did not arrive.
            Err(_) => {
                assert!(range.all(|index| array.get(index).is_err()));
                unread.push(page);
            }
        }
    }
    // A failed load may have taken the frame of a page that was read before.
    let (_, gone) = lost_pages(array);
    assert!(unread.iter().all(|page| gone.contains(page)));
    for page in gone {
        let range = array.page_range(page);
        let error = array.get(range.start).unwrap_err();
        model.excuse(&[range.start], &error);
        range.for_each(|index| model.values[index].clear());
    }
}

/// Loses a device: between two operations, or with a later submission.
fn lose(card: &SimulatedDevice, random: &mut Numbers) {
    match random.below(2) {
        0 => card.lose(),
        _ => {
            let call = 1 + random.below(12) as u64;
            card.inject(Fault::anywhere(DeviceErrorKind::Lost).on_call(call));
        }
    }
}

fn array(
    random: &mut Numbers,
    cards: &[Arc<SimulatedDevice>],
    placement: impl FnOnce(Vec<u32>) -> Placement,
) -> (VirtualArray<u32>, Model) {
    let mut shape = Shape::any(random, 19, 4);
    shape.channels.resize(cards.len(), 1);
    shape.channels[random.below(cards.len())] += 1;
    let len = 1 + random.below(300);
    let builder = shape.describe::<u32, _>(len, cards.to_vec()).placement(placement(shape.channels.clone()));
    let array = builder.build().unwrap();
    let values: Vec<u32> = (0..len).map(|_| random.below(6) as u32).collect();
    array.write(0, &values).unwrap();
    let values = values.into_iter().map(|value| vec![value]).collect();
    let lost = vec![false; array.homes().len()];
    (array, Model { values, page_len: shape.page_len, lost })
}

/// Runs a program over one to five devices; one is lost.
fn unprotected(seed: u64, steps: usize) {
    let mut random = Numbers::new(seed);
    let cards: Vec<_> = (0..1 + random.next() % 5).map(|number| card(seed.wrapping_add(number))).collect();
    let (array, mut model) = array(&mut random, &cards, Placement::Ratios);
    let (lost, at) = (random.below(cards.len()), random.below(steps));
    for turn in 0..steps {
        if turn == at {
            let name = as_any(&cards[lost]).info().to_string();
            model.lost = array.homes().iter().map(|home| home.replicas[0].device == name).collect();
            lose(&cards[lost], &mut random);
            assert_homes(&array, &mut model);
        }
        step(&array, &mut model, &mut random);
    }
    cards[lost].lose();
    assert_homes(&array, &mut model);
    // All other elements keep their values, and accept new values.
    let (_, others): (Vec<_>, Vec<_>) = (0..array.len()).partition(|index| model.is_lost(*index));
    for &index in &others {
        model.saw(index, array.get(index).unwrap());
        array.set(index, 7).unwrap();
    }
    assert!(others.iter().all(|index| array.get(*index).unwrap() == 7));
}

/// Runs a program over devices with redundancy; one is lost and replaced, and then another one lost.
fn protected(seed: u64, steps: usize) {
    let mut random = Numbers::new(seed);
    let count = 2 + random.next() % 4;
    let mut cards: Vec<_> = (0..count).map(|number| card(seed.wrapping_add(number))).collect();
    let (array, mut model) = array(&mut random, &cards, |_| Placement::Mirrored);
    let mut turns = [random.below(steps), random.below(steps), random.below(steps)];
    turns.sort_unstable();
    let lost = random.below(cards.len());
    let next = (lost + 1 + random.below(cards.len() - 1)) % cards.len();
    for turn in 0..steps {
        if turn == turns[0] {
            lose(&cards[lost], &mut random);
        }
        if turn == turns[1] {
            cards[lost].lose();
            cards[lost] = card(!seed);
            if let Err(error) = array.rebuild(as_any(&cards[lost])) {
                // The pages of a short array have mirrors on only some of the devices.
                assert!(matches!(error.kind(), ErrorKind::MirrorRefused { .. }), "{error}");
                let mut replicas = array.homes().into_iter().flat_map(|home| home.replicas);
                assert!(replicas.all(|replica| replica.state == ReplicaState::Current));
            }
        }
        if turn == turns[2] {
            lose(&cards[next], &mut random);
        }
        step(&array, &mut model, &mut random);
    }
    assert!(array.homes().iter().all(|home| home.lost_pages == 0));
    let all: Vec<usize> = (0..array.len()).collect();
    array.evict(..).unwrap();
    model.read(&all, array.to_vec(..));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: backend_api::wrap::random_cases(150), ..ProptestConfig::default() })]

    #[test]
    fn a_program_goes_on_without_the_pages_of_a_lost_device(seed in any::<u64>(), steps in 1..60_usize) {
        unprotected(seed, steps);
    }

    #[test]
    fn a_program_over_mirrors_does_not_notice_a_loss(seed in any::<u64>(), steps in 1..60_usize) {
        protected(seed, steps);
    }
}
