use std::time::Instant;
use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    let devices = vmarray::Discovery::new().select("cuda").unwrap().open()?;
    let devices = vec![devices[0].clone()];
    let len = 1_usize << 26;
    macro_rules! timed {
        ($name:expr, $e:expr) => {{
            let t = Instant::now();
            let r = $e;
            println!("{:>28} {:8.3} ms", $name, t.elapsed().as_secs_f64() * 1e3);
            r
        }};
    }
    for round in 0..4 {
        println!("--- {round}");
        for (name, len, cache) in [
            ("tiny", 1000, 1 << 20),
            ("u32 1 MiB", len, 1 << 20),
            ("u32 16 MiB", len, 16 << 20),
            ("u32 256 KiB", len, 1 << 18),
        ] {
            let a = timed!(
                name,
                VirtualArray::<u32>::builder(len)
                    .page_len(16384)
                    .cache_bytes(cache)
                    .devices(devices.clone())
                    .build()?
            );
            timed!(
                "  set",
                a.transform(.., Field::<u32, u32>::whole().set(vmarray::expr::index().cast::<u32>()))?
            );
            timed!(
                "  set again",
                a.transform(.., Field::<u32, u32>::whole().set(vmarray::expr::index().cast::<u32>()))?
            );
            timed!("  drop", drop(a));
        }
        let a = VirtualArray::<u32>::builder(len).page_len(16384).devices(devices.clone()).build()?;
        a.transform(
            ..,
            Field::<u32, u32>::whole()
                .set((vmarray::expr::index() * 0x9E37_79B9_7F4A_7C15 >> 32).cast::<u32>()),
        )?;
        let b = VirtualArray::<u32>::builder(len).page_len(16384).devices(devices.clone()).build()?;
        timed!("copy", b.copy_from(0, &a)?);
        let p = VirtualArray::<u32>::builder(len).page_len(16384).devices(devices.clone()).build()?;
        timed!("sort_with", b.sort_with(.., &p)?);
        b.copy_from(0, &a)?;
        timed!("sort_with", b.sort_with(.., &p)?);
        timed!("take", a.take(&p)?);
        timed!("argsort", a.argsort(.., Field::<u32, u32>::whole())?);
        std::thread::sleep(std::time::Duration::from_secs(3));
        timed!("argsort after a pause", a.argsort(.., Field::<u32, u32>::whole())?);
        timed!("argsort", a.argsort(.., Field::<u32, u32>::whole())?);
    }
    Ok(())
}
