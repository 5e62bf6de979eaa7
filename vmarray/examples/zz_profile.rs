use std::time::Instant;
use vmarray::order::Side;
use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    let log2: u32 = std::env::args().nth(1).map_or(26, |s| s.parse().unwrap());
    let channels: usize = std::env::args().nth(2).map_or(1, |s| s.parse().unwrap());
    let len = 1_usize << log2;
    let devices = vmarray::Discovery::new().select("cuda").unwrap().open()?;
    let devices = devices[..channels].to_vec();
    let new = || VirtualArray::<u32>::builder(len).devices(devices.clone());
    let hash = || {
        Field::<u32, u32>::whole().set((vmarray::expr::index() * 0x9E37_79B9_7F4A_7C15 >> 32).cast::<u32>())
    };
    macro_rules! timed {
        ($name:expr, $e:expr) => {{
            let t = Instant::now();
            let r = $e;
            println!("{:>28} {:8.3} ms", $name, t.elapsed().as_secs_f64() * 1e3);
            r
        }};
    }
    for round in 0..3 {
        println!("--- round {round}, 2^{log2} u32");
        let a = timed!("build u32", new().build()?);
        let wide = timed!("build u64", VirtualArray::<u64>::builder(len).devices(devices.clone()).build()?);
        timed!("transform hash", a.transform(.., hash())?);
        timed!("transform again", a.transform(.., hash())?);
        timed!("wide transform", wide.transform(.., Field::<u64, u64>::whole().set(vmarray::expr::index()))?);
        timed!(
            "wide transform again",
            wide.transform(.., Field::<u64, u64>::whole().set(vmarray::expr::index()))?
        );
        let b = new().build()?;
        timed!("copy_from", b.copy_from(0, &a)?);
        timed!("copy_from again", b.copy_from(0, &a)?);
        timed!("sort", b.sort(..)?);
        b.copy_from(0, &a)?;
        timed!("sort again", b.sort(..)?);
        let positions = new().build()?;
        positions.transform(.., Field::<u32, u32>::whole().set(vmarray::expr::index().cast::<u32>()))?;
        b.copy_from(0, &a)?;
        timed!("sort_with", b.sort_with(.., &positions)?);
        let t1 = timed!("take u32 by u32", a.take(&positions)?);
        timed!("drop", drop(t1));
        let n = timed!("is_sorted", b.is_sorted(..)?);
        assert!(n);
        timed!("prefix_sum u64", wide.prefix_sum(..)?);
        timed!("prefix_sum u32", positions.prefix_sum(..)?);
        timed!("search_sorted", b.search_sorted(&a, Side::Left)?);
        timed!("search_sorted of sorted", b.search_sorted(&b, Side::Left)?);
        let s = timed!("argsort", a.argsort(.., Field::<u32, u32>::whole())?);
        timed!("drop", drop(s));
        let s = timed!("unique", a.unique(..)?);
        println!("{} unique", s.len());
        timed!("drop", drop(s));
        timed!("drop wide", drop(wide));
    }
    Ok(())
}
