//! Boundary modes define the values beyond the edges of an array. The example blurs an image by 3 x 3
//! elements without special cases at the edges, and prints the surroundings of a small image in each mode.
//! (The example `boundary_modes` draws the images of the documentation.)
//!
//!     cargo run -p vmarray --example 10_boundary_modes

use vmarray::boundary::{Boundary, Circular, Clamp, Constant, Mirror, Symmetric, Zero};
use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    let picture = NdArray::<u8, 2>::new([3, 4])?;
    picture.write_box(.., b"abcdefghijkl")?;

    // Read a window that extends beyond the array: by two rows and three columns on each side.
    let modes: [(&str, &dyn Boundary<u8, 2>); 6] = [
        ("Zero", &Zero),
        ("Constant", &Constant(b'x')),
        ("Clamp", &Clamp),
        ("Circular", &Circular),
        ("Mirror", &Mirror),
        ("Symmetric", &Symmetric),
    ];
    for (name, mode) in modes {
        let mut window = [0; 7 * 10];
        picture.bounded(mode).read_window([-2, -3], [7, 10], &mut window)?;
        println!("{name}:");
        for row in window.chunks(10) {
            let row: String =
                row.iter().map(|byte| if *byte == 0 { '.' } else { char::from(*byte) }).collect();
            println!("    {} {} {}", &row[..3], &row[3..7], &row[7..]);
        }
        // Inside the array, all modes give the same elements.
        assert_eq!(&window[23..27], b"abcd");
    }
    let edge = picture.bounded(Mirror);
    assert_eq!((edge.get([0, -1])?, edge.get([-1, 0])?), (b'b', b'e'));

    // The mode belongs to the view, and may differ by axis: here the first axis repeats its edges, the second
    // wraps around.
    let cylinder = picture.bounded((Clamp, Circular));
    assert_eq!(cylinder.get([-1, -1])?, b'd');

    // Each result is a mean of 3 x 3 elements, at the corners as well.
    let light = NdArray::<u8, 2>::new([3, 4])?;
    light.set([0, 0], 90)?;
    let mut window = [0; 5 * 6];
    light.bounded(Clamp).read_window([-1, -1], [5, 6], &mut window)?;
    let mean = |y: usize, x: usize| {
        let around = (0..3).flat_map(|dy| window[(y + dy) * 6 + x..][..3].iter());
        around.map(|value| u32::from(*value)).sum::<u32>() / 9
    };
    println!("a light of 90 in the corner, blurred:");
    for y in 0..3 {
        println!("    {:?}", [0, 1, 2, 3].map(|x| mean(y, x)));
    }
    // With `Clamp` the mean counts the corner four times: itself, and three times beyond the edges.
    assert_eq!((mean(0, 0), mean(0, 1), mean(1, 1), mean(2, 2)), (40, 20, 10, 0));
    Ok(())
}
