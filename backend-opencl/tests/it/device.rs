//! Tests of properties that the conformance suite cannot check: numbers of commands, and features of OpenCL.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, DeviceKind, Elements, ErrorKind, Fill, Gather, HostBuffer, HostMemory,
    Queue, QueueProgress, Request, Route, Routing, Scatter, Search, Transfer,
};
use backend_opencl::{Discovered, KernelCache, OpenClDevice, OpenClOptions};

use crate::{Scene, chosen, open};

fn u64s(host: &HostBuffer<OpenClDevice>, offset: usize, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    host.read(offset, &mut bytes);
    bytes.chunks_exact(8).map(|eight| u64::from_ne_bytes(eight.try_into().expect("eight bytes"))).collect()
}

#[test]
fn neighbours_become_one_copy() {
    for found in chosen() {
        let Scene { device, queue, memory, host: frames } =
            Scene::new(&found, &OpenClOptions::new(), 1 << 20, (1 << 20, HostMemory::Pinned));
        let page =
            |i: u64| Transfer::Upload { from: frames.at(i * 4096), to: memory.at(i * 4096), bytes: 4096 };
        let all: Vec<_> = (0..256).map(page).collect();
        device.wait(queue.submit(&all).unwrap()).unwrap();
        let statistics = device.statistics();
        assert_eq!((statistics.copies, statistics.copied_bytes, statistics.launches), (1, 1 << 20, 0));
        assert_eq!(statistics.tickets, 1);
    }
}

/// Copies pages that are scattered on the device and contiguous in host memory, both ways. Returns the
/// counts of driver calls, and whether kernels access pinned memory.
fn scattered_pages(
    options: &OpenClOptions,
    kind: HostMemory,
) -> Vec<(Discovered, backend_opencl::Statistics, bool)> {
    const PAGES: u64 = 64;
    const PAGE: u64 = 1000;
    let run = |found: Discovered| {
        let Scene { device, queue, memory, host: frames } =
            Scene::new(&found, options, 2 * PAGES * PAGE, ((2 * PAGES * PAGE), kind));
        let bytes: Vec<u8> = (0..PAGES * PAGE).map(|i| (i / PAGE * 7 + i % 251) as u8).collect();
        frames.write(0, &bytes);
        let slot = |i: u64| memory.at((PAGES - 1 - i) * 2 * PAGE + i % 3);
        let up: Vec<_> = (0..PAGES)
            .map(|i| Transfer::Upload { from: frames.at(i * PAGE), to: slot(i), bytes: PAGE })
            .collect();
        let down: Vec<_> = (0..PAGES)
            .map(|i| Transfer::Download { from: slot(i), to: frames.at((PAGES + i) * PAGE), bytes: PAGE })
            .collect();
        queue.submit(&up).unwrap();
        device.wait(queue.submit(&down).unwrap()).unwrap();
        let mut back = vec![0; bytes.len()];
        frames.read(bytes.len(), &mut back);
        assert_eq!(back, bytes);
        (found, device.statistics(), device.kernels_reach_pinned_memory())
    };
    chosen().into_iter().map(run).collect()
}

#[test]
fn many_small_pages_go_through_a_kernel() {
    // A kernel clears new scratch memory: once for the description of the copies, and once for the pages.
    for (found, statistics, in_place) in
        scattered_pages(&OpenClOptions::new().with_zero_copy(false), HostMemory::Pinned)
    {
        assert!(!in_place);
        assert_eq!(statistics.copies, 4, "{}: two descriptions, two long copies", found.info());
        assert_eq!(statistics.launches, 2 + 2, "{}", found.info());
    }
    for (found, statistics, _) in scattered_pages(&OpenClOptions::new(), HostMemory::Pageable) {
        assert_eq!((statistics.copies, statistics.launches), (4, 4), "{}", found.info());
    }
    for (found, statistics, in_place) in scattered_pages(&OpenClOptions::new(), HostMemory::Pinned) {
        // With access in place, only descriptions are copied.
        let wanted = if in_place { (2, 3) } else { (4, 4) };
        assert_eq!((statistics.copies, statistics.launches), wanted, "{}", found.info());
    }
}

