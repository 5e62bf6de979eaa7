//! Tests of files of arrays that other programs or other arrays change.

use std::io::Write;
use std::ops::ControlFlow;

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::store::StoreDevice;
use vmarray::support::private_dir;
use vmarray::{file::SaveOptions, prelude::*};

use crate::stored::{Files, of_device};

fn kind_of(error: &vmarray::Error) -> DeviceErrorKind {
    of_device(error).unwrap_or_else(|| panic!("{error}"))
}

/// `sync`, `open` and `check` report the change and name the file.
#[test]
fn a_file_that_another_program_changes_is_noticed() {
    const CORRUPTED: DeviceErrorKind = DeviceErrorKind::Corrupted;
    let files = Files::new(1);
    let path = &files.0[0];
    for how in ["cut", "lengthened", "replaced"] {
        let array = VirtualArray::<u64>::create(path, 100_000).unwrap();
        array.fill(.., 7).unwrap();
        array.sync().unwrap();
        let file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        match how {
            "cut" => file.set_len(100_000).unwrap(),
            "lengthened" => (&file).write_all(&[0; 10]).unwrap(),
            _ => {
                let other = path.with_extension("other");
                std::fs::write(&other, b"other").unwrap();
                std::fs::rename(&other, path).unwrap();
            }
        }
        let error = array.sync().unwrap_err();
        assert_eq!(kind_of(&error), CORRUPTED, "{how}");
        let (name, text) = (path.file_name().unwrap().to_str().unwrap(), error.to_string());
        let said = if how == "replaced" { "replaced this file" } else { how };
        assert!(text.contains(name) && text.contains(said), "{text}");
        drop(array);
        std::fs::remove_file(path).unwrap();
    }
    // Test the same while the file is closed.
    VirtualArray::<u64>::create(path, 100_000).unwrap().fill(.., 7).unwrap();
    let length = std::fs::metadata(path).unwrap().len();
    for changed in [length - 1, length + 1] {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(changed).unwrap();
        for error in
            [VirtualArray::<u64>::open(path).unwrap_err(), StoreDevice::check(path).unwrap_err().into()]
        {
            assert_eq!(kind_of(&error), CORRUPTED);
            assert!(error.to_string().contains(&changed.to_string()), "{error}");
        }
        file.set_len(length).unwrap();
    }
    assert_eq!(VirtualArray::<u64>::open(path).unwrap().get(99_999).unwrap(), 7);
}

#[test]
fn a_save_onto_an_open_array_is_refused() {
    const IN_USE: DeviceErrorKind = DeviceErrorKind::InUse;
    let files = Files::new(1);
    let path = &files.0[0];
    let other = VirtualArray::<u64>::builder(10).build().unwrap();
    let array = VirtualArray::<u64>::create(path, 100).unwrap();
    array.fill(.., 7).unwrap();
    let error = other.save(path).unwrap_err();
    assert_eq!(kind_of(&error), IN_USE, "{error}");
    assert_eq!(kind_of(&array.save(path).unwrap_err()), IN_USE);
    array.sync().unwrap();
    drop(array);
    let reader = VirtualArray::<u64>::builder(0).open_read_only([&path]).unwrap();
    assert_eq!(kind_of(&other.save(path).unwrap_err()), IN_USE);
    assert_eq!(reader.get(99).unwrap(), 7);
    drop(reader);
    // Another array opens the file during a save.
    let mut opened = None;
    let saved = other.save_with(path, SaveOptions::new(), |_| {
        opened = Some(VirtualArray::<u64>::open(path).unwrap());
        ControlFlow::Continue(())
    });
    assert_eq!(kind_of(&saved.unwrap_err()), IN_USE);
    assert_eq!(opened.take().unwrap().get(99).unwrap(), 7);
    other.save(path).unwrap();
    assert_eq!(VirtualArray::<u64>::open(path).unwrap().len(), 10);
}

#[test]
fn a_save_that_panics_leaves_no_file() {
    let folder = std::env::temp_dir().join(private_dir::random_name());
    std::fs::create_dir(&folder).unwrap();
    let array = VirtualArray::<u64>::builder(1000).build().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        array.save_with(folder.join("a"), SaveOptions::new(), |_| panic!("in the progress function"))
    }));
    assert!(panicked.is_err());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn places_behind_the_length_are_used_again() {
    let files = Files::new(1);
    let path = &files.0[0];
    let mut array =
        VirtualArray::<u64>::builder(0).page_len(512).cache_bytes(64 << 10).create([&path]).unwrap();
    array.sync().unwrap();
    for round in 0..8 {
        array.resize(512 * 512, round + 1).unwrap();
        array.truncate(512).unwrap();
    }
    array.resize(512 * 512, 9).unwrap();
    array.sync().unwrap();
    let length = std::fs::metadata(path).unwrap().len();
    assert!(length < 5 << 20, "{length} bytes for 2 MiB");
    drop(array);
    let array = VirtualArray::<u64>::open(path).unwrap();
    assert!(array.to_vec(..).unwrap()[512..].iter().all(|value| *value == 9));
}

#[test]
fn advice_of_files_fits() {
    let text = |error: vmarray::Error| error.to_string();
    let none = std::env::temp_dir().join(format!("none{}", private_dir::random_name()));
    let missing = text(VirtualArray::<u64>::open(&none).unwrap_err());
    assert!(missing.contains("that exists") && !missing.contains("drive"), "{missing}");
    let folder = text(VirtualArray::<u64>::create(none.join("a"), 10).unwrap_err());
    assert!(folder.contains("folder") && !folder.contains("drive"), "{folder}");
    let array = VirtualArray::<u64>::builder(10).build().unwrap();
    let saved = text(array.save(none.join("a")).unwrap_err());
    assert!(saved.contains("folder") && !saved.contains("/.vmarray-"), "{saved}");
    let dir = text(VirtualArray::<u64>::open(std::env::temp_dir()).unwrap_err());
    assert!(dir.contains("regular file"), "{dir}");
}
