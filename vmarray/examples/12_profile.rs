//! Measures a profile of each device, and prints the profile and the time of the measurement. Then prints a
//! table of copy speeds for each route (copy engine or kernel): alone, as the backend chooses, and as the
//! profile chooses.
//!
//!     cargo run --release -p vmarray --example 12_profile [-- DEVICES [SECONDS]]
//!
//! `DEVICES` is a list as for `VMARRAY_DEVICES`: `cuda`, `opencl:0`, `all` … The example measures a profile
//! even if one is stored. `SECONDS` limits the time of the table for each device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmarray::device::{
    Commit, DeviceBuffer, HostBuffer, HostMemory, Queue, Request, Route, Routing, Transfer,
};
use vmarray::{AnyDevice, Discovery, Result, device::Device, profile::Profile};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let discovery = match arguments.next() {
        Some(list) => Discovery::new().select(&list)?,
        None => Discovery::from_env()?,
    };
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10.0);
    for device in discovery.open()? {
        println!("{} {}", device.info(), device.info().driver);
        Profile::forget(&*device);
        let profile = timed("measured", || Profile::of(&device))?;
        assert_eq!(timed("known", || Profile::of(&device))?, profile, "the profile was measured again");
        println!("{profile}");
        if device.routes().len() > 1 {
            Scene::new(&device)?.table(&profile, Duration::from_secs_f64(seconds))?;
        }
    }
    Ok(())
}

fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = work();
    println!("{what} in {:.3} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

/// A device with a queue, and memory for copies on the device and the host.
struct Scene<'a> {
    device: &'a Arc<AnyDevice>,
    queue: Queue<AnyDevice>,
    memory: DeviceBuffer<AnyDevice>,
    host: HostBuffer<AnyDevice>,
}

const BYTES: usize = 16 << 20;
const ROUNDS: usize = 15;

impl<'a> Scene<'a> {
    fn new(device: &'a Arc<AnyDevice>) -> Result<Self> {
        Ok(Self {
            device,
            queue: Queue::new(device)?,
            memory: DeviceBuffer::new(device, BYTES as u64, Commit::Proven)?,
            host: HostBuffer::new(device, BYTES, HostMemory::Pinned)?,
        })
    }

    /// Prints a table of speeds in GB/s, each of one batch of copies and the wait for it.
    fn table(&self, profile: &Profile, time: Duration) -> Result<()> {
        let (routes, start) = (self.device.routes(), Instant::now());
        for is_upload in [false, true] {
            print!("\n{:8} {:>6}", if is_upload { "upload" } else { "download" }, "pieces");
            routes.iter().for_each(|route| print!(" {:>8}", format!("{route:?}").to_lowercase()));
            println!(" {:>8} {:>8}  {:<8} gain", "itself", "profile", "found");
            for piece_bytes in Routing::PIECE_BYTES {
                for pieces in Routing::PIECES {
                    let bytes = pieces as u64 * piece_bytes;
                    if bytes > 8 << 20 || start.elapsed() > time {
                        continue;
                    }
                    let transfers = self.transfers(is_upload, piece_bytes, pieces as u64);
                    let ways = routes.iter().map(|route| Way::Named(*route));
                    let ways: Vec<Way> = ways.chain([Way::Itself, Way::Profile(profile.routing)]).collect();
                    let speeds = self.speeds(&ways, &transfers, bytes)?;
                    print!("{:>8} {pieces:>6}", piece_bytes);
                    speeds.iter().for_each(|speed| print!(" {speed:>8.2}"));
                    let found = if is_upload {
                        profile.routing.upload(pieces, bytes)
                    } else {
                        profile.routing.download(pieces, bytes)
                    };
                    let found = found.map_or("-".into(), |route| format!("{route:?}").to_lowercase());
                    let [.., itself, profile] = speeds[..] else { continue };
                    println!("  {found:<8} {:.2}", profile / itself);
                }
            }
        }
        Ok(())
    }

    /// Returns the copies of a batch. Their order differs on both sides, so that no two copies can be merged.
    fn transfers(&self, is_upload: bool, bytes: u64, pieces: u64) -> Vec<Transfer<'_>> {
        (0..pieces)
            .map(|piece| {
                let (home, frame) =
                    (self.memory.at(piece * bytes), self.host.at((pieces - 1 - piece) * bytes));
                if is_upload {
                    Transfer::Upload { from: frame, to: home, bytes }
                } else {
                    Transfer::Download { from: home, to: frame, bytes }
                }
            })
            .collect()
    }

    /// Returns the median speed of each way, in GB/s; each round measures all ways once.
    fn speeds(&self, ways: &[Way], transfers: &[Transfer], bytes: u64) -> Result<Vec<f64>> {
        let mut times = vec![Vec::new(); ways.len()];
        for _ in 0..ROUNDS {
            for (way, times) in ways.iter().zip(&mut times) {
                self.device.set_routing(if let Way::Profile(routing) = way {
                    *routing
                } else {
                    Routing::new()
                });
                let start = Instant::now();
                let ticket = match way {
                    Way::Named(route) => {
                        self.device.submit(self.queue.handle(), &Request::Copies(transfers, Some(*route)))?
                    }
                    _ => self.queue.submit(transfers)?,
                };
                self.device.wait(ticket)?;
                times.push(start.elapsed());
            }
        }
        let median = |mut times: Vec<Duration>| {
            times.sort_unstable();
            times[ROUNDS / 2]
        };
        Ok(times.into_iter().map(|times| bytes as f64 / median(times).as_secs_f64() / 1e9).collect())
    }
}

#[derive(Clone, Copy)]
enum Way {
    Named(Route),
    Itself,
    Profile(Routing),
}
