//! Tests that exchange stores with zarr-python on the server moto, in both directions.

use vmarray_formats::FileOptions;
use vmarray_formats::zarr::{self, Compression, Encoding};
use vmarray_formats_servers::{Bucket, Server};

use crate::common::{places, plain, read};

#[test]
fn zarr_python_and_vmarray_read_each_others_files() {
    for server in Server::all() {
        let Some(moto) = server.moto() else { continue };
        let bucket = Bucket::new(server);
        let total: u64 = (0..30 * 40).map(|place| place * (place + 1)).sum();
        let zstd = Compression::Zstd { level: 3 };
        let encodings = [
            plain([7, 9]),
            Encoding::new().chunk([7, 9]).compression(zstd),
            Encoding::new().chunk([5, 4]).shard([10, 20]).compression(zstd),
            plain([3, 5]),
        ];
        for (number, encoding) in encodings.into_iter().enumerate() {
            let name = format!("a/{number}.zarr");
            zarr::write(bucket.at(&name), &places([30, 40]), encoding, FileOptions::new()).unwrap();
            assert_eq!(moto.ask("read", &[&bucket.name, &name]), format!("30x40 {total}"));
        }
        moto.ask("write", &[&bucket.name, "theirs.zarr"]);
        assert_eq!(read::<u32>(bucket.at("theirs.zarr")), (0..1200).collect::<Vec<_>>());
    }
}