#[test]
fn routes_are_taken_where_they_are_named_or_in_a_table() {
    const PAGE: u64 = 4096;
    for found in chosen() {
        let Scene { device, queue, memory, host: frames } =
            Scene::new(&found, &OpenClOptions::new(), 128 * PAGE, (64 * PAGE, HostMemory::Pinned));
        assert_eq!(device.routes(), [Route::Single, Route::Kernel]);
        let pages = |count: u64| -> Vec<Transfer> {
            let (memory, frames) = (&memory, &frames);
            let page = |i: u64| Transfer::Download {
                from: memory.at(2 * i * PAGE),
                to: frames.at(i * PAGE),
                bytes: PAGE,
            };
            (0..count).map(page).collect()
        };
        // Returns true if a call has launched a kernel. The first call of a kind allocates scratch memory,
        // which a kernel clears.
        device
            .wait(device.submit(queue.handle(), &Request::Copies(&pages(64), Some(Route::Kernel))).unwrap())
            .unwrap();
        let has_launched = |submit: &dyn Fn() -> backend_api::Result<backend_api::Ticket>| {
            let before = device.statistics().launches;
            device.wait(submit().unwrap()).unwrap();
            device.statistics().launches > before
        };
        let by = |route: Route, count: u64| {
            has_launched(&|| device.submit(queue.handle(), &Request::Copies(&pages(count), Some(route))))
        };
        let itself = |count: u64| has_launched(&|| queue.submit(&pages(count)));
        assert!(by(Route::Kernel, 64) && by(Route::Kernel, 2) && !by(Route::Kernel, 1));
        assert!(!by(Route::Single, 64) && !by(Route::Single, 2));
        assert!(itself(64) && !itself(4));
        let mut routing = Routing::new();
        routing.set_download(64, PAGE, Some(Route::Single));
        routing.set_download(4, PAGE, Some(Route::Kernel));
        device.set_routing(routing);
        assert!(!itself(64) && itself(4) && itself(16), "16 are left to the device");
        device.set_routing(Routing::new());
        assert!(itself(64) && !itself(4));
    }
}

/// Some drivers read pageable memory when a copy is enqueued: earlier work that writes there must be done
/// by then.
#[test]
fn copies_from_pageable_memory_wait_for_work_that_writes_there() {
    const BYTES: u64 = 8 << 20;
    for found in chosen() {
        let device = open(&found, &OpenClOptions::new());
        let queues = [(); 2].map(|()| Queue::new(&device).unwrap());
        let memory = DeviceBuffer::new(&device, 2 * BYTES, Commit::Lazy).unwrap();
        let host = HostBuffer::new(&device, BYTES as usize, HostMemory::Pageable).unwrap();
        queues[0].submit(&Fill { to: memory.at(0), bytes: 2 * BYTES, pattern: &[7] }).unwrap();
        let down = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: BYTES };
        let up = Transfer::Upload { from: host.at(BYTES - 1), to: memory.at(BYTES), bytes: 1 };
        for queue in &queues {
            let written = queues[0].submit(&[down]).unwrap();
            queue.order_after(written).unwrap();
            queue.submit(&[up]).unwrap();
            assert_eq!(device.poll(written), Ok(QueueProgress::Done));
        }
        // Test the answer of a search and gathered values, which the device writes, too.
        let elements = Elements { start: memory.at(0), count: BYTES, stride: 1 };
        let search =
            Search { elements, field_offset: 0, value: &[7], limit: 0, count_all: true, answer: host.at(0) };
        let searched = queues[0].submit(&search).unwrap();
        let up = Transfer::Upload { from: host.at(8), to: memory.at(BYTES), bytes: 1 };
        queues[0].submit(&[up]).unwrap();
        assert_eq!(device.poll(searched), Ok(QueueProgress::Done));
        device.wait(queues[0].submit(&[]).unwrap()).unwrap();
        host.write(0, &[0; 800]);
        let gather =
            Gather { elements: elements.into(), indices: host.at(0), count: 100, values: host.at(800) };
        let gathered = queues[0].submit(&gather).unwrap();
        let scatter =
            Scatter { elements: elements.into(), indices: host.at(0), count: 1, values: host.at(899) };
        queues[0].submit(&scatter).unwrap();
        assert_eq!(device.poll(gathered), Ok(QueueProgress::Done));
    }
}

#[test]
fn a_search_is_three_launches_and_a_copy_with_or_without_matches() {
    for found in chosen() {
        let Scene { device, queue, memory, host: answer } =
            Scene::new(&found, &OpenClOptions::new(), 1 << 20, (1 << 10, HostMemory::Pinned));
        let search = |value: u32| {
            let search = Search {
                elements: Elements { start: memory.at(0), count: 1 << 18, stride: 4 },
                field_offset: 0,
                value: &value.to_ne_bytes(),
                limit: 10,
                count_all: true,
                answer: answer.at(0),
            };
            let ticket = queue.submit(&search).unwrap();
            device.wait(ticket).unwrap();
        };
        search(1);
        assert_eq!(u64s(&answer, 0, 2), [0, 0]);
        let before = device.statistics();
        search(2);
        assert_eq!(u64s(&answer, 0, 2), [0, 0]);
        let between = device.statistics();
        search(0);
        assert_eq!(u64s(&answer, 0, 5), [1 << 18, 10, 0, 1, 2]);
        let after = device.statistics();
        assert_eq!((between.launches - before.launches, between.copies - before.copies), (3, 1));
        assert_eq!((after.launches - between.launches, after.copies - between.copies), (3, 1));
    }
}

