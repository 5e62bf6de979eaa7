//! Tests of guarantees that only file devices give, in addition to the rules of all devices.

// A list of file ranges often contains a single range.
#![allow(clippy::single_range_in_vec_init)]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Search, Ticket,
    Transfer,
};
use vmarray_store::FileDevice;

/// A path for this test, without a file; the file is removed at the end.
struct Path(PathBuf);

impl Path {
    fn new(test: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

struct Rig {
    device: Arc<FileDevice>,
    queue: Queue<FileDevice>,
    host: HostBuffer<FileDevice>,
}

impl Rig {
    fn new(device: FileDevice) -> Self {
        let device = Arc::new(device);
        Self {
            queue: Queue::new(&device).unwrap(),
            host: HostBuffer::new(&device, 1 << 16, HostMemory::Pageable).unwrap(),
            device,
        }
    }

    fn buffer(&self, bytes: u64) -> DeviceBuffer<FileDevice> {
        DeviceBuffer::new(&self.device, bytes, Commit::Lazy).unwrap()
    }

    fn upload(
        &self,
        to: &DeviceBuffer<FileDevice>,
        offset: u64,
        bytes: &[u8],
    ) -> backend_api::Result<Ticket> {
        self.host.write(0, bytes);
        let upload = Transfer::Upload { from: self.host.at(0), to: to.at(offset), bytes: bytes.len() as u64 };
        let ticket = self.queue.submit(&[upload])?;
        self.device.wait(ticket).map(|()| ticket)
    }

    fn download(
        &self,
        from: &DeviceBuffer<FileDevice>,
        offset: u64,
        bytes: usize,
    ) -> backend_api::Result<Vec<u8>> {
        let download = Transfer::Download { from: from.at(offset), to: self.host.at(0), bytes: bytes as u64 };
        self.device.wait(self.queue.submit(&[download])?)?;
        let mut answer = vec![0; bytes];
        self.host.read(0, &mut answer);
        Ok(answer)
    }
}

#[test]
fn the_file_is_the_memory_byte_for_byte() {
    let path = Path::new("layout");
    let rig = Rig::new(FileDevice::create(&path.0, 10_000).unwrap());
    let (a, b) = (rig.buffer(3_000), rig.buffer(5_001));
    rig.upload(&a, 10, b"first").unwrap();
    rig.upload(&b, 4_990, b"second").unwrap();
    rig.device.sync().unwrap();
    let bytes = fs::read(&path.0).unwrap();
    assert_eq!(bytes.len(), 10_000);
    assert_eq!((&bytes[10..15], &bytes[7_990..7_996]), (&b"first"[..], &b"second"[..]));
    // The remaining space consists of two pieces, which become one buffer.
    drop(a);
    let rest = rig.buffer(4_999);
    assert_eq!(rig.device.file_ranges(rest.id()).unwrap(), [0..3_000, 8_001..10_000]);
    rig.upload(&rest, 2_998, b"pieces").unwrap();
    assert_eq!(rig.download(&rest, 2_998, 6).unwrap(), b"pieces");
    let bytes = fs::read(&path.0).unwrap();
    assert_eq!((&bytes[2_998..3_000], &bytes[8_001..8_005]), (&b"pi"[..], &b"eces"[..]));
}

#[test]
fn existing_files_are_never_opened_nor_changed() {
    let (path, empty, folder) = (Path::new("exists"), Path::new("empty"), Path::new("folder"));
    fs::write(&path.0, b"precious").unwrap();
    fs::write(&empty.0, b"").unwrap();
    fs::create_dir_all(&folder.0).unwrap();
    for path in [&path, &empty, &folder] {
        for bytes in [0, 8, 1 << 20] {
            let error = FileDevice::create(&path.0, bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
            let text = error.to_string();
            assert!(text.contains(path.0.to_str().unwrap()), "{text}");
            assert!(text.contains("and stays unchanged") && text.ends_with(error.kind().advice()), "{text}");
        }
    }
    assert_eq!(fs::read(&path.0).unwrap(), b"precious");
    assert_eq!(fs::read(&empty.0).unwrap(), b"");
    fs::remove_dir(&folder.0).unwrap();
}

#[test]
#[cfg(unix)]
fn links_are_not_followed() {
    let (file, link, dangling) = (Path::new("linked"), Path::new("link"), Path::new("dangling"));
    fs::write(&file.0, b"precious").unwrap();
    let nowhere = file.0.with_extension("nowhere");
    std::os::unix::fs::symlink(&file.0, &link.0).unwrap();
    std::os::unix::fs::symlink(&nowhere, &dangling.0).unwrap();
    for path in [&link, &dangling] {
        assert_eq!(FileDevice::create(&path.0, 10).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    assert_eq!(fs::read(&file.0).unwrap(), b"precious");
    assert!(!nowhere.exists());
}

#[test]
fn two_devices_never_have_one_file() {
    let path = Path::new("two");
    let rig = Rig::new(FileDevice::create(&path.0, 100).unwrap());
    let buffer = rig.buffer(100);
    rig.upload(&buffer, 0, b"mine").unwrap();
    assert_eq!(FileDevice::create(&path.0, 100).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(rig.download(&buffer, 0, 4).unwrap(), b"mine");
    drop((buffer, rig));
    // Creating it again fails too.
    assert_eq!(FileDevice::create(&path.0, 100).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path.0).unwrap()[..4], *b"mine");
}

#[test]
#[cfg(unix)]
fn the_file_is_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let path = Path::new("mode");
    let _device = FileDevice::create(&path.0, 100).unwrap();
    assert_eq!(fs::metadata(&path.0).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn a_file_that_is_cut_gives_errors_for_the_missing_part_only() {
    let path = Path::new("truncated");
    let rig = Rig::new(FileDevice::create(&path.0, 20_000).unwrap());
    let buffer = rig.buffer(20_000);
    rig.upload(&buffer, 0, &[5; 20_000]).unwrap();
    OpenOptions::new().write(true).open(&path.0).unwrap().set_len(10_000).unwrap();

    let error = rig.download(&buffer, 9_000, 2_000).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::CopyFailed, Some(10_000)));
    assert!(error.detail().contains("truncated from 20000 to 10000"), "{error}");
    assert!(!error.to_string().contains("try again"), "{error}");
    // A write would extend the file again and hide the loss.
    assert_eq!(rig.upload(&buffer, 15_000, &[1]).unwrap_err().kind(), ErrorKind::CopyFailed);
    assert_eq!(fs::metadata(&path.0).unwrap().len(), 10_000);
    let fill = rig.queue.submit(&Fill { to: buffer.at(19_999), bytes: 1, pattern: b"x" }).unwrap();
    assert_eq!(rig.device.wait(fill).unwrap_err().kind(), ErrorKind::KernelFailed);
    for count_all in [false, true] {
        let search = Search {
            elements: Elements { start: buffer.at(0), count: 20_000, stride: 1 },
            field_offset: 0,
            value: &[9],
            limit: 1,
            count_all,
            answer: rig.host.at(0),
        };
        let ticket = rig.queue.submit(&search).unwrap();
        assert_eq!(rig.device.wait(ticket).unwrap_err().kind(), ErrorKind::KernelFailed);
    }
    // The remaining part works as before.
    assert_eq!(rig.download(&buffer, 9_999, 1).unwrap(), [5]);
    rig.upload(&buffer, 9_999, &[6]).unwrap();
    assert_eq!(rig.download(&buffer, 9_999, 1).unwrap(), [6]);
}

#[test]
#[cfg(unix)]
fn a_disk_without_room_is_an_error_at_creation_and_nothing_is_left_behind() {
    let path = Path::new("full");
    let error = FileDevice::create(&path.0, 1 << 42).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(error.bytes(), Some(1 << 42));
    assert!(error.available_bytes().unwrap() < 1 << 42);
    assert!(error.to_string().ends_with("; free space on the disk, or request less"), "{error}");
    assert!(!path.0.exists());
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let path = Path::new("absent");
    for error in [
        FileDevice::create(path.0.join("below"), 1).unwrap_err(),
        FileDevice::builder(&path.0).create_temporary(1).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.detail().contains("absent"), "{error}");
    }
}

#[test]
fn a_temporary_file_leaves_nothing_behind() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("temporary-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let rig = Rig::new(FileDevice::builder(&folder).create_temporary(100).unwrap());
    let buffer = rig.buffer(100);
    assert_eq!(rig.download(&buffer, 0, 100).unwrap(), [0; 100]);
    rig.upload(&buffer, 50, b"x").unwrap();
    assert_eq!(rig.download(&buffer, 50, 1).unwrap(), b"x");
    drop((buffer, rig));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn a_file_of_nothing_is_a_device_of_nothing() {
    let path = Path::new("nothing");
    let device = FileDevice::create(&path.0, 0).unwrap();
    device.release(device.allocate(0, Commit::Proven).unwrap());
    assert_eq!(device.allocate(1, Commit::Lazy).unwrap_err().kind(), ErrorKind::TooLarge);
}

#[test]
fn memory_is_wiped_in_the_file_when_it_is_given_back() {
    let path = Path::new("wiped");
    let rig = Rig::new(FileDevice::create(&path.0, 1 << 20).unwrap());
    let at = |ranges: &[std::ops::Range<u64>]| {
        let bytes = fs::read(&path.0).unwrap();
        ranges
            .iter()
            .flat_map(|range| bytes[range.start as usize..range.end as usize].to_vec())
            .collect::<Vec<u8>>()
    };
    let (first, kept, unwiped) = (rig.buffer(1000), rig.buffer(2000), rig.buffer(1000));
    rig.upload(&kept, 0, &[5; 2000]).unwrap();
    rig.upload(&unwiped, 0, &[6; 1000]).unwrap();
    let ranges = rig.device.file_ranges(unwiped.id()).unwrap();
    drop((first, unwiped));
    assert_eq!(at(&ranges), [6; 1000]);
    rig.device.wipe_on_release().unwrap();
    // The buffer is in two pieces, the second of them longer than a block.
    let split = rig.buffer((1 << 20) - 2000);
    let ranges = rig.device.file_ranges(split.id()).unwrap();
    assert_eq!(ranges.len(), 2);
    for offset in [0, 900, 300_000, (1 << 20) - 2000 - 200] {
        rig.upload(&split, offset, &[7; 200]).unwrap();
    }
    assert!(at(&ranges).contains(&7));
    drop(split);
    assert!(at(&ranges).iter().all(|&byte| byte == 0));
    let ranges = rig.device.file_ranges(kept.id()).unwrap();
    assert_eq!(at(&ranges), [5; 2000]);
    drop((kept, rig));
    assert_eq!(at(&ranges), [0; 2000]);
}

/// The test below runs this in a process of its own.
#[test]
fn child_cannot_wipe() {
    let path = Path::new("unwiped");
    let rig = Rig::new(FileDevice::create(&path.0, 1000).unwrap());
    rig.device.wipe_on_release().unwrap();
    let (first, second) = (rig.buffer(500), rig.buffer(500));
    OpenOptions::new().write(true).open(&path.0).unwrap().set_len(10).unwrap();
    drop((first, second));
}

#[test]
fn a_failed_wipe_is_reported_to_the_operator() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "file::child_cannot_wipe", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("was not wiped before its release"), "{child:?}");
}
