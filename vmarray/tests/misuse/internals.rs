//! Items that only the library may call or implement. A comment behind each line has the compiler's message.

use vmarray::prelude::*;
use vmarray::Result;
use vmarray::views::{Linear, Section, Shape, Store, StoreMut};

struct Mine;

impl Store for Mine { //~ the trait bound `Mine: Sealed` is not satisfied
    type Element = u32;
}

fn main() -> Result<()> {
    let (small, large) = (Source::new(vec![0_u32; 3])?, Source::new(vec![0_u32; 1024])?);
    StoreMut::write_at(&small, 0, &[7; 1024])?; //~ `Internal` is missing
    Store::read_at(&small, 0, &mut [7; 1024])?; //~ `Internal` is missing
    let (_, shape): (_, Linear) = (&large).parts();
    let forged = <&Source<u32> as View>::of_parts(&small, shape); //~ `Internal` is missing
    shape.fill(&small, &(0..1024), 7)?; //~ `Internal` is missing
    let _: Section<'_, Source<u32>> = forged;
    small.page(0)?; //~ no method named `page` found
    Ok(())
}