#[test]
fn a_search_with_a_huge_limit_fetches_only_its_results() {
    const COUNT: u64 = 3 << 20;
    for found in chosen() {
        for largest in [u64::MAX, 1 << 20] {
            let Scene { device, queue, memory, host: answer } = Scene::new(
                &found,
                &OpenClOptions::new().with_largest_allocation_bytes(largest),
                COUNT,
                (16 + 8 * COUNT, HostMemory::Pageable),
            );
            let places = [0, 1, 77_777, (1 << 20) - 1, 1 << 20, 2_000_003, COUNT - 1];
            for &at in &places {
                queue.submit(&Fill { to: memory.at(at), bytes: 1, pattern: &[9] }).unwrap();
            }
            let elements = Elements { start: memory.at(0), count: COUNT, stride: 1 };
            let search = Search {
                elements,
                field_offset: 0,
                value: &[9],
                limit: u64::MAX,
                count_all: true,
                answer: answer.at(0),
            };
            let before = device.statistics().copied_bytes;
            device.wait(queue.submit(&search).unwrap()).unwrap();
            let copied = device.statistics().copied_bytes - before;
            assert_eq!(u64s(&answer, 0, 2), [places.len() as u64; 2]);
            assert_eq!(u64s(&answer, 16, places.len()), places);
            assert_eq!(copied, 16 + 8 * places.len() as u64);
            // Search for all elements.
            device.wait(queue.submit(&Search { value: &[0], ..search }).unwrap()).unwrap();
            let listed = (COUNT - places.len() as u64) as usize;
            assert_eq!(u64s(&answer, 0, 2), [listed as u64; 2]);
            let indices = u64s(&answer, 16, listed);
            assert!(indices.is_sorted_by(|a, b| a < b));
            assert!(places.iter().all(|place| indices.binary_search(place).is_err()));
        }
    }
}

#[test]
fn a_search_that_may_stop_early_lists_the_first_matches() {
    for found in chosen() {
        let device = open(&found, &OpenClOptions::new());
        let queue = Queue::new(&device).unwrap();
        // A GPU starts with thousands of elements at once, so an early stop shows only in a longer search.
        let card =
            device.info().kind == DeviceKind::DiscreteGpu && device.memory().unwrap().usable_bytes > 4 << 30;
        let count: u64 = if card { 512 << 20 } else { 4 << 20 };
        let memory = DeviceBuffer::new(&device, 4 * count, Commit::Lazy).unwrap();
        let answer = HostBuffer::new(&device, 16 + 8 * 5000, HostMemory::Pinned).unwrap();
        queue
            .submit(&Fill { to: memory.at(0), bytes: 4 * count, pattern: &[1, 0, 0, 0, 2, 0, 0, 0] })
            .unwrap();
        for limit in [1, 100, 5000] {
            let search = Search {
                elements: Elements { start: memory.at(0), count, stride: 4 },
                field_offset: 0,
                value: &2_u32.to_ne_bytes(),
                limit,
                count_all: false,
                answer: answer.at(0),
            };
            device.wait(queue.submit(&search).unwrap()).unwrap();
            let header = u64s(&answer, 0, 2);
            assert_eq!(header[1], limit);
            assert!(
                (limit..count / 4).contains(&header[0]),
                "it went on to count {} of {}",
                header[0],
                count / 2
            );
            assert!(u64s(&answer, 16, limit as usize).into_iter().eq((0..limit).map(|i| 2 * i + 1)));
        }
    }
}

