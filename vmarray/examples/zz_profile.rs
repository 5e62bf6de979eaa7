use std::time::Instant;
use vmarray::order::Side;
use vmarray::prelude::*;

macro_rules! check {
    ($devices:expr, $seed:expr, $($T:ty)*) => {$({
        for len in [2_usize, 100, 4095, 4096, 4097, 70_001, 1_000_003, 33_000_001] {
            for most in [1_u64, 3, 1000, u64::MAX] {
                let devices = $devices.clone();
                let a = VirtualArray::<$T>::builder(len).devices(devices).build()?;
                let mut x = $seed + len as u64;
                let v: Vec<$T> = (0..len).map(|_| { x ^= x << 13; x ^= x >> 7; x ^= x << 17; (x % most) as $T }).collect();
                a.write(0, &v)?;
                let mut d = v.clone(); d.sort_unstable(); d.dedup();
                assert!(a.unique(..)?.to_vec(..)? == d, "unique {} {len} {most}", stringify!($T));
                let start = len / 3;
                let mut s = v.clone(); let mut sum: $T = 0;
                for e in &mut s[start..] { sum = sum.wrapping_add(*e); *e = sum; }
                let got = a.prefix_sum(start..)?;
                assert!(got == sum && a.to_vec(..)? == s, "prefix {} {len} {most}", stringify!($T));
                a.write(0, &v)?;
                let mut s = v.clone(); let mut sum: $T = 0;
                for e in &mut s[..] { let b = sum; sum = sum.wrapping_add(*e); *e = b; }
                assert!(a.exclusive_prefix_sum(..)? == sum && a.to_vec(..)? == s, "exclusive {} {len} {most}", stringify!($T));
            }
        }
        println!("{} right", stringify!($T));
    })*};
}

fn main() -> vmarray::Result<()> {
    let log2: u32 = std::env::args().nth(1).map_or(26, |s| s.parse().unwrap());
    let channels: usize = std::env::args().nth(2).map_or(1, |s| s.parse().unwrap());
    let len = 1_usize << log2;
    let devices = vmarray::Discovery::new().select("cuda").unwrap().open()?;
    let devices: Vec<_> = (0..channels).map(|i| devices[i % devices.len()].clone()).collect();
    check!(devices, 7, u8 u16 u32 u64 i32 i64);
    {
        // Many groups, and with sums.
        let a = VirtualArray::<u32>::builder(5_000_000).devices(devices.clone()).build()?;
        a.transform(
            ..,
            Field::<u32, u32>::whole()
                .set((vmarray::expr::index() * 0x9E37_79B9_7F4A_7C15 >> 45).cast::<u32>()),
        )?;
        let g = a.group_by(.., Field::<u32, u32>::whole())?;
        let (k, c, st) = (g.keys().to_vec(..)?, g.counts()?.to_vec(..)?, g.starts().to_vec(..)?);
        let mut want = std::collections::BTreeMap::<u32, u64>::new();
        for e in a.to_vec(..)? {
            *want.entry(e).or_default() += 1;
        }
        assert!(
            k.iter().copied().zip(c.iter().copied()).eq(want.into_iter()) && st.last() == Some(&5_000_000)
        );
        println!("groups right");
    }
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
        let g = timed!("group_by", a.group_by(.., Field::<u32, u32>::whole())?);
        drop(g);
        let s = timed!("unique", a.unique(..)?);
        println!("{} unique", s.len());
        timed!("drop", drop(s));
        timed!("drop wide", drop(wide));
    }
    Ok(())
}
