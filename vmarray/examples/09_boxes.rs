//! A volume of 64 x 64 x 64 elements, stored in tiles. The program writes and reads boxes, sums a box on the
//! devices, and creates a two-dimensional view of one layer.
//!
//!     cargo run -p vmarray --example 09_boxes

use vmarray::prelude::*;

fn main() -> vmarray::Result<()> {
    // Each page stores one tile, so a box of any proportions touches few pages.
    let volume = NdArray::<u16, 3>::builder([64, 64, 64]).tile([16, 16, 16]).build()?;
    println!("{:?} elements in {} tiles", volume.shape(), volume.elements().page_count());
    assert_eq!(volume.elements().page_count(), 64);

    // Boxes are ranges of positions, half open along each axis: a block of 8 x 20 x 30.
    volume.fill([10, 20, 30]..[18, 40, 60], 3)?;
    assert_eq!(volume.get([17, 39, 59])?, 3);
    assert_eq!(volume.get([18, 39, 59])?, 0);

    // Queries of the whole array or of a box run on the devices.
    let all = volume.sum(.., Field::whole())?;
    let half = volume.sum([0, 0, 0]..[64, 30, 64], Field::whole())?;
    println!("the sum is {all}, that of the upper half of the block {half}");
    assert_eq!((all, half), (3 * 8 * 20 * 30, 3 * 8 * 10 * 30));

    // Positions in a view are relative to its corner. A write to the view changes the volume.
    let block = volume.section_mut([10, 20, 30]..[18, 40, 60])?;
    block.set([0, 0, 0], 9)?;
    assert_eq!(volume.find(Field::whole(), &9)?, [[10, 20, 30]]);
    // Set the block's last layer along axis 1 to 5, by a condition on positions.
    let row = block.coordinate(1)?;
    block.assign_where(.., row.eq(19_u64), Field::whole().set(5))?;

    // With a fixed index along one axis, the result is a two-dimensional view of one layer.
    let side = volume.project::<2>(0, 12)?;
    println!("layer 12, every second row and column of a part:");
    for y in (18..42).step_by(2) {
        let pixels = side.to_vec([y + 1, 26]..[y + 2, 64])?;
        println!(
            "    {}",
            pixels
                .iter()
                .step_by(2)
                .map(|value| [".", "3", "5"][usize::from(*value) / 2])
                .collect::<String>()
        );
    }
    assert_eq!(side.shape(), [64, 64]);
    assert_eq!(side.count(.., Field::whole(), &5)?, 30);
    assert_eq!(side.to_vec([39, 29]..[40, 32])?, [0, 5, 5]);
    Ok(())
}