/// Gathers and scatters that take several rounds, with elements longer than a round.
#[test]
fn gathers_and_scatters_of_more_than_a_round() {
    for found in chosen() {
        for (stride, count, share) in [(48 << 20, 2_u64, false), (10_000, 5000, false), (3, 5 << 20, true)] {
            let device = open(&found, &OpenClOptions::new().with_zero_copy(share));
            if device.memory().unwrap().usable_bytes < stride * 3 + count * stride {
                continue;
            }
            let queue = Queue::new(&device).unwrap();
            let memory = DeviceBuffer::new(&device, count * stride, Commit::Lazy).unwrap();
            let indices = HostBuffer::new(&device, count as usize * 8, HostMemory::Pinned).unwrap();
            let values = HostBuffer::new(&device, (count * stride) as usize, HostMemory::Pinned).unwrap();
            let backwards: Vec<u8> = (0..count).rev().flat_map(u64::to_ne_bytes).collect();
            indices.write(0, &backwards);
            let pattern: Vec<u8> = (0..4093_u32).map(|i| ((i * 31) >> 3) as u8).collect();
            queue.submit(&Fill { to: memory.at(0), bytes: count * stride, pattern: &pattern }).unwrap();
            let elements = Elements { start: memory.at(0), count, stride };
            queue
                .submit(&Gather {
                    elements: elements.into(),
                    indices: indices.at(0),
                    count,
                    values: values.at(0),
                })
                .unwrap();
            queue.submit(&Fill { to: memory.at(0), bytes: count * stride, pattern: &[0] }).unwrap();
            queue
                .submit(&Scatter {
                    elements: elements.into(),
                    indices: indices.at(0),
                    count,
                    values: values.at(0),
                })
                .unwrap();
            let back = Transfer::Download { from: memory.at(0), to: values.at(0), bytes: count * stride };
            device.wait(queue.submit(&[back]).unwrap()).unwrap();
            let mut bytes = vec![0; (count * stride) as usize];
            values.read(0, &mut bytes);
            let wrong = bytes.iter().enumerate().find(|&(i, &byte)| byte != pattern[i % pattern.len()]);
            assert_eq!(wrong, None, "stride {stride}");
        }
    }
}

#[test]
fn a_budget_is_kept() {
    for found in chosen() {
        let device = open(&found, &OpenClOptions::new().with_budget_bytes(1 << 20));
        assert!(device.memory().unwrap().usable_bytes <= 1 << 20);
        let error = device.allocate((1 << 20) + 1, Commit::Lazy).unwrap_err();
        assert_eq!((error.kind(), error.available_bytes()), (ErrorKind::TooLarge, Some(1 << 20)));
        let most = DeviceBuffer::new(&device, 1 << 20, Commit::Proven).unwrap();
        let error = device.allocate(1, Commit::Lazy).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!((error.bytes(), error.available_bytes()), (Some(1), Some(0)));
        drop(most);
        device.release(device.allocate(1 << 20, Commit::Lazy).unwrap());
    }
}

