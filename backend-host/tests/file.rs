//! What a file promises beyond the contract.

// Ranges of a file are often a list of one.
#![allow(clippy::single_range_in_vec_init)]

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Scatter, Search,
    Ticket, Transfer,
};
use backend_host::FileDevice;

/// A path of this test's own, without a file; the file that comes is removed in the end.
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
fn the_same_layout_finds_its_bytes_again() {
    let path = Path::new("layout");
    {
        let rig = Rig::new(FileDevice::create(&path.0, 10_000).unwrap());
        let (a, b) = (rig.buffer(3_000), rig.buffer(5_001));
        rig.upload(&a, 10, b"first").unwrap();
        rig.upload(&b, 4_990, b"second").unwrap();
        rig.device.sync().unwrap();
    }
    // Byte for byte, without a header.
    let bytes = fs::read(&path.0).unwrap();
    assert_eq!(bytes.len(), 10_000);
    assert_eq!((&bytes[10..15], &bytes[7_990..7_996]), (&b"first"[..], &b"second"[..]));

    let rig = Rig::new(FileDevice::open(&path.0).unwrap());
    assert_eq!(rig.device.info().total_bytes, 10_000);
    let (a, b) = (rig.buffer(3_000), rig.buffer(5_001));
    assert_eq!(rig.device.file_ranges(b.id()).unwrap(), [3_000..8_001]);
    assert_eq!(rig.download(&a, 10, 5).unwrap(), b"first");
    assert_eq!(rig.download(&b, 4_990, 6).unwrap(), b"second");
}

#[test]
fn a_place_that_is_known_can_be_asked_for() {
    let path = Path::new("place");
    fs::write(&path.0, b"0123456789").unwrap();
    let rig = Rig::new(FileDevice::open(&path.0).unwrap());
    let memory = rig.device.allocate_at(4, 3).unwrap();
    let download = Transfer::Download { from: memory.at(0), to: rig.host.at(0), bytes: 3 };
    rig.device.wait(rig.queue.submit(&[download]).unwrap()).unwrap();
    let mut bytes = [0; 3];
    rig.host.read(0, &mut bytes);
    assert_eq!(&bytes, b"456");
    // What is left is in two pieces, and is one buffer all the same.
    let rest = rig.buffer(7);
    assert_eq!(rig.device.file_ranges(rest.id()).unwrap(), [0..4, 7..10]);
    assert_eq!(rig.download(&rest, 2, 4).unwrap(), b"2378");
    rig.upload(&rest, 3, b"ab").unwrap();
    assert_eq!(fs::read(&path.0).unwrap(), b"012a456b89");
    let id = memory.id();
    rig.device.release(memory);
    assert_eq!(rig.device.file_ranges(id).unwrap_err().kind(), ErrorKind::UnknownHandle);
}

#[test]
fn what_was_opened_for_reading_is_not_written_to() {
    let path = Path::new("read-only");
    fs::write(&path.0, [7; 100]).unwrap();
    let rig = Rig::new(FileDevice::open_read_only(&path.0).unwrap());
    let (a, b) = (rig.buffer(50), rig.buffer(50));
    let elements = Elements { start: a.at(0), count: 5, stride: 10 };
    let values = rig.host.at(1024);
    let refusals = [
        rig.queue.submit(&[Transfer::Upload { from: rig.host.at(0), to: a.at(0), bytes: 1 }]),
        rig.queue.submit(&[Transfer::Internal { from: a.at(0), to: b.at(0), bytes: 1 }]),
        rig.queue.fill(&Fill { to: a.at(0), bytes: 1, pattern: b"x" }),
        rig.queue.scatter(&Scatter { elements, indices: rig.host.at(0), count: 1, values }),
    ];
    for refusal in refusals {
        assert_eq!(refusal.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(rig.download(&b, 49, 1).unwrap(), [7]);
    assert_eq!(fs::read(&path.0).unwrap(), [7; 100]);
}

#[test]
fn two_devices_do_not_write_to_one_file() {
    let path = Path::new("two");
    let first = FileDevice::create(&path.0, 100).unwrap();
    for second in [FileDevice::open(&path.0), FileDevice::open_read_only(&path.0)] {
        let error = second.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.detail().contains("in use"), "{error}");
    }
    drop(first);
    let readers = [(); 3].map(|()| FileDevice::open_read_only(&path.0).unwrap());
    assert!(FileDevice::open(&path.0).is_err());
    drop(readers);
    FileDevice::open(&path.0).unwrap();
}

#[test]
fn a_file_that_is_cut_short_gives_errors_for_what_is_gone_and_nothing_else() {
    let path = Path::new("truncated");
    let rig = Rig::new(FileDevice::create(&path.0, 20_000).unwrap());
    let buffer = rig.buffer(20_000);
    rig.upload(&buffer, 0, &[5; 20_000]).unwrap();
    OpenOptions::new().write(true).open(&path.0).unwrap().set_len(10_000).unwrap();

    let error = rig.download(&buffer, 9_000, 2_000).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::CopyFailed, Some(10_000)));
    assert!(error.detail().contains("truncated from 20000 to 10000"), "{error}");
    // A write would make the file long again and hide the loss.
    assert_eq!(rig.upload(&buffer, 15_000, &[1]).unwrap_err().kind(), ErrorKind::CopyFailed);
    assert_eq!(fs::metadata(&path.0).unwrap().len(), 10_000);
    let fill = rig.queue.fill(&Fill { to: buffer.at(19_999), bytes: 1, pattern: b"x" }).unwrap();
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
        let ticket = rig.queue.search(&search).unwrap();
        assert_eq!(rig.device.wait(ticket).unwrap_err().kind(), ErrorKind::KernelFailed);
    }
    // What is still there is as good as before.
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
    assert!(!path.0.exists());
}

#[test]
#[cfg(target_os = "linux")]
fn holes_without_room_on_the_disk_are_an_error_at_opening() {
    let path = Path::new("holes");
    File::create(&path.0).unwrap().set_len(1 << 42).unwrap();
    assert_eq!(FileDevice::open(&path.0).unwrap_err().kind(), ErrorKind::OutOfMemory);
    // To read them takes no room.
    let rig = Rig::new(FileDevice::open_read_only(&path.0).unwrap());
    let buffer = rig.buffer(1 << 42);
    assert_eq!(rig.download(&buffer, (1 << 42) - 4, 4).unwrap(), [0; 4]);
}

#[test]
fn files_that_are_not_there_and_folders_are_errors() {
    let path = Path::new("absent");
    let error = FileDevice::open(&path.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.detail().contains("absent"), "{error}");
    assert_eq!(
        FileDevice::open_read_only(env!("CARGO_TARGET_TMPDIR")).unwrap_err().kind(),
        ErrorKind::System
    );
    assert_eq!(FileDevice::create(path.0.join("below"), 1).unwrap_err().kind(), ErrorKind::System);
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
