//! Tests of all kinds of stores on servers, and of the objects that interrupted writes leave behind.

use std::ops::ControlFlow;

use vmarray::{NdArray, RaggedArray, VirtualArray, nd::NdLayout, prelude::*};
use vmarray_formats::zarr::{self, Encoding, Zarr};
use vmarray_formats::{Error, FileOptions};
use vmarray_formats_servers::each;

use crate::common::{Pair, pair, places, plain, read};

#[test]
fn rows_and_structs_are_groups_of_objects() {
    each(|bucket| {
        let words = ["so", "", "many", "words"];
        let rows = RaggedArray::<u8>::builder().from_rows(words).unwrap();
        zarr::write_ragged(bucket.at("words"), &rows, Encoding::new(), FileOptions::new()).unwrap();
        let again =
            zarr::read_ragged(bucket.at("words"), RaggedArray::<u8>::builder(), FileOptions::new()).unwrap();
        assert_eq!(again.to_vecs().unwrap(), words.map(|word| word.as_bytes().to_vec()));

        let pairs = VirtualArray::<Pair>::new(10).unwrap();
        pairs.set(3, pair(7)).unwrap();
        zarr::write(bucket.at("x/pairs"), &pairs, Encoding::new(), FileOptions::new()).unwrap();
        let field = VirtualArray::<u32>::new(10).unwrap();
        Zarr::open(bucket.at("x/pairs/a")).unwrap().read(&field, FileOptions::new()).unwrap();
        assert_eq!(field.get(3).unwrap(), 7);
        // A store whose name begins with the name of another store is a separate store.
        zarr::write(bucket.at("x/pair"), &pairs, Encoding::new(), FileOptions::new()).unwrap();
        let there = zarr::write(bucket.at("x"), &pairs, Encoding::new(), FileOptions::new());
        assert!(matches!(there, Err(Error::Exists { .. })));
    });
}

#[test]
fn chunks_in_shards_are_read_alone() {
    each(|bucket| {
        let image = places([64, 64]);
        let encoding = plain::<u32>([8, 8]).shard([32, 32]);
        zarr::write(bucket.at("image"), &image, encoding, FileOptions::new()).unwrap();
        let proxy = bucket.proxy(|_| None);
        let store = Zarr::<u32>::open(bucket.at_by(&proxy, "image", 0)).unwrap();
        let image: NdArray<u32, 2> =
            store.into_read_only_array(|elements| elements.read_ahead(false)).unwrap();
        assert_eq!(image.layout(), NdLayout::Tiled([8, 8]));
        proxy.take_seen();
        assert_eq!(image.get([40, 3]).unwrap(), 40 * 64 + 3);
        // The two reads are the index of the shard, and the chunk.
        assert!(proxy.take_seen().len() <= 3);
        assert!(image.set([0, 0], 1).is_err());
        assert_eq!(read::<u32>(bucket.at("image")), (0..64 * 64).collect::<Vec<_>>());
    });
}

/// More names than one page of a server's list.
#[test]
fn nothing_is_left_of_many_chunks() {
    each(|bucket| {
        let array = VirtualArray::<u8>::new(1010).unwrap();
        array.fill(.., 7).unwrap();
        let names = std::cell::Cell::new(0);
        let ended = zarr::write(
            bucket.at("many"),
            &array,
            plain([1]),
            FileOptions::new().threads(4).progress(|progress| {
                assert!(names.get() > 0 || Zarr::<u8>::open(bucket.at("many")).is_err());
                names.set(names.get() + 1);
                if progress.done_bytes == 1010 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }),
        );
        assert!(matches!(ended, Err(Error::Cancelled { .. })) && names.get() > 1000);
        assert_eq!(bucket.names(), Vec::<String>::new());

        zarr::write(bucket.at("many"), &array, plain([505]), FileOptions::new()).unwrap();
        assert_eq!(bucket.names(), ["many/c/0", "many/c/1", "many/zarr.json"]);
        let again = VirtualArray::<u8>::new(1010).unwrap();
        Zarr::open(bucket.at("many")).unwrap().read(&again, FileOptions::new()).unwrap();
        assert_eq!(again.sum(.., Field::whole()).unwrap(), 7070);
    });
}