fn temporary(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("vmarray-opencl-{}-{name}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    folder
}

/// A driver takes seconds to build the kernels, so one test has the user's folder, kept kernels and damage.
#[test]
fn kernels_are_kept_in_the_users_folder_and_a_damaged_file_is_replaced() {
    for (number, found) in chosen().iter().enumerate() {
        let user = temporary(&format!("cache-{number}"));
        let folder = user.join("vmarray/opencl");
        let options = OpenClOptions::new().with_kernel_cache(KernelCache::Folder(folder.clone()));
        let works = |device: Arc<OpenClDevice>| {
            let memory = DeviceBuffer::new(&device, 100, Commit::Proven).unwrap();
            assert_eq!(memory.bytes(), 100);
            device.kernels_were_cached()
        };
        if number == 0 {
            // Another process with default options.
            let variables = [("XDG_CACHE_HOME", user.to_str().expect("a plain path"))];
            assert!(child("device::child_opens_a_device", &variables).contains("cached: false"));
            assert!(child("device::child_opens_a_device", &variables).contains("cached: true"));
        } else {
            assert!(!works(open(found, &options)));
        }
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        assert!(works(open(found, &options)));
        let mut bytes = std::fs::read(&files[0]).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        std::fs::write(&files[0], bytes).unwrap();
        assert!(!works(open(found, &options)));
        assert!(works(open(found, &options)));
        if backend_api::wrap::has_all_cases() {
            assert!(!works(open(found, &OpenClOptions::new().with_kernel_cache(KernelCache::Off))));
        }
        std::fs::remove_dir_all(user).unwrap();
    }
}

/// A folder that cannot be created, and one that other users can write to: they could make the driver run
/// any code.
#[test]
#[cfg(unix)]
fn a_folder_that_does_not_do_is_done_without() {
    use std::os::unix::fs::PermissionsExt;
    let (file, folder) = (temporary("not-a-folder"), temporary("writable"));
    std::fs::write(&file, b"in the way").unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let refused =
        [(file.join("below"), ""), (folder.clone(), "can be written to by other users (mode 0777)")];
    for found in chosen() {
        for (path, reason) in &refused {
            let device =
                open(&found, &OpenClOptions::new().with_kernel_cache(KernelCache::Folder(path.clone())));
            assert!(!device.kernels_were_cached());
            let error = device.kernel_cache_error().unwrap().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::remove_file(file).unwrap();
}

/// A child process of a test below.
#[test]
fn child_lists_devices() {
    let (devices, absences) = backend_opencl::survey();
    println!("devices: {}", devices.len());
    for absence in absences {
        println!("absence: {absence}");
    }
}

/// A child process of a test below.
#[test]
fn child_opens_a_device() {
    for found in chosen().iter().take(1) {
        println!("cached: {}", open(found, &OpenClOptions::new()).kernels_were_cached());
    }
}

/// Runs a test of this program in a child process with these variables, and returns its output.
fn child(test: &str, variables: &[(&str, impl AsRef<OsStr> + Copy)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .envs(variables.iter().copied())
        // Ignore memory that the driver's compiler keeps until the process ends: it is no leak of this crate.
        .env("LSAN_OPTIONS", "detect_leaks=0")
        .env("ASAN_OPTIONS", "use_sigaltstack=0:allocator_may_return_null=1:detect_leaks=0")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn without_drivers_or_library_there_are_no_devices() {
    let nowhere = temporary("no-drivers");
    std::fs::create_dir_all(&nowhere).unwrap();
    let folder = format!("{}/", nowhere.display());
    let listed = child(
        "device::child_lists_devices",
        &[("OCL_ICD_VENDORS", &folder), ("OPENCL_VENDOR_PATH", &folder)],
    );
    // Some loaders look for drivers in more places.
    assert!(listed.contains("devices: "), "{listed}");
    if cfg!(target_os = "linux") {
        // This library has none of the functions.
        let listed = child("device::child_lists_devices", &[("OPENCL_DYLIB_PATH", "libm.so.6")]);
        assert!(listed.contains("devices: 0"), "{listed}");
    }
    std::fs::remove_dir_all(nowhere).unwrap();
}

/// The loader omits it silently.
#[test]
#[cfg(unix)]
fn a_driver_that_does_not_load_is_named() {
    let (folder, number) = (temporary("icd"), backend_opencl::devices().len());
    std::fs::create_dir(&folder).unwrap();
    let broken = folder.join("broken.icd");
    std::fs::write(&broken, "libnone.so.1\n").unwrap();
    let named = format!("opencl: unusable: the driver that {} names does not load", broken.display());
    let lists = |vendors: &PathBuf| child("device::child_lists_devices", &[("OCL_ICD_VENDORS", vendors)]);
    for vendors in [&folder, &broken] {
        let listed = lists(vendors);
        assert!(listed.contains(&named) && listed.contains("libnone.so.1"), "{listed}");
        assert!(!listed.contains("finds no driver"), "{listed}");
    }
    // The broken driver is listed in addition to the working drivers.
    let others = std::fs::read_dir("/etc/OpenCL/vendors").into_iter().flatten().flatten();
    others.for_each(|file| _ = std::fs::copy(file.path(), folder.join(file.file_name())).unwrap());
    let listed = lists(&folder);
    assert!(listed.contains(&named) && listed.contains(&format!("devices: {number}\n")), "{listed}");
    let absences = listed.matches("absence").count();
    std::fs::remove_file(&broken).unwrap();
    assert_eq!(lists(&folder).matches("absence").count(), absences - 1);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_is_named_by_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let lists = |paths: &OsStr| child("device::child_lists_devices", &[("OPENCL_DYLIB_PATH", paths)]);
    let number = format!("devices: {}\n", backend_opencl::devices().len());
    assert!(lists(OsStr::new("")).contains(&number));
    assert!(lists(OsStr::new(";")).contains(&number));
    let named = OsStr::from_bytes(b"/nowhere/\xff/libOpenCL.so");
    let listed = lists(named);
    let shown = named.to_string_lossy();
    let reason = format!("unusable: {shown} cannot be loaded");
    assert!(listed.contains(&reason) && listed.contains(&number), "{listed}");
    // This library can be loaded, but has none of the functions.
    let root = temporary("bytes");
    let folder = root.join(OsStr::from_bytes(b"\xff"));
    std::fs::create_dir_all(&folder).unwrap();
    let library = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = library
        .lines()
        .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("libc.so")));
    if let Some(library) = library {
        std::os::unix::fs::symlink(library, folder.join("lib.so")).unwrap();
        let listed = lists(folder.join("lib.so").as_os_str());
        assert!(listed.contains("devices: 0\n") && listed.contains("has no function"), "{listed}");
    }
    std::fs::remove_dir_all(root).unwrap();
}
